"""Tokenizers read from a folder, and prompts as token ids.

One rule holds everywhere a user's text becomes ids: what a person typed stays text. A message that contains
`<|im_end|>`, `<|mask|>` or the name of another added token cannot end a turn, forge one, or place a mask; only the chat
template may write such tokens. `encode_chat` and `encode_text` keep this rule. `raw_ids` is for text that a program
rendered, where special tokens are meant.
"""

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from voidpad.errors import ConfigError, WeightsError, first_line, shown
from voidpad.files import read_json, readable
from voidpad.roles import Roles

Messages = Sequence[Mapping[str, str]]

# Roles of a message. Templates print the role, so any other word could forge a turn.
CHAT_ROLES = ("system", "developer", "user", "assistant")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


# Tokenizers


def read_tokenizer(
    folder: Path, spelled: type[PreTrainedTokenizerBase] = Qwen2Tokenizer
) -> PreTrainedTokenizerBase:
    """The folder's tokenizer: tokenizer.json, or vocab.json and merges.txt in the class `spelled`."""
    kind: type[PreTrainedTokenizerBase] = PreTrainedTokenizerFast
    if not (folder / "tokenizer.json").is_file():
        if not (folder / "vocab.json").is_file() or not (folder / "merges.txt").is_file():
            raise WeightsError(
                f"{folder}: no tokenizer.json, nor vocab.json with merges.txt; copy the tokenizer files."
            )
        kind = spelled
        _check_merges(folder)
    try:
        tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
        tokenizer("a"), special_ids(tokenizer)  # damage shows here
    # The Rust parser raises bare Exception on damaged files, and its panics are no Exception at all.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        raise WeightsError(f"{folder}: damaged tokenizer files ({first_line(error)}).") from None
    tokenizer.init_kwargs.pop("auto_map", None)  # it names remote code, which no copy of ours may ask for
    return tokenizer


def _check_merges(folder: Path) -> None:
    """Every merge joins two entries of the vocabulary into a third. The Rust code aborts where one is missing."""
    vocab, merges = read_json(folder / "vocab.json"), folder / "merges.txt"
    with readable(merges, "text"):
        lines = merges.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        pieces = line.rstrip("\r").split(" ")
        if not line or line.startswith("#version"):
            continue
        if len(pieces) == 2 and all(piece in vocab for piece in (*pieces, "".join(pieces))):
            continue
        renamed = next((name for name in vocab if re.fullmatch(r"<pad_\d+>", name)), None)
        if renamed is not None:
            raise WeightsError(
                f"{folder}: vocab.json renames entries that merges.txt needs ({renamed} is {vocab[renamed]}), as the "
                "tokenizer_dream folder of the paper's authors does. Use the base model's own tokenizer files and "
                f"give the id: roles={{'void': {vocab[renamed]}}} (--roles void={vocab[renamed]})."
            )
        raise WeightsError(
            f"{merges}: line {number} does not join two entries of vocab.json; copy both again."
        )


# Which ids are not text


_added: "WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, dict[int, str], frozenset[int]]]"
_added = WeakKeyDictionary()


def _added_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[int, str], frozenset[int]]:
    """(every added token with its spelling, those of them that are special); a tokenizer that grew is read again."""
    size = len(tokenizer)
    known = _added.get(tokenizer)
    if known is None or known[0] != size:
        entries = tokenizer.added_tokens_decoder
        named = set(tokenizer.all_special_ids)
        spelled = {token: entry.content for token, entry in entries.items()}
        spelled |= {token: str(tokenizer.convert_ids_to_tokens(token)) for token in named - entries.keys()}
        special = named | {token for token, entry in entries.items() if entry.special}
        known = _added[tokenizer] = (size, spelled, frozenset(special))
    return known[1], known[2]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that are no text: the named specials and every added token marked special."""
    return _added_tokens(tokenizer)[1]


def reserved_ids(tokenizer: PreTrainedTokenizerBase, roles: Roles | None = None) -> frozenset[int]:
    """Ids that typed text never becomes: added tokens, special tokens and tokens with a role."""
    return frozenset(_added_tokens(tokenizer)[0]) | (frozenset() if roles is None else roles.all())


# Text as ids


class SpecialTokenError(ConfigError):
    """Typed text spells a special token in a way that cannot be kept as text."""


_LOCK = (
    threading.Lock()
)  # whether special tokens are split is a state of the tokenizer, which threads may share


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
    reserved = reserved_ids(tokenizer, roles)
    cuts = [0, len(text)]
    for _ in range(32):
        pieces = [text[start:end] for start, end in pairwise(cuts)]
        with _LOCK:
            encoded: Any = tokenizer(
                pieces, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
            )
        ids: list[int] = []
        found: set[tuple[int, int]] = set()
        for base, tokens, spans in zip(cuts, encoded["input_ids"], encoded["offset_mapping"], strict=False):
            ids += tokens
            for token, (start, end) in zip(tokens, spans, strict=True):
                unknown = (
                    token == tokenizer.unk_token_id and text[base + start : base + end] != tokenizer.unk_token
                )
                if token in reserved and not unknown:  # unknown: letters that the vocabulary lacks
                    found.add((base + start, base + end))
        if not found:
            return ids
        if any(end - start < 2 for start, end in found):
            break
        cuts = sorted({*cuts}.union((start + end) // 2 for start, end in found))
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
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in messages]
    contents = [turn["content"] for turn in turns]
    text = _render(tokenizer, turns)
    parts = _template_parts(tokenizer, turns)
    reserved = reserved_ids(tokenizer, roles) - {tokenizer.unk_token_id}
    own = [token for part in parts[::2] for token in raw_ids(tokenizer, part) if token in reserved]
    ids = raw_ids(tokenizer, text)
    if [token for token in ids if token in reserved] == own and not _spell(tokenizer, contents, reserved):
        return ids
    pieces = _match_parts(text, parts, contents)
    if pieces is None:
        raise SpecialTokenError(
            "this chat template rewrites the text of messages, so a special token typed there cannot be kept as text; "
            "remove it from the messages, or render the prompt yourself and use raw=True (--raw)."
        )
    ids = []
    for number, piece in enumerate(pieces):
        ids += encode_text(tokenizer, piece, roles=roles) if number % 2 else raw_ids(tokenizer, piece)
    return ids


def chat(prompt: str | Messages, *, system: str | None = None) -> list[dict[str, str]]:
    """A prompt as checked messages, the system prompt first. `developer` is another word for `system`."""
    given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    turns: list[dict[str, str]] = []
    for index, turn in enumerate(given):
        fields = turn if isinstance(turn, Mapping) else {}
        if not isinstance(fields.get("role"), str) or not isinstance(fields.get("content"), str):
            raise ConfigError(f"messages[{index}]: {shown(turn)} needs the text fields 'role' and 'content'.")
        if fields["role"] not in CHAT_ROLES:
            raise ConfigError(
                f"messages[{index}]: role {shown(fields['role'])} is unknown; use one of {', '.join(CHAT_ROLES)}."
            )
        role = "system" if fields["role"] == "developer" else fields["role"]
        turns.append({"role": role, "content": fields["content"]})
    if not turns or not turns[-1]["content"].strip():
        raise ConfigError("prompt is empty; give at least one character.")
    if turns[-1]["role"] == "assistant":
        raise ConfigError(f"messages[{len(turns) - 1}] is an assistant turn; end with the turn to answer.")
    if system is not None and turns[0]["role"] == "system":
        raise ConfigError("system prompt given twice: drop system=... or messages[0].")
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def _render(tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, str]]) -> str:
    """The conversation through the chat template, which transformers runs in a Jinja sandbox."""
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # whatever the template does wrong, or refuses with raise_exception
        raise ConfigError(f"the chat template refuses these messages ({first_line(error)}).") from None


def _template_parts(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Mapping[str, str]]) -> list[str]:
    """What the template itself writes for messages of these roles: template text and numbers of contents in turn.

    They come from the same conversation with a marker in place of each content; a blank content is kept, because
    templates test for it.
    """
    marker = "zqcontent"
    while any(marker in turn["content"] for turn in turns):
        marker += "zq"
    marked = [
        {**turn, "content": f"{marker}{index}zq" if turn["content"].strip() else turn["content"]}
        for index, turn in enumerate(turns)
    ]
    return re.split(rf"{marker}(\d+)zq", _render(tokenizer, marked))


_STRIPPED: tuple[Callable[[str], str], ...] = (  # what templates do to a content
    lambda text: text,
    lambda text: text.strip(),
    lambda text: text.lstrip(),
    lambda text: text.rstrip(),
    lambda text: text.strip("\n"),
    lambda text: text.lstrip("\n"),
    lambda text: text.rstrip("\n"),
)


def _match_parts(text: str, parts: Sequence[str], contents: Sequence[str]) -> list[str] | None:
    """The rendered text as template text and contents in turn; None if it is not `parts` with contents put in."""
    pieces, at = [parts[0]], len(parts[0])
    if not text.startswith(parts[0]):
        return None
    for number, following in zip(parts[1::2], parts[2::2], strict=True):
        forms = (strip(contents[int(number)]) for strip in _STRIPPED)
        form = next((form for form in forms if text.startswith(form + following, at)), None)
        if form is None:
            return None
        pieces += [form, following]
        at += len(form) + len(following)
    return pieces if at == len(text) else None


def _spell(tokenizer: PreTrainedTokenizerBase, contents: Sequence[str], reserved: Collection[int]) -> bool:
    """Whether a content holds the spelling of a reserved token."""
    spelled = _added_tokens(tokenizer)[0]
    names = [spelled.get(token) or str(tokenizer.decode([token])) for token in reserved]
    return any(name and name in content for content in contents for name in names)
