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
from pydantic import Field
from torch import Tensor

from voidpad.decode.propose import Bans, index, softmax
from voidpad.decode.rows import Rows, first
from voidpad.decode.rules import MOST_SLOTS, Rule
from voidpad.errors import PlanError
from voidpad.roles import Roles

Signal = dict[str, Tensor]  # name -> (B,)


@dataclass(frozen=True)
class LengthReading:
    """What one pass showed the length rule."""

    grid: Tensor  # (B, L, k) the rule's measures at the slots it watched, 0 elsewhere
    signal: Signal  # what `read` made of the grid


class LengthRule(Rule):
    """Base of length rules: a canvas of one length, no probes, no edits. Subclasses override what they change.

    A rule that can grow a canvas has a field `limit` and overrides `longest`, as `GrowingRule` does. While rows decode,
    it reads `rows.limit` instead: a row may have a smaller one.
    """

    canvas: int = Field(default=512, ge=1, le=MOST_SLOTS, description="canvas length")

    probes: ClassVar[bool] = False  # rows begin with passes that only choose the canvas length
    # False if the rule decides by the tail of the canvas, which trimming cuts away.
    trims: ClassVar[bool] = True
    appends: ClassVar[bool] = False  # slots may be added behind a canvas on which tokens are written
    settles_first: ClassVar[bool] = False  # the canvas keeps its length once a token is written
    keeps_prefix: ClassVar[bool] = False  # nothing left of the first mask changes any more

    @property
    def longest(self) -> int:
        """The longest canvas this rule can reach."""
        return self.canvas

    def in_blocks(self, block: int) -> Self:
        """The rule for this block size, lengths rounded to whole blocks where the rule needs that."""
        return self

    def bounded(self, room: int) -> Self:
        """The same rule with a canvas and a limit of at most `room` slots."""
        lengths = [name for name in ("canvas", "limit") if name in type(self).model_fields]
        cut = {name: room for name in lengths if getattr(self, name) > room}
        return self.replace(**cut) if cut else self

    def warnings(self, padding: str | None) -> list[str]:
        """Sentences about settings that run but mean little, for a model trained with this padding policy."""
        return []

    def patience(self, block: int, steps: int) -> int:
        """Decoding passes without any change after which a row counts as stalled."""
        return max(block, steps) + 1

    def most_passes(self) -> float:
        """A row stops after so many decoding passes, even with masks left."""
        return math.inf

    def probe_growth(self, block: int) -> int | None:
        """By how many slots the canvas grows from a probe to the next; None if its length changes in other ways too."""
        return None

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


def total(values: Tensor) -> Tensor:
    """Sum over slots (axis 1), from left to right. Unlike sum(), padding cannot change the last bit."""
    return values.cumsum(1)[:, -1]


def start_field(default: int, help: str = "canvas length at the start") -> int:
    """The field `canvas` of a length rule whose canvas changes."""
    field: int = Field(default, ge=1, le=MOST_SLOTS, description=help)
    return field


def _whole_blocks(canvas: int, block: int) -> None:
    if canvas % block:
        raise PlanError(
            f"canvas={canvas} is not a multiple of block={block}; use {block * -(-canvas // block)}.",
            field="canvas",
        )


class Fixed(LengthRule):
    """A canvas of one length."""

    kind: Literal["fixed"] = "fixed"

    settles_first = True
    keeps_prefix = True

    def in_blocks(self, block: int) -> Self:
        _whole_blocks(self.canvas, block)
        return self

    def probe_growth(self, block: int) -> int:
        return 0


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

    kind: Literal["append-blocks"] = "append-blocks"
    canvas: int = start_field(1, "canvas length at the start, rounded up to whole blocks")

    appends = True
    keeps_prefix = True

    def in_blocks(self, block: int) -> Self:
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

    kind: Literal["void-expansion"] = "void-expansion"
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
    settles_first = True
    keeps_prefix = True
    ignored: ClassVar[tuple[str, ...]] = ("void", "mask")  # roles that do not count as non-VOID tokens

    def probe_growth(self, block: int) -> int:
        return block

    def rounded_limit(self, block: int) -> int:
        """The limit in whole blocks."""
        return math.ceil(self.limit / block) * block

    def in_blocks(self, block: int) -> Self:
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
        rest = p.index_fill(1, index(roles.ids(self.ignored), p.device), 0.0)
        return torch.stack([p[:, roles.ids(["void"])[0]], rest.max(1).values], 1)

    def read(self, rows: Rows, grid: Tensor) -> Signal:
        count = self.watch(rows).sum(1).clamp(min=1)
        void, nonvoid = total(grid).unbind(1)
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

    kind: Literal["smart-crop"] = "smart-crop"
    canvas: int = start_field(512, "canvas length of the probe, before it is cropped")
    tau: float = Field(
        default=0.95, gt=0, le=1, description="cumulative EOS probability at which SmartCrop crops"
    )

    probes = True
    settles_first = True
    keeps_prefix = True

    def in_blocks(self, block: int) -> Self:
        _whole_blocks(self.canvas, block)
        return self

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
