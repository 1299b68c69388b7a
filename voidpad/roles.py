"""Token roles: which ids mean mask, end of answer, nothing here."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from voidpad.errors import RoleError

MASK_NAMES = ("<|mdm_mask|>", "<|mask|>", "[MASK]", "<mask>")
TURN_ENDS = ("<|eot_id|>", "<|im_end|>")
VOID_NAME = "<|void|>"
RAINBOW_NAMES = tuple(f"<|rainbow_{n}|>" for n in range(1, 7))  # rainbow token 0 is VOID itself
# Entries a vocabulary keeps for later use. The authors' LLaDA tokenizer renames the same ids to pad_n.
RESERVED = re.compile(r"<\|(?:reserved_token|reserved_special_token|pad|unused)_(\d+)\|>")


@dataclass(frozen=True)
class Roles:
    """Ids by meaning, resolved once and stored with the checkpoint."""

    mask: int
    eos: int
    ends: tuple[int, ...] = ()  # ids at which a text is cut; eos is always one of them
    void: int | None = None
    rainbow: tuple[int, ...] = ()  # R_0 .. R_{K-1}

    def __post_init__(self) -> None:
        if self.eos not in self.ends:
            object.__setattr__(self, "ends", (self.eos, *self.ends))
        clash = {self.mask, self.eos} & ({self.void, *self.rainbow} - {None})
        if clash or self.mask == self.eos:
            raise RoleError(f"roles overlap: {self}. mask, eos and void must be different ids.")

    def ids(self, names: Iterable[str | int]) -> tuple[int, ...]:
        """Role names (or plain ids) as ids, without repeats."""
        found: list[int] = []
        for name in names:
            found += [name] if isinstance(name, int) else self._role(name)
        return tuple(dict.fromkeys(found))

    def all(self) -> frozenset[int]:
        """Every id that has a role: none of them is text."""
        void = () if self.void is None else (self.void,)
        return frozenset((self.mask, *self.ends, *void, *self.rainbow))

    def _role(self, name: str) -> list[int]:
        known = {"mask": [self.mask], "eos": [self.eos], "void": [] if self.void is None else [self.void]}
        known |= {"ends": list(self.ends), "rainbow": list(self.rainbow)}
        if name not in known:
            raise RoleError(f"role {name!r} is unknown; use one of {', '.join(sorted(known))} or a token id.")
        if not known[name]:
            raise RoleError(
                f"role {name!r}: this checkpoint has none. Use one trained with it, a plan that does not name it "
                f'(original), or load(..., roles={{"{name}": <id>}}).'
            )
        return known[name]


def resolve(tokenizer: Any, config: Mapping[str, Any], *, rows: int) -> Roles:
    """Roles of a checkpoint that carries no card: by name, then reserved entries, then new tokens.

    `config` is the checkpoint's config.json, `rows` its embedding rows. A tokenizer without a reserved entry
    gets `<|void|>` and the rainbow names as new special tokens where the embedding has spare rows for them.
    """
    vocab = tokenizer.get_vocab()
    mask = _first(config.get("mask_token_id"), tokenizer.mask_token_id, *map(vocab.get, MASK_NAMES))
    eos = _first(tokenizer.eos_token_id, config.get("eos_token_id"))
    padding = _named(vocab) or _reserved(vocab) or _added(tokenizer, rows)
    found = {
        "mask": mask,
        "eos": eos,
        "ends": tuple(vocab[name] for name in TURN_ENDS if name in vocab),
        "void": padding[0] if padding else None,
        "rainbow": padding,
    }
    return build(found, rows=rows)


def build(values: Mapping[str, Any], *, rows: int) -> Roles:
    """Roles from plain values (a card, the command line), checked against the embedding."""
    unknown = sorted(set(values) - {field.name for field in fields(Roles)})
    if unknown:
        raise RoleError(f"role {unknown[0]!r} is unknown; use one of mask, eos, ends, void, rainbow.")
    for name in ("mask", "eos"):
        if values.get(name) is None:
            raise RoleError(
                f"role {name!r}: neither the config nor the tokenizer names one. Pass {name}=<id>."
            )
    lists = {name: tuple(values.get(name) or ()) for name in ("ends", "rainbow")}
    roles = Roles(mask=values["mask"], eos=values["eos"], void=values.get("void"), **lists)
    outside = sorted(i for i in roles.all() if not 0 <= i < rows)
    if outside:
        raise RoleError(
            f"role id {outside[0]} is outside the embedding (0 to {rows - 1}); pass an id inside it."
        )
    return roles


def _first(*candidates: int | None) -> int | None:
    return next((found for found in candidates if found is not None), None)


def _named(vocab: Mapping[str, int]) -> tuple[int, ...]:
    """VOID and the rainbow by our own names."""
    if VOID_NAME not in vocab:
        return ()
    return tuple(vocab[name] for name in (VOID_NAME, *RAINBOW_NAMES) if name in vocab)


def _reserved(vocab: Mapping[str, int]) -> tuple[int, ...]:
    """The first seven reserved entries, in the order of their numbers."""
    found = [(int(match[1]), token) for name, token in vocab.items() if (match := RESERVED.fullmatch(name))]
    return tuple(token for _, token in sorted(found)[: 1 + len(RAINBOW_NAMES)])


def _added(tokenizer: Any, rows: int) -> tuple[int, ...]:
    """New special tokens in spare embedding rows; no row is added and no entry renamed."""
    spare = max(0, rows - len(tokenizer))
    names = list((VOID_NAME, *RAINBOW_NAMES)[:spare])
    tokenizer.add_tokens(names, special_tokens=True)
    return tuple(tokenizer.convert_tokens_to_ids(names))
