"""Length rules: how long the canvas is, before decoding and while it goes on.

A rule reads a few numbers at the slots it watches (`measure`), turns them into one or two numbers for each
row (`signal`), says which rows may commit in this pass (`ready`) and edits the canvas after the commits
(`revise`). Probes are ordinary passes of rows that are not ready; a probe whose canvas is kept serves as the
first decoding pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from voidpad.decode.canvas import first
from voidpad.decode.propose import Bans, index, pick, softmax, without
from voidpad.decode.rows import Rows
from voidpad.roles import Roles

Signal = dict[str, Tensor]  # name -> (B,)


@dataclass(frozen=True)
class Look:
    """What a pass showed the length rule."""

    grid: Tensor  # (B, L, k) the rule's measures at the slots it watched, 0 elsewhere
    signal: Signal
    frontier: Tensor  # (B, L) the slots that could be written
    chosen: Tensor  # (B, L) the slots that were


class Length(Protocol):
    """The contract of every rule: `canvas` is the length it starts from, `limit` the longest it may reach.

    While rows decode, rules read `rows.limit`: a row may have a smaller limit than its rule.
    """

    @property
    def canvas(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def probes(self) -> bool: ...
    @property
    def passes(self) -> float: ...

    def patience(self, block: int, steps: int) -> int: ...
    def watch(self, rows: Rows) -> Tensor: ...
    def measure(self, logits: Tensor, roles: Roles, bans: Bans) -> Tensor: ...
    def signal(self, rows: Rows, grid: Tensor) -> Signal: ...
    def ready(self, rows: Rows, signal: Signal) -> Tensor: ...
    def revise(self, before: Rows, rows: Rows, look: Look, block: int) -> Rows: ...


def total(values: Tensor) -> Tensor:
    """The sum over slots, from left to right: padding then cannot change its last bit, as it does in sum()."""
    return values.cumsum(1)[:, -1]


class Quiet:
    """What a rule does unless it says otherwise: watch nothing, hold nobody back, edit nothing."""

    canvas: int
    probes = False
    passes = math.inf  # after this many a row stops, masks left or not

    @property
    def limit(self) -> int:
        return self.canvas

    def patience(self, block: int, steps: int) -> int:
        return max(block, steps) + 1

    def watch(self, rows: Rows) -> Tensor:
        return torch.zeros_like(rows.canvas.slots)

    def measure(self, logits: Tensor, roles: Roles, bans: Bans) -> Tensor:
        return logits[:, :0].double()

    def signal(self, rows: Rows, grid: Tensor) -> Signal:
        return {}

    def ready(self, rows: Rows, signal: Signal) -> Tensor:
        return ~rows.probing

    def revise(self, before: Rows, rows: Rows, look: Look, block: int) -> Rows:
        return rows.advance(block)


@dataclass(frozen=True)
class Fixed(Quiet):
    """A canvas of one length."""

    canvas: int = 512


@dataclass(frozen=True)
class VoidExpansion(Quiet):
    """Grow by one block until the tail of the empty canvas reads as padding; then decode."""

    canvas: int = 64
    limit: int = 512
    window: int = 16
    tau_nonvoid: float = 0.09
    tau_gap: float = -0.45
    mask_in_max: bool = False  # parity with the authors' code
    probes = True

    def watch(self, rows: Rows) -> Tensor:
        tail = rows.canvas.slots & (rows.canvas.offset >= (rows.canvas.stop - self.window)[:, None])
        return tail & rows.probing[:, None]

    def measure(self, logits: Tensor, roles: Roles, bans: Bans) -> Tensor:
        p = softmax(logits.double())
        others = roles.ids(["void"] if self.mask_in_max else ["void", "mask"])
        rest = p.index_fill(1, index(others, p.device), 0.0)
        return torch.stack([p[:, roles.ids(["void"])[0]], rest.max(1).values], 1)

    def signal(self, rows: Rows, grid: Tensor) -> Signal:
        count = self.watch(rows).sum(1).clamp(min=1)
        void, nonvoid = total(grid).unbind(1)
        return {"s_nonvoid": nonvoid / count, "s_gap": (void - nonvoid) / count}

    def ready(self, rows: Rows, signal: Signal) -> Tensor:
        enough = (signal["s_nonvoid"] <= self.tau_nonvoid) & (signal["s_gap"] >= self.tau_gap)
        return ~rows.probing | enough | (rows.canvas.length >= rows.limit)

    def revise(self, before: Rows, rows: Rows, look: Look, block: int) -> Rows:
        grows = before.probing & ~self.ready(before, look.signal)
        room = (rows.limit - rows.canvas.length).clamp(max=block)
        canvas = rows.canvas.resize(rows.canvas.stop + room * grows)
        return replace(rows, canvas=canvas, probing=grows).advance(block)


@dataclass(frozen=True)
class SmartCrop(Quiet):
    """One probe of the longest canvas; keep the blocks before the cumulative EOS probability passes tau."""

    canvas: int = 512
    tau: float = 0.95
    probes = True

    def watch(self, rows: Rows) -> Tensor:
        return rows.canvas.slots & rows.probing[:, None]

    def measure(self, logits: Tensor, roles: Roles, bans: Bans) -> Tensor:
        return softmax(logits.double())[:, roles.eos, None]

    def signal(self, rows: Rows, grid: Tensor) -> Signal:
        ended = 1 - (1 - grid[:, :, 0]).cumprod(1)  # slots that were not watched hold 0 and change nothing
        end = first(rows.canvas.slots & (ended >= self.tau), otherwise=rows.canvas.stop - 1)
        return {"length": end + 1 - rows.canvas.prompt}

    def revise(self, before: Rows, rows: Rows, look: Look, block: int) -> Rows:
        canvas = rows.canvas
        whole = torch.div(look.signal["length"] + block - 1, block, rounding_mode="floor") * block
        stop = torch.where(before.probing, canvas.prompt + torch.minimum(whole, canvas.length), canvas.stop)
        return replace(rows, canvas=canvas.resize(stop), probing=torch.zeros_like(rows.probing)).advance(
            block
        )


class EosReader(Quiet):
    """What DAEDAL and rho-EOS read: is EOS the best token, how likely, how sure is the best allowed token."""

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
    """EOS probability summed over the last `check` slots whose best token is EOS, divided by `check`."""
    hit = grid[:, :, 0] * rows.canvas.slots
    from_right = hit.flip(1).cumsum(1).flip(1)
    return total(grid[:, :, 1] * hit * (from_right <= check)) / check


@dataclass(frozen=True)
class Daedal(EosReader):
    """Grow until the tail predicts EOS, then grow where the model is unsure. Training-free."""

    canvas: int = 64
    limit: int = 2048
    grow: int = 8  # E: masks added at the end, or in place of one unsure mask
    low: float = 0.1  # a slot less sure than this asks for room
    enough: float = 0.5  # c1: tail confidence that ends the first stage
    content: float = 0.9  # c2: tail confidence above which nothing grows
    check: int = 32
    probes = True

    def signal(self, rows: Rows, grid: Tensor) -> Signal:
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


@dataclass(frozen=True)
class Trimmed:
    """Another rule, the canvas cut right after the leftmost EOS. Approximate: those masks were context."""

    inner: Length

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # asked for while a copy is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def revise(self, before: Rows, rows: Rows, look: Look, block: int) -> Rows:
        rows = self.inner.revise(before, rows, look, block)
        canvas = rows.canvas
        return replace(rows, canvas=canvas.resize(torch.minimum(canvas.stop, canvas.first_eos + 1)))


def density(rows: Rows, grid: Tensor, check: int) -> Tensor:
    """Share of masked slots whose best token is EOS; 0 where no mask is left."""
    masked = rows.canvas.masked
    return (grid[:, :, 0] * masked).sum(1) / masked.sum(1).clamp(min=1)


@dataclass(frozen=True)
class Rounding:
    """How a gap becomes whole segments: at exact multiples of the interval the precision decides."""

    dtype: torch.dtype = torch.float64
    slack: float = 1e-6


def at_end(rows: Rows) -> Tensor:
    return rows.canvas.stop


def before_first_eos(rows: Rows) -> Tensor:
    return rows.canvas.first_eos


SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "const": torch.ones_like,
    "linear": lambda segments: segments,
    "exp": lambda segments: 2.0 ** (segments - 1),
}


@dataclass(frozen=True)
class RhoEos(EosReader):
    """Grow while few masked slots predict EOS, shrink while many do, as decoding goes on. Training-free."""

    canvas: int = 64
    limit: int = 2048
    unit: int = 8
    rho_low: float = 0.4
    rho_high: float = 0.6
    interval: float = 0.1
    schedule: str = "exp"
    cap: int = 8  # largest multiple of the unit in one edit
    adjust: int = 64  # passes that may edit
    check: int = 32
    minimum: int | None = None  # shortest canvas contraction leaves; one block unless told
    read: Callable[[Rows, Tensor, int], Tensor] = density
    insert_at: Callable[[Rows], Tensor] = at_end
    rounding: Rounding = Rounding()

    def signal(self, rows: Rows, grid: Tensor) -> Signal:
        return {"rho": self.read(rows, grid, self.check)}

    @property
    def passes(self) -> float:  # type: ignore[override]
        """Growing at the end leaves no mask behind, so such a row always ends by itself."""
        return math.inf if self.insert_at is at_end else self.limit

    def revise(self, before: Rows, rows: Rows, look: Look, block: int) -> Rows:
        length = before.canvas.length
        last = before.limit.clamp(max=self.adjust)  # passes that may edit
        settled = before.settled | (length >= before.limit) | (before.decoded >= last)
        rows = replace(rows.advance(block), settled=settled)
        change = torch.where(settled, 0, self.change(look.signal["rho"]))
        least = torch.full_like(length, block if self.minimum is None else self.minimum).minimum(length)
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
        size = self.unit * SCHEDULES[self.schedule](segments).clamp(max=self.cap).long()
        return torch.where(rho < self.rho_low, size, torch.where(rho > self.rho_high, -size, 0))
