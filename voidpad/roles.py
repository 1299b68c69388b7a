"""Token roles: which ids mean mask, end of answer, nothing here."""

from collections.abc import Iterable
from dataclasses import dataclass

from voidpad.errors import RoleError


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

    def _role(self, name: str) -> list[int]:
        known = {"mask": [self.mask], "eos": [self.eos], "ends": list(self.ends), "rainbow": list(self.rainbow)}
        known["void"] = [] if self.void is None else [self.void]
        if name not in known:
            raise RoleError(f"role {name!r} is unknown; use one of {', '.join(sorted(known))} or a token id.")
        if not known[name]:
            raise RoleError(f"role {name!r}: this checkpoint has none. Pass {name}=<id> or use a VOID-trained model.")
        return known[name]
