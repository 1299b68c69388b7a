"""Tokenizers by class, and prompts as token ids."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from voidpad.errors import ConfigError, WeightsError

Messages = Sequence[Mapping[str, str]]


def read_tokenizer(
    folder: Path, spelled: type[PreTrainedTokenizerBase] = Qwen2Tokenizer
) -> PreTrainedTokenizerBase:
    """The folder's tokenizer: tokenizer.json, or vocab.json and merges.txt in the class `spelled`."""
    if (folder / "tokenizer.json").is_file():
        kind: type[PreTrainedTokenizerBase] = PreTrainedTokenizerFast
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        kind = spelled
    else:
        raise WeightsError(
            f"{folder}: no tokenizer.json, nor vocab.json with merges.txt; copy the tokenizer files."
        )
    try:
        tokenizer = kind.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # the Rust parser raises bare Exception on damaged files
        raise WeightsError(f"{folder}: damaged tokenizer files ({str(error).splitlines()[0]}).") from error
    tokenizer.init_kwargs.pop("auto_map", None)  # it names remote code, which no copy of ours may ask for
    return tokenizer


def chat(prompt: str | Messages, *, system: str | None = None) -> list[dict[str, str]]:
    """A prompt as messages, the system prompt first."""
    given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    turns = [dict(turn) for turn in given]
    for place, turn in enumerate(turns):
        if not isinstance(turn.get("role"), str) or not isinstance(turn.get("content"), str):
            raise ConfigError(f"messages[{place}]: {turn!r} needs the text fields 'role' and 'content'.")
    if not turns or not turns[-1]["content"].strip():
        raise ConfigError("prompt is empty; give at least one character.")
    if turns[-1]["role"] == "assistant":
        raise ConfigError(f"messages[{len(turns) - 1}] is an assistant turn; end with the turn to answer.")
    if system is not None and turns[0]["role"] == "system":
        raise ConfigError("system prompt given twice: drop system=... or messages[0].")
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def chat_ids(tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, str]]) -> list[int]:
    """Messages through the tokenizer's chat template, the answer's header last."""
    if not tokenizer.chat_template:
        raise ConfigError("this tokenizer has no chat template; use raw=True (--raw).")
    text: Any = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return raw_ids(tokenizer, text)


def raw_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Plain text as ids, nothing added."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that are no text: the named specials and every added token marked special."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))
