"""Length rules that follow predictions of EOS: DAEDAL and rho-EOS. Neither needs a trained VOID token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from voidpad.decode.fields import setting
from voidpad.decode.length import LengthRule, Look, Signal, canvas_setting, limit_setting, total
from voidpad.decode.propose import Bans, pick, softmax, without
from voidpad.decode.rows import Rows
from voidpad.errors import ConfigError
from voidpad.roles import Roles


def _check() -> Any:
    return setting(32, at_least=1, help="EOS slots counted from the tail")


def _limit_holds_canvas(canvas: int, limit: int) -> None:
    if limit < canvas:
        raise ConfigError(f"limit={limit} is below canvas={canvas}; raise limit or lower canvas.")


class EosReader(LengthRule):
    """What DAEDAL and rho-EOS measure at every slot: whether EOS is the best token (0 or 1), the probability of
    EOS, and the probability of the best token that is not banned. The first two ignore bans, and no probability is
    renormalised after them."""

    trims = False

    def watch(self, rows: Rows) -> Tensor:
        return rows.canvas.slots

    def measure(self, logits: Tensor, roles: Roles, bans: Bans) -> Tensor:
        z = logits.double()
        p = softmax(z)
        best = p.gather(1, pick(without(z, bans.ban)).clamp(min=0)[:, None])[:, 0]
        return torch.stack([(pick(z) == roles.eos).double(), p[:, roles.eos], best], 1)

    def patience(self, block: int, steps: int) -> int:
        return 1


def tail_confidence(rows: Rows, grid: Tensor, check: int) -> Tensor:
    """The sum of the EOS probabilities of the `check` rightmost slots whose best token is EOS, wherever they are.

    It is divided by `check`, even where there are fewer such slots.
    """
    hit = grid[:, :, 0] * rows.canvas.slots
    from_right = hit.flip(1).cumsum(1).flip(1)
    return total(grid[:, :, 1] * hit * (from_right <= check)) / check


@dataclass(frozen=True)
class Daedal(EosReader):
    """DAEDAL: probe and append masks until the tail's EOS confidence reaches `enough`, then append `check // 2` EOS.

    While decoding, if that confidence is below `content`, each pass turns the row's least sure mask below `low` into
    `grow` masks. The paper's letters: `grow` is E, `enough` is c1 and `content` is c2. Needs no training.
    """

    canvas: int = canvas_setting(64)
    limit: int = limit_setting(2048)
    grow: int = setting(8, at_least=1, help="masks that DAEDAL adds at a time")
    low: float = setting(0.1, at_least=0, at_most=1, help="DAEDAL adds masks at a slot less sure than this")
    enough: float = setting(0.5, at_least=0, at_most=1, help="EOS confidence that ends DAEDAL's first stage")
    content: float = setting(
        0.9, at_least=0, at_most=1, help="EOS confidence above which DAEDAL grows nothing"
    )
    check: int = _check()
    probes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _limit_holds_canvas(self.canvas, self.limit)

    def read(self, rows: Rows, grid: Tensor) -> Signal:
        return {"conf": tail_confidence(rows, grid, self.check)}

    def revise(self, before: Rows, rows: Rows, look: Look, block: int) -> Rows:
        return self._grow(before, self._probe(before, rows, look, block), look).advance(block)

    def _probe(self, before: Rows, rows: Rows, look: Look, block: int) -> Rows:
        canvas, room = rows.canvas, rows.limit - rows.canvas.length
        done = before.probing & ((look.signal["conf"] >= self.enough) | (room <= 0))
        canvas = canvas.resize(
            canvas.stop + torch.where(before.probing & ~done, room.clamp(max=self.grow), 0)
        )
        tail = torch.where(done, room.clamp(min=0, max=self.check // 2), 0)
        canvas = canvas.resize(canvas.stop + tail, canvas.roles.eos)
        rows = replace(rows, canvas=canvas, probing=before.probing & ~done)
        return replace(rows, entry=torch.where(before.probing, rows.window(block).sum(1), rows.entry))

    def _grow(self, before: Rows, rows: Rows, look: Look) -> Rows:
        length = before.canvas.length
        settled = before.settled | (~before.probing & (length >= before.limit))
        allowed = ~before.probing & ~settled & (look.signal["conf"] < self.content) & (length < before.limit)
        unsure = look.frontier & ~look.chosen & (look.grid[:, :, 2] < self.low) & allowed[:, None]
        at = look.grid[:, :, 2].masked_fill(~unsure, torch.inf).argmin(1)
        canvas = rows.canvas.insert(at, torch.where(unsure.any(1), self.grow - 1, 0))
        canvas = canvas.resize(torch.minimum(canvas.stop, canvas.prompt + rows.limit))
        return replace(rows, canvas=canvas, settled=settled)

    def final_prefix(self, rows: Rows) -> Tensor:
        return rows.committed_prefix  # growth happens at a masked slot, never left of the first mask


def density(rows: Rows, grid: Tensor, check: int) -> Tensor:
    """Share (B,) of masked slots whose best token is EOS; 0 where no mask is left.

    `grid[:, :, 0]` is 1 where the best token is EOS. `check` has no use here; `tail_confidence` needs it.
    """
    masked = rows.canvas.masked
    return (grid[:, :, 0] * masked).sum(1) / masked.sum(1).clamp(min=1)


@dataclass(frozen=True)
class Rounding:
    """Arithmetic that turns a density gap into whole segments; it decides at exact multiples of the interval."""

    dtype: torch.dtype = torch.float64
    slack: float = 1e-6


def at_end(rows: Rows) -> Tensor:
    """New slots go to the end of the canvas."""
    return rows.canvas.stop


def before_first_eos(rows: Rows) -> Tensor:
    """Where new slots go (B,): before the leftmost EOS, which moves right, as in the authors' code.

    Where there is no EOS they go to the end.
    """
    return rows.canvas.first_eos


def constant(segments: Tensor) -> Tensor:
    """Size of a length edit, in units, for a density gap of so many segments (B,): always one unit."""
    return torch.ones_like(segments)


def linear(segments: Tensor) -> Tensor:
    """Size of a length edit, in units: one unit for each segment of the gap."""
    return segments


def exponential(segments: Tensor) -> Tensor:
    """Twice as many units for each further segment of the gap."""
    return 2.0 ** (segments - 1)


SIGNALS = {"density": density, "tail_confidence": tail_confidence}
INSERTIONS = {"end": at_end, "before_first_eos": before_first_eos}
ROUNDINGS = {"tolerant": Rounding(), "float32": Rounding(torch.float32, 0.0)}
EDIT_GROWTHS: dict[str, Callable[[Tensor], Tensor]] = {
    "const": constant,
    "linear": linear,
    "exp": exponential,
}


@dataclass(frozen=True)
class RhoEos(EosReader):
    """rho-EOS: grow while few masked slots predict EOS, shrink while many do, during decoding. Needs no training.

    A contraction can drop tokens that are already written, so an answer's beginning is final only in its first
    `minimum` slots until the length is settled.
    """

    canvas: int = canvas_setting(64)
    limit: int = limit_setting(2048)
    unit: int = setting(8, at_least=1, help="smallest length edit of rho-EOS")
    rho_low: float = setting(0.4, at_least=0, at_most=1, help="expand below this EOS density")
    rho_high: float = setting(0.6, at_least=0, at_most=1, help="contract above this EOS density")
    interval: float = setting(0.1, above=0, help="width of a density segment")
    edit_growth: Callable[[Tensor], Tensor] = setting(
        exponential, choices=EDIT_GROWTHS, help="const, linear or exp: how edits grow with the gap"
    )
    cap: int = setting(8, at_least=1, help="largest multiple of the unit in one edit")
    adjust: int = setting(64, at_least=0, help="passes that may edit the length")
    check: int = _check()
    minimum: int = setting(
        -1, at_least=-1, authors=0, help="shortest canvas a contraction leaves (-1: one block)"
    )
    signal: Callable[[Rows, Tensor, int], Tensor] = setting(
        density, choices=SIGNALS, help="what rho-EOS reads of EOS: density or tail_confidence"
    )
    insert_at: Callable[[Rows], Tensor] = setting(
        at_end,
        choices=INSERTIONS,
        authors="before_first_eos",
        help="where rho-EOS adds masks: end or before_first_eos",
    )
    rounding: Rounding = setting(
        Rounding(),
        choices=ROUNDINGS,
        authors="float32",
        help="how rho-EOS counts whole intervals of a gap: tolerant or float32",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _limit_holds_canvas(self.canvas, self.limit)
        if self.rho_low > self.rho_high:
            raise ConfigError(f"rho_low={self.rho_low} must not exceed rho_high={self.rho_high}.")

    def in_blocks(self, block: int) -> Self:
        return replace(self, minimum=block) if self.minimum < 0 else self

    def read(self, rows: Rows, grid: Tensor) -> Signal:
        return {"rho": self.signal(rows, grid, self.check)}

    @property
    def passes(self) -> float:  # type: ignore[override]
        """Unlimited with insertions at the end, where such a row always ends by itself; else the limit."""
        return math.inf if self.insert_at is at_end else self.limit

    def revise(self, before: Rows, rows: Rows, look: Look, block: int) -> Rows:
        length = before.canvas.length
        last = before.limit.clamp(max=self.adjust)  # passes that may edit
        settled = before.settled | (length >= before.limit) | (before.decoded >= last)
        rows = replace(rows.advance(block), settled=settled)
        change = torch.where(settled, 0, self.change(look.signal["rho"]))
        least = torch.full_like(length, block if self.minimum < 0 else self.minimum).minimum(length)
        kept = torch.maximum(length + change.clamp(max=0), least)
        added = torch.minimum(change.clamp(min=0), (before.limit - length).clamp(min=0))
        canvas = rows.canvas.resize(torch.where(change < 0, rows.canvas.prompt + kept, rows.canvas.stop))
        edited = replace(rows, canvas=canvas.insert(self.insert_at(replace(rows, canvas=canvas)), added))
        return replace(edited, open=torch.minimum(edited.open, edited.canvas.stop))

    def change(self, rho: Tensor) -> Tensor:
        """Slots to add (positive) or to drop (negative) at this density."""
        rho = rho.to(self.rounding.dtype)
        gap = torch.where(rho < self.rho_low, self.rho_low - rho, rho - self.rho_high)
        segments = (gap / self.interval - self.rounding.slack).ceil().clamp(min=1)
        size = self.unit * self.edit_growth(segments).clamp(max=self.cap).long()
        return torch.where(rho < self.rho_low, size, torch.where(rho > self.rho_high, -size, 0))

    def final_prefix(self, rows: Rows) -> Tensor:
        """A contraction keeps the first `minimum` slots; an insertion can move the leftmost EOS to the right."""
        safe = torch.full_like(rows.canvas.prompt, max(0, self.minimum))
        if self.insert_at is before_first_eos:
            safe = torch.minimum(safe, rows.canvas.first_eos - rows.canvas.prompt)
        elif self.insert_at is not at_end:  # a function of the user's own may insert anywhere
            safe = torch.zeros_like(safe)
        return torch.where(rows.settled, rows.committed_prefix, torch.minimum(safe, rows.committed_prefix))
