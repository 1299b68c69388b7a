"""Tokenizers read from a folder, and prompts as token ids.

One rule holds everywhere a user's text becomes ids: what a person typed stays text. A message that contains
`<|im_end|>`, `<|mask|>` or the name of another added token cannot end a turn, forge one, or place a mask; only the chat
template may write such tokens. `encode_chat` and `encode_text` keep this rule. `raw_ids` is for text that a program
rendered, where special tokens are meant.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from voidpad.errors import ConfigError, WeightsError, first_line, shown
from voidpad.files import read_json, readable
from voidpad.roles import Roles

Messages = Sequence[Mapping[str, str]]

# Roles of a message. Templates print the role, so any other word could forge a turn.
CHAT_ROLES = ("system", "developer", "user", "assistant")


def read_tokenizer(
    folder: Path, without_json: type[PreTrainedTokenizerBase] = Qwen2Tokenizer
) -> PreTrainedTokenizerBase:
    """The folder's tokenizer: tokenizer.json, or where there is none vocab.json and merges.txt in the given class."""
    kind: type[PreTrainedTokenizerBase] = PreTrainedTokenizerFast
    if not (folder / "tokenizer.json").is_file():
        vocab, kind = read_json(folder / "vocab.json"), without_json
        if "<pad_0>" in vocab:
            raise WeightsError(
                f"{folder}: vocab.json renames entries that merges.txt needs, as the tokenizer_dream folder of the "
                "paper's authors does; use the base model's own tokenizer files and "
                f"give the id: --roles void={vocab['<pad_0>']} (roles={{'void': {vocab['<pad_0>']}}})."
            )
    with readable(folder, "tokenizer"):
        tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    tokenizer.init_kwargs.pop("auto_map", None)  # it names remote code, which no copy of ours may ask for
    return tokenizer


# Which ids are not text


@lru_cache(maxsize=16)
def _added_tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> tuple[dict[int, str], frozenset[int]]:
    """(every added token with its spelling, those that are special); a tokenizer whose size changed is read again."""
    entries, named = tokenizer.added_tokens_decoder, set(tokenizer.all_special_ids)
    spelled = {token: str(tokenizer.convert_ids_to_tokens(token)) for token in named | entries.keys()}
    return spelled, frozenset(named | {token for token, entry in entries.items() if entry.special})


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that are no text: the named specials and every added token marked special."""
    return _added_tokens(tokenizer, len(tokenizer))[1]


def reserved_ids(tokenizer: PreTrainedTokenizerBase, roles: Roles | None = None) -> frozenset[int]:
    """Ids that typed text never becomes: added tokens, special tokens and tokens with a role.

    The token for unknown letters is not among them: text that the vocabulary lacks becomes it.
    """
    added = frozenset(_added_tokens(tokenizer, len(tokenizer))[0])
    return (added | (frozenset() if roles is None else roles.all())) - {tokenizer.unk_token_id}


# Text as ids


class SpecialTokenError(ConfigError):
    """Typed text spells a special token in a way that cannot be kept as text."""


# Whether special tokens are split is a state of the tokenizer, which threads may share.
_LOCK = threading.Lock()


def raw_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Rendered text as ids: spellings of special tokens become their ids, nothing is added."""
    with _LOCK:
        ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]
    return ids


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str, *, roles: Roles | None = None) -> list[int]:
    """Typed text as ids: spellings of special tokens stay text, nothing is added.

    The tokenizer reads special tokens as text. Added tokens that are not marked special, and entries of the vocabulary
    that have a role, such as a run of spaces used as VOID, are broken up: the text is cut inside them.
    """
    if not text:
        return []
    reserved = reserved_ids(tokenizer, roles)
    cuts = {0, len(text)}
    for _ in range(32):
        places = sorted(cuts)
        with _LOCK:
            encoded: Any = tokenizer(
                [text[start:end] for start, end in pairwise(places)],
                add_special_tokens=False,
                split_special_tokens=True,
                return_offsets_mapping=True,
            )
        found = {
            base + (start + end) // 2
            for base, tokens, spans in zip(
                places, encoded["input_ids"], encoded["offset_mapping"], strict=False
            )
            for token, (start, end) in zip(tokens, spans, strict=True)
            if token in reserved
        }
        if not found:
            return [token for tokens in encoded["input_ids"] for token in tokens]
        if found <= cuts:
            break
        cuts |= found
    raise SpecialTokenError(
        "the text spells special tokens in a way that cannot be kept as text; remove them."
    )


def encode_chat(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, *, roles: Roles | None = None
) -> list[int]:
    """A conversation through the tokenizer's chat template, the header of the next answer last.

    Special ids come from the template alone; the content of messages stays text. Without such spellings in the
    content, the ids are those of the rendered template.
    """
    if not tokenizer.chat_template:
        raise ConfigError("this tokenizer has no chat template; use raw=True (--raw).")
    contents = [turn["content"] for turn in messages]
    text = _render(tokenizer, messages, contents)
    # The template's own text: what it writes around a marker in place of each content. A blank content is kept,
    # because templates test for it.
    marker = "zqcontent"
    while any(marker in content for content in contents):
        marker += "zq"
    marked = [f"{marker}{n}zq" if content.strip() else content for n, content in enumerate(contents)]
    parts = re.split(rf"{marker}(\d+)zq", _render(tokenizer, messages, marked))
    reserved = reserved_ids(tokenizer, roles)
    own = [token for part in parts[::2] for token in raw_ids(tokenizer, part) if token in reserved]
    spelled = _added_tokens(tokenizer, len(tokenizer))[0]
    names = [spelled.get(token) or str(tokenizer.decode([token])) for token in reserved]
    typed = any(name and name in content for name in names for content in contents)
    ids = raw_ids(tokenizer, text)
    if not typed and [token for token in ids if token in reserved] == own:
        return ids
    for strip in (str, str.strip, lambda content: content.strip("\n")):
        pieces = [strip(contents[int(part)]) if n % 2 else part for n, part in enumerate(parts)]
        if "".join(pieces) == text:
            encoded = [
                encode_text(tokenizer, piece, roles=roles) if n % 2 else raw_ids(tokenizer, piece)
                for n, piece in enumerate(pieces)
            ]
            return [token for piece in encoded for token in piece]
    raise SpecialTokenError(
        "this chat template rewrites the text of messages, so a special token typed there cannot be kept as text; "
        "remove it from the messages, or render the prompt yourself and use raw=True (--raw)."
    )


def _render(tokenizer: PreTrainedTokenizerBase, messages: Messages, contents: Sequence[str]) -> str:
    """The conversation through the chat template, which transformers runs in a Jinja sandbox."""
    turns = [
        {"role": turn["role"], "content": content} for turn, content in zip(messages, contents, strict=True)
    ]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # whatever the template does wrong, or refuses with raise_exception
        raise ConfigError(f"the chat template refuses these messages ({first_line(error)}).") from None


def chat(prompt: str | Messages, *, system: str | None = None) -> list[dict[str, str]]:
    """A prompt as checked messages, the system prompt first. `developer` is another word for `system`."""
    given: Messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system is not None:
        given = [{"role": "system", "content": system}, *given]
    turns: list[dict[str, str]] = []
    for index, turn in enumerate(given):
        role, content = (
            turn.get(name) if isinstance(turn, Mapping) else None for name in ("role", "content")
        )
        if role not in CHAT_ROLES or not isinstance(content, str):
            raise ConfigError(
                f"messages[{index}]: role must be one of {', '.join(CHAT_ROLES)}, and content text: {shown(turn)}."
            )
        turns.append({"role": "system" if role == "developer" else role, "content": content})
    if not turns or not turns[-1]["content"].strip():
        raise ConfigError("prompt is empty; give at least one character.")
    if turns[-1]["role"] == "assistant":
        raise ConfigError(f"messages[{len(turns) - 1}] is an assistant turn; end with the turn to answer.")
    if system is not None and [turn["role"] for turn in turns[:2]] == ["system", "system"]:
        raise ConfigError("system prompt given twice: drop system=... or messages[0].")
    return turns
