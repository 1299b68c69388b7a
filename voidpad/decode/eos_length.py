"""Length rules that follow predictions of EOS: DAEDAL and rho-EOS. Neither needs a trained VOID token."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from voidpad.decode.length import GrowingRule, LengthReading, Signal, start_field, total
from voidpad.decode.propose import Bans, pick, softmax, without
from voidpad.decode.rows import Rows
from voidpad.decode.rules import MOST_PASSES, MOST_SLOTS
from voidpad.errors import PlanError
from voidpad.roles import Roles


class EosReader(GrowingRule):
    """What DAEDAL and rho-EOS measure at every slot: whether EOS is the best token (0 or 1), the probability of
    EOS, and the probability of the best token that is not banned. The first two ignore bans, and no probability is
    renormalised after them."""

    canvas: int = start_field(64)
    limit: int = Field(default=2048, ge=1, le=MOST_SLOTS, description="longest canvas the rule may reach")
    check: int = Field(default=32, ge=1, le=MOST_SLOTS, description="EOS slots counted from the tail")

    trims = False

    @model_validator(mode="after")
    def _limit_holds_canvas(self) -> Self:
        if self.limit < self.canvas:
            raise PlanError(
                f"limit={self.limit} is below canvas={self.canvas}; raise limit or lower canvas.",
                field="limit",
            )
        return self

    def watch(self, rows: Rows) -> Tensor:
        return rows.slots

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
    hit = grid[:, :, 0] * rows.slots
    from_right = hit.flip(1).cumsum(1).flip(1)
    return total(grid[:, :, 1] * hit * (from_right <= check)) / check


class Daedal(EosReader):
    """DAEDAL: probe and append masks until the tail's EOS confidence reaches `enough`, then append `check // 2` EOS.

    While decoding, if that confidence is below `content`, each pass turns the row's least sure mask below `low` into
    `grow` masks. The paper's letters: `grow` is E, `enough` is c1 and `content` is c2. Needs no training.
    """

    kind: Literal["daedal"] = "daedal"
    grow: int = Field(default=8, ge=1, le=MOST_SLOTS, description="masks that DAEDAL adds at a time")
    low: float = Field(default=0.1, ge=0, le=1, description="DAEDAL adds masks at a slot less sure than this")
    enough: float = Field(
        default=0.5, ge=0, le=1, description="EOS confidence that ends DAEDAL's first stage"
    )
    content: float = Field(
        default=0.9, ge=0, le=1, description="EOS confidence above which DAEDAL grows nothing"
    )

    probes = True
    keeps_prefix = True  # growth happens at a masked slot, never left of the first mask

    def read(self, rows: Rows, grid: Tensor) -> Signal:
        return {"conf": tail_confidence(rows, grid, self.check)}

    def revise(self, before: Rows, rows: Rows, reading: LengthReading, block: int) -> Rows:
        # Masked, and not written in this pass.
        unsure = rows.open_masks(block) & (reading.grid[:, :, 2] < self.low)
        return self._grow(before, self._probe(before, rows, reading, block), reading, unsure).advance(block)

    def _probe(self, before: Rows, rows: Rows, reading: LengthReading, block: int) -> Rows:
        room = rows.limit - rows.length
        done = before.probing & ((reading.signal["conf"] >= self.enough) | (room <= 0))
        grown = torch.where(before.probing & ~done, room.clamp(max=self.grow), 0)
        tail = torch.where(done, room.clamp(min=0, max=self.check // 2), 0)
        rows = rows.resize(rows.stop + grown)
        rows = rows.resize(rows.stop + tail, rows.roles.eos)
        rows = replace(rows, probing=before.probing & ~done)
        return replace(rows, entry=torch.where(before.probing, rows.open_masks(block).sum(1), rows.entry))

    def _grow(self, before: Rows, rows: Rows, reading: LengthReading, unsure: Tensor) -> Rows:
        length = before.length
        settled = before.settled | (~before.probing & (length >= before.limit))
        allowed = (
            ~before.probing & ~settled & (reading.signal["conf"] < self.content) & (length < before.limit)
        )
        unsure = unsure & allowed[:, None]
        at = reading.grid[:, :, 2].masked_fill(~unsure, torch.inf).argmin(1)
        rows = rows.insert(at, torch.where(unsure.any(1), self.grow - 1, 0))
        rows = rows.resize(torch.minimum(rows.stop, rows.prompt + rows.limit))
        return replace(rows, settled=settled)


def density(rows: Rows, grid: Tensor) -> Tensor:
    """Share (B,) of masked slots whose best token is EOS (`grid[:, :, 0]` is 1 there); 0 where no mask is left."""
    masked = rows.masked
    return (grid[:, :, 0] * masked).sum(1) / masked.sum(1).clamp(min=1)


class RhoEos(EosReader):
    """rho-EOS: grow while few masked slots predict EOS, shrink while many do, during decoding. Needs no training.

    A contraction can drop tokens that are already written, so an answer's beginning is final only in its first
    `minimum` slots until the length is settled.
    """

    kind: Literal["rho-eos"] = "rho-eos"
    unit: int = Field(default=8, ge=1, le=MOST_SLOTS, description="smallest length edit of rho-EOS")
    rho_low: float = Field(default=0.4, ge=0, le=1, description="expand below this EOS density")
    rho_high: float = Field(default=0.6, ge=0, le=1, description="contract above this EOS density")
    interval: float = Field(default=0.1, gt=0, le=1, description="width of a density segment")
    edit_growth: Literal["const", "linear", "exp"] = Field(
        default="exp", description="const, linear or exp: how edits grow with the gap"
    )
    cap: int = Field(default=8, ge=1, le=MOST_SLOTS, description="largest multiple of the unit in one edit")
    adjust: int = Field(default=64, ge=0, le=MOST_PASSES, description="passes that may edit the length")
    minimum: int = Field(
        default=0, ge=0, le=MOST_SLOTS, description="shortest canvas a contraction leaves (0: one block)"
    )
    signal: Literal["density", "tail_confidence"] = Field(
        default="density", description="what rho-EOS reads of EOS: density or tail_confidence"
    )
    insert_at: Literal["end", "before_first_eos"] = Field(
        default="end", description="where rho-EOS adds masks: end or before_first_eos"
    )

    slack: ClassVar[float] = 1e-6  # a gap this little above a whole number of intervals counts as that number

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.rho_low > self.rho_high:
            raise PlanError(
                f"rho_low={self.rho_low} must not exceed rho_high={self.rho_high}.", field="rho_low"
            )
        return self

    def in_blocks(self, block: int) -> Self:
        return self if self.minimum else self.replace(minimum=block)

    def read(self, rows: Rows, grid: Tensor) -> Signal:
        if self.signal == "density":
            return {"rho": density(rows, grid)}
        return {"rho": tail_confidence(rows, grid, self.check)}

    def most_passes(self) -> float:
        """Unlimited with insertions at the end, where such a row always ends by itself; else the limit."""
        return math.inf if self.insert_at == "end" else self.limit

    def shortest(self, block: int) -> int:
        """The shortest canvas that a contraction leaves."""
        return self.minimum or block

    def revise(self, before: Rows, rows: Rows, reading: LengthReading, block: int) -> Rows:
        length = before.length
        last = before.limit.clamp(max=self.adjust)  # passes that may edit
        settled = before.settled | (length >= before.limit) | (before.decoded >= last)
        rows = replace(rows.advance(block), settled=settled)
        change = torch.where(settled, 0, self.change(reading.signal["rho"]))
        least = torch.full_like(length, self.shortest(block)).minimum(length)
        kept = torch.maximum(length + change.clamp(max=0), least)
        added = torch.minimum(change.clamp(min=0), (before.limit - length).clamp(min=0))
        rows = rows.resize(torch.where(change < 0, rows.prompt + kept, rows.stop))
        # The first EOS is the end where there is none.
        rows = rows.insert(rows.stop if self.insert_at == "end" else rows.first_eos, added)
        return replace(rows, block_start=torch.minimum(rows.block_start, rows.stop))

    def change(self, rho: Tensor) -> Tensor:
        """Slots to add (positive) or to drop (negative) at this density (B,)."""
        gap = torch.where(rho < self.rho_low, self.rho_low - rho, rho - self.rho_high)
        segments = (gap / self.interval - self.slack).ceil().clamp(min=1)
        growth = {"const": segments.clamp(max=1), "linear": segments, "exp": 2.0 ** (segments - 1)}
        size = self.unit * growth[self.edit_growth].clamp(max=self.cap).long()
        return torch.where(rho < self.rho_low, size, torch.where(rho > self.rho_high, -size, 0))

    def final_prefix(self, rows: Rows) -> Tensor:
        """A contraction keeps the first `minimum` slots; an insertion can move the leftmost EOS to the right."""
        safe = torch.full_like(rows.prompt, self.minimum)
        if self.insert_at == "before_first_eos":
            safe = torch.minimum(safe, rows.first_eos - rows.prompt)
        return torch.where(rows.settled, rows.committed_prefix, torch.minimum(safe, rows.committed_prefix))
