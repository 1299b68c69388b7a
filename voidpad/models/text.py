"""Tokenizers read from a folder, and prompts as token ids.

One rule holds everywhere a user's text becomes ids: what a person typed stays text. A message that contains
`<|im_end|>`, `<|mask|>` or the name of another special token cannot end a turn, forge one, or place a mask; only
the chat template may write special tokens. `encode_chat` and `encode_text` are the owners of this rule. `raw_ids` is
for text that a program rendered, where special tokens are meant.
"""

import functools
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import jinja2
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from voidpad.errors import ConfigError, WeightsError, reason
from voidpad.models.card import read_json
from voidpad.models.families.family import shown
from voidpad.roles import Roles

Messages = Sequence[Mapping[str, str]]
Span = tuple[int, int]  # of characters

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
LARGEST_TOKENIZER = 500_000_000  # bytes
MOST_CUTS = 5_000  # special tokens typed in one prompt
_TEMPLATE_SECONDS = 5.0
_TEMPLATE_LETTERS = 1_000_000
_TEMPLATE_NUMBER = 1_000_000  # the largest number written in a template


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
    for name in ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"):
        if (folder / name).is_file() and (folder / name).stat().st_size > LARGEST_TOKENIZER:
            raise WeightsError(f"{folder / name}: is larger than any tokenizer; copy the file again.")
    try:
        tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
        tokenizer("a"), len(tokenizer), tokenizer.get_vocab(), special_ids(tokenizer)  # damage shows here
    # The Rust parser raises bare Exception on damaged files, and its panics are no Exception at all.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        raise WeightsError(f"{folder}: damaged tokenizer files ({reason(error)}).") from None
    tokenizer.init_kwargs.pop("auto_map", None)  # it names remote code, which no copy of ours may ask for
    return tokenizer


def _check_merges(folder: Path) -> None:
    """Every merge joins two entries of the vocabulary into a third. The Rust code aborts where one is missing."""
    vocab = read_json(folder / "vocab.json")
    try:
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"{folder / 'merges.txt'}: cannot be read ({error}).") from None
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#version"):
            continue
        pieces = line.rstrip("\r").split(" ")
        missing = [piece for piece in (*pieces, "".join(pieces)) if piece not in vocab]
        if len(pieces) == 2 and not missing:
            continue
        renamed = next((name for name in vocab if re.fullmatch(r"<pad_\d+>", name)), None)
        if renamed is not None and len(pieces) == 2:
            raise WeightsError(
                f"{folder}: vocab.json renames entries that merges.txt needs ({renamed} is {vocab[renamed]}), as the "
                "tokenizer_dream folder of the paper's authors does. Use the base model's own tokenizer files and "
                f"give the id: roles={{'void': {vocab[renamed]}}} (--roles void={vocab[renamed]})."
            )
        raise WeightsError(
            f"{folder / 'merges.txt'}: line {number} does not join two entries of vocab.json; copy both files again."
        )


# Which ids are not text


_added_ids: "WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, frozenset[int], frozenset[int]]]"
_added_ids = WeakKeyDictionary()


def _added(tokenizer: PreTrainedTokenizerBase) -> tuple[frozenset[int], frozenset[int]]:
    """(every added token, those of them that are special); a tokenizer that grew is read again."""
    size = len(tokenizer)
    known = _added_ids.get(tokenizer)
    if known is None or known[0] != size:
        added = tokenizer.added_tokens_decoder
        special = {token for token, entry in added.items() if entry.special} | set(tokenizer.all_special_ids)
        known = _added_ids[tokenizer] = (size, frozenset(added) | special, frozenset(special))
    return known[1], known[2]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that are no text: the named specials and every added token marked special."""
    return _added(tokenizer)[1]


def reserved_ids(tokenizer: PreTrainedTokenizerBase, roles: Roles | None = None) -> frozenset[int]:
    """Ids that typed text never becomes: added tokens, special tokens and tokens with a role."""
    return _added(tokenizer)[0] | (frozenset() if roles is None else roles.all())


# Text as ids


class SpecialTokenError(ConfigError):
    """Typed text spells a special token in a way that cannot be kept as text."""


def raw_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Rendered text as ids: spellings of special tokens become their ids, nothing is added."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str, *, roles: Roles | None = None) -> list[int]:
    """Typed text as ids: spellings of special tokens stay text, nothing is added."""
    return _encode(tokenizer, text, [(0, len(text))], reserved_ids(tokenizer, roles)) if text else []


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
    text = _render(tokenizer, turns)
    reserved = reserved_ids(tokenizer, roles)
    parts = _skeleton(tokenizer, turns)
    content = _content_spans(text, parts, [turn["content"] for turn in turns])
    if content is not None:
        return _encode(tokenizer, text, content, reserved)
    # The template rewrites contents. Its result is safe if it has the template's own special tokens and no others.
    ids = raw_ids(tokenizer, text)
    own = [token for token in raw_ids(tokenizer, "text".join(parts[::2])) if token in reserved]
    if [token for token in ids if token in reserved] == own and not _spells(tokenizer, reserved, turns):
        return ids
    raise SpecialTokenError(
        "this chat template rewrites the text of messages, so a special token typed there cannot be kept as text; "
        "remove it from the messages, or render the prompt yourself and use raw=True (--raw)."
    )


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


def _encode(
    tokenizer: PreTrainedTokenizerBase, text: str, content: Sequence[Span], reserved: Collection[int]
) -> list[int]:
    """The ids of a text whose `content` spans must not become reserved ids.

    A reserved id that touches content is broken up: the text is cut in the middle of its spelling and the parts are
    encoded apart. Text without such ids is encoded in one piece, so its ids are the tokenizer's own.
    """
    starts = [start for start, _ in content]
    unknown = tokenizer.unk_token_id

    def typed(token: int, start: int, end: int) -> bool:
        """Whether a reserved id covers characters of the content, not counting blanks it swallowed beside it."""
        if token == unknown and text[start:end] != tokenizer.unk_token:
            return False  # characters that the vocabulary lacks
        bare = text[start:end].strip()
        if bare:
            start = text.index(bare, start)
            end = start + len(bare)
        last = bisect_right(starts, end - 1) - 1
        return start < end and last >= 0 and content[last][1] > start

    cuts = [0, len(text)]
    for _ in range(32):  # one round is enough unless the rest of a spelling is a special token too
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        encoded: Any = tokenizer(pieces, add_special_tokens=False, return_offsets_mapping=True)
        ids, fresh = [], set()
        for base, tokens, spans in zip(cuts, encoded["input_ids"], encoded["offset_mapping"], strict=False):
            ids += tokens
            for token, (start, end) in zip(tokens, spans, strict=True):
                if token in reserved and typed(token, base + start, base + end):
                    fresh.add((token, base + start, base + end))
        if not fresh:
            return ids
        single = [text[start:end] for _, start, end in fresh if end - start < 2]
        if single or len(fresh) + len(cuts) > MOST_CUTS:
            spelled = single[0] if single else text[slice(*next(iter(fresh))[1:])]
            raise SpecialTokenError(
                f"the text spells the special token {shown(spelled)} too often, or in a single character, to be "
                "kept as text; remove it."
            )
        # After the first character the rest reads as a tokenizer without special tokens would read it; a run of
        # blanks is halved, because its rest could be the same token again.
        cuts = sorted(
            {*cuts}.union(
                start + 1 if text[start:end].strip() else (start + end) // 2 for _, start, end in fresh
            )
        )
    raise SpecialTokenError(
        "the text spells special tokens in a way that cannot be kept as text; remove them."
    )


_skeletons: "WeakKeyDictionary[PreTrainedTokenizerBase, dict[Any, list[str]]]" = WeakKeyDictionary()


def _skeleton(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Mapping[str, str]]) -> list[str]:
    """What the template itself writes for messages of these roles.

    The parts alternate template text and the number of the message whose content stands between. They come from the
    same conversation with a marker in place of each content; a blank content is kept, because templates test for it.
    """
    marker = "zqcontent"
    while any(marker in turn["content"] for turn in turns):
        marker += "zq"
    marked = [
        {**turn, "content": f"{marker}{index}zq" if turn["content"].strip() else turn["content"]}
        for index, turn in enumerate(turns)
    ]
    kept = _skeletons.setdefault(tokenizer, {})
    key = (tokenizer.get_chat_template(), *((turn["role"], turn["content"]) for turn in marked))
    if key not in kept:
        if len(kept) >= 256:
            kept.clear()
        kept[key] = re.split(rf"{marker}(\d+)zq", _render(tokenizer, marked))
    return kept[key]


_STRIPPED: tuple[Callable[[str], str], ...] = (  # what templates do to a content
    lambda text: text,
    lambda text: text.strip(),
    lambda text: text.lstrip(),
    lambda text: text.rstrip(),
    lambda text: text.strip("\n"),
    lambda text: text.lstrip("\n"),
    lambda text: text.rstrip("\n"),
)


def _content_spans(text: str, parts: Sequence[str], contents: Sequence[str]) -> list[Span] | None:
    """Where the contents stand in a rendered text; None if it is not template text with contents put in.

    `parts` alternates template text and the number of a content. A template may strip a content.
    """
    steps: list[dict[int, Span]] = []  # for each part: end position -> the span that leads there
    ends: Iterable[int] = (0,)
    for index, part in enumerate(parts):
        if index % 2 == 0:
            choices = {part}
        elif int(part) < len(contents):
            choices = {strip(contents[int(part)]) for strip in _STRIPPED}
        else:
            return None
        steps.append(
            {
                at + len(choice): (at, at + len(choice))
                for at in ends
                for choice in choices
                if text.startswith(choice, at)
            }
        )
        ends = steps[-1]
    at, spans = len(text), []
    for index, step in reversed(list(enumerate(steps))):
        if at not in step:
            return None
        if index % 2 and step[at][0] < at:
            spans.append(step[at])
        at = step[at][0]
    return spans[::-1]


def _spells(tokenizer: PreTrainedTokenizerBase, reserved: Collection[int], turns: Messages) -> bool:
    """Whether a content holds the spelling of a reserved token."""
    names = [str(tokenizer.decode([token])) for token in reserved]
    return any(name and name in turn["content"] for turn in turns for name in names)


# Chat templates come with checkpoints, so they are programs of strangers: in a sandbox, and within limits.


class _TemplateLimit(Exception):
    """Raised inside a template that runs too long or takes too much memory."""


def _render(tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, str]]) -> str:
    """The conversation through the chat template, in bounded time and memory."""
    template = tokenizer.get_chat_template()
    _check_template(template)
    deadline, memory, events = time.monotonic() + _TEMPLATE_SECONDS, _peak_memory(), 0

    def watch(frame: Any, event: str, argument: Any) -> Any:
        nonlocal events
        events += 1
        if events % 256 == 0 and (time.monotonic() > deadline or _peak_memory() > memory + 1_000_000_000):
            raise _TemplateLimit
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        text: Any = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except (_TemplateLimit, MemoryError):
        raise WeightsError(
            f"the chat template does not end within {_TEMPLATE_SECONDS:g} seconds; use the released template, "
            "or raw=True (--raw)."
        ) from None
    except Exception as error:  # whatever the template does wrong, or refuses with raise_exception
        raise ConfigError(f"the chat template refuses these messages ({reason(error)}).") from None
    finally:
        sys.settrace(before)
    return str(text)


@functools.lru_cache(maxsize=8)
def _check_template(template: str) -> None:
    """Refuse a chat template that is damaged or too long, or that could take memory in one step.

    The latter means any multiplication or power and any number above `_TEMPLATE_NUMBER`.
    """
    if len(template) > _TEMPLATE_LETTERS:
        raise WeightsError(f"the chat template has {len(template):,} characters; use the released one.")
    try:
        tokens = list(jinja2.Environment(trim_blocks=True, lstrip_blocks=True).lex(template))
    except jinja2.TemplateError as error:
        raise WeightsError(f"the chat template is damaged ({error}); use the released one.") from None
    for line, kind, value in tokens:
        large = kind == "integer" and len(value) > 3 and int(value.replace("_", ""), 0) > _TEMPLATE_NUMBER
        if large or (kind == "operator" and value in ("*", "**")):
            raise WeightsError(
                f"the chat template has {shown(value)} in line {line}, which could take any amount of memory; use the "
                "released template."
            )


def _peak_memory() -> int:
    """Bytes this process has used at most; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
