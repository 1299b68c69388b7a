"""Length rules: how long the canvas is at the start, and how it grows or shrinks during decoding.

In each pass a rule names the slots it wants logits for (`watch`), reduces each slot's logits to a few numbers
(`measure`), combines them into named numbers for each row (`read`), says which rows may commit tokens in
this pass (`ready`) and edits the canvas after the commits (`revise`). A probe is an ordinary pass of a row that
is not ready yet; a probe that leaves the canvas as it is serves as the first decoding pass too.

A rule also has `canvas` (the first length), `longest`, `bounded` (the same rule inside a smaller room) and
`final_prefix` (how much of the answer can no longer change).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from voidpad.decode.propose import Bans, marked, pick, softmax, without
from voidpad.decode.rows import Rows, first
from voidpad.decode.rules import MOST_PASSES, MOST_SLOTS, Rule
from voidpad.errors import PlanError
from voidpad.roles import Roles

Signal = dict[str, Tensor]  # name -> (B,)


@dataclass(frozen=True)
class LengthReading:
    """What one pass showed the length rule."""

    grid: Tensor  # (B, L, k) the rule's measures at the slots it watched, 0 elsewhere
    signal: Signal  # what `read` made of the grid


class LengthRule(Rule):
    """Base of length rules. It has a canvas of one length, without probes or edits, and makes none of the promises
    below (`keeps_length` and so on): a subclass overrides what it changes and states what holds for it.

    A rule that can grow a canvas has a field `limit` and overrides `longest`, as `GrowingRule` does. While rows decode,
    it reads `rows.limit` instead: a row may have a smaller one.
    """

    canvas: int = Field(default=512, ge=1, le=MOST_SLOTS, description="canvas length")

    probes: ClassVar[bool] = False  # rows begin with passes that only choose the canvas length
    # False if the rule decides by the tail of the canvas, which trimming cuts away.
    allows_trim: ClassVar[bool] = True
    appends: ClassVar[bool] = False  # slots may be added behind a canvas on which tokens are written
    keeps_length: ClassVar[bool] = False  # the canvas keeps its length once a token is written
    keeps_prefix: ClassVar[bool] = False  # nothing left of the first mask changes any more
    # Decoding passes without any change after which a row counts as stalled; None for one more than a block has.
    patience: ClassVar[int | None] = None

    @property
    def longest(self) -> int:
        """The longest canvas this rule can reach."""
        return self.canvas

    def fit_blocks(self, block: int) -> Self:
        """The rule for this block size; a canvas that keeps its length is a number of whole blocks."""
        if self.keeps_length and self.canvas % block:
            raise PlanError(
                f"canvas={self.canvas} is not a multiple of block={block}; use {block * -(-self.canvas // block)}.",
                field="canvas",
            )
        return self

    def bounded(self, room: int) -> Self:
        """The same rule with a canvas and a limit of at most `room` slots."""
        lengths = [name for name in ("canvas", "limit") if name in type(self).model_fields]
        cut = {name: room for name in lengths if getattr(self, name) > room}
        return self.replace(**cut) if cut else self

    def warnings(self, padding: str | None) -> list[str]:
        """Sentences about settings that run but mean little, for a model trained with this padding policy."""
        return []

    def most_passes(self) -> float:
        """A row stops after so many decoding passes, even with masks left."""
        return math.inf

    def watch(self, rows: Rows) -> Tensor:
        """The slots (B, L) whose logits the rule reads in this pass, besides those of the frontier."""
        return torch.zeros_like(rows.slots)

    def measure(self, logits: Tensor, roles: Roles, bans: Bans) -> Tensor:
        """Numbers (N, k) that the rule needs of the logits (N, V) at the watched slots."""
        return logits[:, :0].double()

    def read(self, rows: Rows, grid: Tensor) -> Signal:
        """Named numbers for each row from the measures (B, L, k); traces record them."""
        return {}

    def ready(self, rows: Rows, signal: Signal) -> Tensor:
        """Rows (B,) that may commit tokens in this pass; the others only probe."""
        return ~rows.probing

    def revise(self, before: Rows, rows: Rows, reading: LengthReading, block: int) -> Rows:
        """`rows` with the canvas edited. `rows` has this pass's tokens written; `before` is the state before them."""
        return rows.advance(block)

    def final_prefix(self, rows: Rows) -> Tensor:
        """How many leading canvas slots (B,) no later pass can change."""
        return rows.committed_prefix if self.keeps_prefix else torch.zeros_like(rows.prompt)


def ordered_sum(values: Tensor) -> Tensor:
    """Sum over slots (axis 1), from left to right. Unlike sum(), padding cannot change the last bit."""
    return values.cumsum(1)[:, -1]


def start_field(default: int, help: str = "canvas length at the start") -> int:
    """The field `canvas` of a length rule whose canvas changes."""
    field: int = Field(default, ge=1, le=MOST_SLOTS, description=help)
    return field


class Fixed(LengthRule):
    """A canvas of one length, with the promises that follow from it."""

    keeps_length = True
    keeps_prefix = True


class GrowingRule(LengthRule):
    """Base of length rules that may make a canvas longer."""

    limit: int = Field(default=512, ge=1, le=MOST_SLOTS, description="longest canvas the rule may reach")

    @property
    def longest(self) -> int:
        return self.limit


class AppendedBlocks(GrowingRule):
    """dLLM-Var's loop: one block at first; whenever the canvas is full and holds no EOS, one block more.

    No slot ever sees masks beyond its own block, so decoding differs from a canvas that has them. Spec rivals 3.5.
    """

    canvas: int = start_field(1, "canvas length at the start, rounded up to whole blocks")

    appends = True
    keeps_prefix = True

    def fit_blocks(self, block: int) -> Self:
        canvas = block * math.ceil(self.canvas / block)
        if canvas > self.limit:
            raise PlanError(
                f"limit={self.limit} does not hold {canvas} slots of whole blocks; raise limit.",
                field="limit",
            )
        return self.replace(canvas=canvas)

    def revise(self, before: Rows, rows: Rows, reading: LengthReading, block: int) -> Rows:
        full = ~rows.masked.any(1) & (rows.first_eos >= rows.stop)
        room = (rows.limit - rows.length).clamp(min=0, max=block)
        return rows.resize(rows.stop + torch.where(full, room, 0)).advance(block)


class VoidExpansion(GrowingRule):
    """Probe an empty canvas and grow it by one block until its tail is predicted to be VOID; then decode.

    The tail is the last `window` slots. Canvas and limit are rounded up to whole blocks.
    """

    canvas: int = start_field(64)
    window: int = Field(default=16, ge=1, le=MOST_SLOTS, description="tail slots that VoidExpansion reads")
    tau_nonvoid: float = Field(
        default=0.09,
        ge=0,
        le=1,
        description="largest mean probability of the best non-VOID token in the tail",
    )
    tau_gap: float = Field(
        default=-0.45, ge=-1, le=1, description="smallest mean of P(VOID) minus that probability"
    )

    probes = True
    keeps_length = True
    keeps_prefix = True
    ignored: ClassVar[tuple[str, ...]] = ("void", "mask")  # roles that do not count as non-VOID tokens

    def rounded_limit(self, block: int) -> int:
        """The limit in whole blocks."""
        return math.ceil(self.limit / block) * block

    def fit_blocks(self, block: int) -> Self:
        canvas = math.ceil(self.canvas / block) * block
        limit = self.rounded_limit(block)
        if canvas > limit:
            raise PlanError(
                f"limit={self.limit} gives {limit} slots, below the start of {canvas}; "
                "raise limit or lower canvas.",
                field="limit",
            )
        return self.replace(canvas=canvas, limit=limit)

    def warnings(self, padding: str | None) -> list[str]:
        said = []
        if padding not in ("void", None):
            said.append(
                f"the model was trained with {padding} padding; the VOID probability that VoidExpansion reads "
                "means nothing there."
            )
        if self.tau_gap <= -self.tau_nonvoid:
            said.append(
                f"tau_gap={self.tau_gap} cannot bind with tau_nonvoid={self.tau_nonvoid}; "
                "only the non-VOID test decides the canvas."
            )
        return said

    def watch(self, rows: Rows) -> Tensor:
        tail = rows.slots & (rows.offset >= (rows.stop - self.window)[:, None])
        return tail & rows.probing[:, None]

    def measure(self, logits: Tensor, roles: Roles, bans: Bans) -> Tensor:
        p = softmax(logits.double())
        rest = torch.where(marked(tuple(roles.ids(self.ignored)), p.shape[1], p.device), 0.0, p)
        return torch.stack([p[:, roles.ids(["void"])[0]], rest.max(1).values], 1)

    def read(self, rows: Rows, grid: Tensor) -> Signal:
        count = self.watch(rows).sum(1).clamp(min=1)
        void, nonvoid = ordered_sum(grid).unbind(1)
        return {"s_nonvoid": nonvoid / count, "s_gap": (void - nonvoid) / count}

    def ready(self, rows: Rows, signal: Signal) -> Tensor:
        enough = (signal["s_nonvoid"] <= self.tau_nonvoid) & (signal["s_gap"] >= self.tau_gap)
        return ~rows.probing | enough | (rows.length >= rows.limit)

    def revise(self, before: Rows, rows: Rows, reading: LengthReading, block: int) -> Rows:
        grows = before.probing & ~self.ready(before, reading.signal)
        added = (rows.limit - rows.length).clamp(max=block)
        rows = rows.resize(rows.stop + torch.where(grows, added, 0))
        return replace(rows, probing=grows).advance(block)


class SmartCrop(LengthRule):
    """Probe the longest canvas once; keep the blocks up to where the cumulative EOS probability reaches tau."""

    canvas: int = start_field(512, "canvas length of the probe, before it is cropped")
    tau: float = Field(
        default=0.95, gt=0, le=1, description="cumulative EOS probability at which SmartCrop crops"
    )

    probes = True
    keeps_length = True
    keeps_prefix = True

    def watch(self, rows: Rows) -> Tensor:
        return rows.slots & rows.probing[:, None]

    def measure(self, logits: Tensor, roles: Roles, bans: Bans) -> Tensor:
        return softmax(logits.double())[:, roles.eos, None]

    def read(self, rows: Rows, grid: Tensor) -> Signal:
        ended = 1 - (1 - grid[:, :, 0]).cumprod(1)  # slots that were not watched hold 0 and change nothing
        end = first(rows.slots & (ended >= self.tau), otherwise=rows.stop - 1)
        return {"length": torch.maximum(end + 1 - rows.prompt, rows.shortest)}

    def revise(self, before: Rows, rows: Rows, reading: LengthReading, block: int) -> Rows:
        whole = torch.div(reading.signal["length"] + block - 1, block, rounding_mode="floor") * block
        stop = torch.where(before.probing, rows.prompt + torch.minimum(whole, rows.length), rows.stop)
        return replace(rows.resize(stop), probing=torch.zeros_like(rows.probing)).advance(block)


# ------------------------------------------------- rules that follow predictions of EOS at every slot, in every pass
class EosReader(GrowingRule):
    """Base of DAEDAL and rho-EOS. At every slot they measure whether EOS is the best token (0 or 1), the probability
    of EOS, and that of the best token that is not banned. The first two ignore bans, and nothing is renormalised."""

    canvas: int = start_field(64)
    limit: int = Field(default=2048, ge=1, le=MOST_SLOTS, description="longest canvas the rule may reach")
    check: int = Field(default=32, ge=1, le=MOST_SLOTS, description="EOS slots counted from the tail")

    allows_trim = False
    patience = 1

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


def tail_confidence(rows: Rows, grid: Tensor, check: int) -> Tensor:
    """The sum of the EOS probabilities of the `check` rightmost slots whose best token is EOS, wherever they are.

    It is divided by `check`, even where there are fewer such slots.
    """
    hit = grid[:, :, 0] * rows.slots
    from_right = hit.flip(1).cumsum(1).flip(1)
    return ordered_sum(grid[:, :, 1] * hit * (from_right <= check)) / check


class Daedal(EosReader):
    """DAEDAL: probe and append masks until the tail's EOS confidence reaches `enough`, then append `check // 2` EOS.

    While decoding, if that confidence is below `content`, each pass turns the row's least sure mask below `low` into
    `grow` masks. The paper's letters: `grow` is E, `enough` is c1 and `content` is c2. Needs no training.
    """

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
        return replace(
            rows, entry_masks=torch.where(before.probing, rows.open_masks(block).sum(1), rows.entry_masks)
        )

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
    """The EOS density (B,): the share of masked slots whose best token is EOS; 0 where no mask is left."""
    masked = rows.masked
    return (grid[:, :, 0] * masked).sum(1) / masked.sum(1).clamp(min=1)


class RhoEos(EosReader):
    """rho-EOS: grow while few masked slots predict EOS, shrink while many do, during decoding. Needs no training.

    A contraction can drop tokens that are already written, so an answer's beginning is final only in its first
    `minimum` slots until the length is settled.
    """

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

    def fit_blocks(self, block: int) -> Self:
        return self if self.minimum else self.replace(minimum=block)

    def read(self, rows: Rows, grid: Tensor) -> Signal:
        if self.signal == "density":
            return {"rho": density(rows, grid)}
        return {"rho": tail_confidence(rows, grid, self.check)}

    def most_passes(self) -> float:
        """The limit where masks are inserted before the first EOS; infinite where rows end by themselves."""
        return math.inf if self.insert_at == "end" else self.limit

    def shortest(self, block: int) -> int:
        """The shortest canvas that a contraction leaves. `minimum` is 0 only in rules that no preset has fitted."""
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
        """All that is written, once the length is settled. Before, a contraction keeps only the first `minimum` slots,
        and an insertion can move the leftmost EOS to the right."""
        safe = torch.full_like(rows.prompt, self.minimum)
        if self.insert_at == "before_first_eos":
            safe = torch.minimum(safe, rows.first_eos - rows.prompt)
        return torch.where(rows.settled, rows.committed_prefix, torch.minimum(safe, rows.committed_prefix))
