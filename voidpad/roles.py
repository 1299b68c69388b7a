"""Token roles: which ids of a vocabulary are the mask, the end of an answer, and padding."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from voidpad.errors import RoleError

VOID_NAME = "<|void|>"
RAINBOW_NAMES = tuple(f"<|rainbow_{n}|>" for n in range(1, 7))  # rainbow token 0 is VOID itself
# Entries that a vocabulary keeps for later use. The authors' tokenizers rename such ids: <|pad_n|> for LLaDA, and
# <pad_n> for Dream, where the entries were runs of spaces.
RESERVED = re.compile(r"<\|(?:reserved_token|reserved_special_token|pad|unused)_(\d{1,6})\|>|<pad_(\d{1,6})>")
ROLE_NAMES = ("ends", "eos", "mask", "rainbow", "void")  # those that plans may name


@dataclass(frozen=True)
class RoleNames:
    """Spellings by which a tokenizer names roles. The defaults are common ones; a family adds its own."""

    mask: tuple[str, ...] = ("<|mdm_mask|>", "<|mask|>", "[MASK]", "<mask>", "<M>", "<|MASK|>", "|<MASK>|")
    ends: tuple[str, ...] = ("<|eot_id|>", "<|im_end|>", "<|role_end|>")  # of a turn in a conversation
    void: tuple[str, ...] = ()  # padding tokens that were trained like VOID, under another name than ours
    never: tuple[str, ...] = ()  # tokens of another decoding loop


@dataclass(frozen=True)
class Roles:
    """Ids by meaning, resolved once and stored with the checkpoint."""

    mask: int
    eos: int
    ends: tuple[int, ...] = ()  # ids at which a text is cut; eos is always one of them
    void: int | None = None
    rainbow: tuple[int, ...] = ()  # R_0 .. R_{K-1}
    never: tuple[int, ...] = ()  # tokens of another decoding loop, such as DreamOn's <|expand|>: never chosen

    def __post_init__(self) -> None:
        for name in ("ends", "rainbow", "never"):  # JSON and the command line give lists, or one id
            given = getattr(self, name) or ()
            object.__setattr__(self, name, (given,) if isinstance(given, int) else tuple(given))
        if self.eos not in self.ends:
            object.__setattr__(self, "ends", (self.eos, *self.ends))
        clash = {self.mask, self.eos} & ({self.void, *self.rainbow, *self.never} - {None})
        if clash or self.mask == self.eos:
            raise RoleError(f"roles overlap: {self}. mask, eos and void must be different ids.")

    def stored(self) -> dict[str, Any]:
        """The roles as JSON values, for files; `Roles(**values)` reads them."""
        values = asdict(self)
        if not self.never:
            del values["never"]  # most checkpoints have none, and older releases do not know it
        return values

    def ids(self, names: Iterable[str | int]) -> tuple[int, ...]:
        """Role names (or plain ids) as ids, without repeats."""
        ids: list[int] = []
        for name in names:
            if isinstance(name, int):
                ids.append(name)
                continue
            if name not in ROLE_NAMES:
                raise RoleError(
                    f"role {name!r} is unknown; use one of {', '.join(ROLE_NAMES)} or a token id."
                )
            value = getattr(self, name)
            if value is None or value == ():
                raise RoleError(
                    f"role {name!r}: this checkpoint has none. Use one trained with it, a plan that does not name it "
                    f'(original), or load(..., roles={{"{name}": <id>}}).'
                )
            ids += [value] if isinstance(value, int) else value
        return tuple(dict.fromkeys(ids))

    def all(self) -> frozenset[int]:
        """Every id that has a role: none of them is text."""
        void = () if self.void is None else (self.void,)
        return frozenset((self.mask, *self.ends, *void, *self.rainbow, *self.never))


def resolve(
    tokenizer: Any,
    config: Mapping[str, Any],
    *,
    rows: int,
    names: RoleNames | None = None,
    ids: Mapping[str, int] | None = None,
) -> Roles:
    """Roles of a checkpoint that carries no card: by name, then reserved entries, then new tokens.

    `config` is the checkpoint's config.json, `rows` its embedding rows, `names` the spellings of its family, `ids` the
    family's mask and eos where neither config nor tokenizer name them. A tokenizer without a reserved entry gets
    `<|void|>` and the rainbow names as new special tokens where the embedding has spare rows for them.
    """
    names, usual, vocab = names or RoleNames(), ids or {}, tokenizer.get_vocab()
    masks = [
        config.get("mask_token_id"),
        tokenizer.mask_token_id,
        *map(vocab.get, names.mask),
        usual.get("mask"),
    ]
    eos = [tokenizer.eos_token_id, config.get("eos_token_id"), usual.get("eos")]
    padding = [vocab[name] for name in (VOID_NAME, *names.void) if name in vocab][:1]
    if padding:
        padding += [vocab[name] for name in RAINBOW_NAMES if name in vocab]
    else:
        padding = _reserved(vocab) or _added(tokenizer, rows)
    values = {
        "mask": next((token for token in masks if token is not None), None),
        "eos": next((token for token in eos if token is not None), None),
        "ends": [vocab[name] for name in names.ends if name in vocab],
        "void": padding[0] if padding else None,
        "rainbow": padding,
        "never": [vocab[name] for name in names.never if name in vocab],
    }
    return build(values, rows=rows)


def build(values: Mapping[str, Any], *, rows: int) -> Roles:
    """Roles from plain values (a card, the command line), checked against the embedding."""
    known = [field.name for field in fields(Roles)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise RoleError(f"role {unknown[0]!r} is unknown; use one of {', '.join(known)}.")
    for name in ("mask", "eos"):
        if values.get(name) is None:
            raise RoleError(
                f"role {name!r}: neither the config nor the tokenizer names one. Pass {name}=<id>."
            )
    roles = Roles(**values)
    outside = sorted(i for i in roles.all() if not 0 <= i < rows)
    if outside:
        raise RoleError(
            f"role id {outside[0]} is outside the embedding (0 to {rows - 1}); pass an id inside it."
        )
    return roles


def _reserved(vocab: Mapping[str, int]) -> list[int]:
    """The first seven reserved entries, in the order of their numbers."""
    matches = ((RESERVED.fullmatch(name), token) for name, token in vocab.items())
    entries = [(int(match[1] or match[2]), token) for match, token in matches if match]
    return [token for _, token in sorted(entries)[: 1 + len(RAINBOW_NAMES)]]


def _added(tokenizer: Any, rows: int) -> list[int]:
    """New special tokens in spare embedding rows; no row is added and no entry renamed."""
    names = [VOID_NAME, *RAINBOW_NAMES][: max(0, rows - len(tokenizer))]
    tokenizer.add_tokens(names, special_tokens=True)
    return list(tokenizer.convert_tokens_to_ids(names))
