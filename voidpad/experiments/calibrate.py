"""Choose VoidExpansion's thresholds and window for a checkpoint, from prompts alone.

One decode on the full canvas says how long each answer is. One probe at every candidate length says what the tail
looks like there. Every setting can then be replayed without the model: the canvas it would choose, whether the
answer fits (quality), and the token-passes it would cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from voidpad.decode.length import VoidExpansion
from voidpad.decode.loop import scatter
from voidpad.decode.propose import Bans
from voidpad.decode.rows import Rows
from voidpad.errors import ConfigError, RoleError
from voidpad.models import Model


@dataclass(frozen=True)
class Search:
    """What is tried."""

    start: int = 64
    limit: int = 512
    block: int = 32
    windows: tuple[int, ...] = (8, 16, 24, 32)
    levels: int = 24  # thresholds tried on each axis, at quantiles of what was seen
    fit: float = 0.98  # share of answers that must fit

    def __post_init__(self) -> None:
        start, limit, block = self.start, self.limit, self.block
        if block < 1 or start < 1 or start % block or limit % block:
            raise ConfigError(f"canvas={start} and limit={limit} must be multiples of block={block}.")
        if start > limit:
            raise ConfigError(f"limit={limit} is below canvas={start}; raise limit or lower canvas.")


@dataclass(frozen=True)
class Setting:
    """One choice, and what it would do."""

    window: int
    tau_nonvoid: float
    tau_gap: float
    fit: float  # share of rows whose full-canvas answer fits the chosen canvas
    cost: float  # token-passes relative to the full canvas
    canvas: float  # mean chosen length


@dataclass(frozen=True)
class Survey:
    """What the model showed: answer lengths and passes on the full canvas, tails at every candidate length."""

    lengths: Tensor  # (K,) candidate canvases
    prompt: Tensor  # (N,)
    answer: Tensor  # (N,) tokens, EOS included
    passes: Tensor  # (N,) passes on the full canvas
    void: Tensor  # (K, N, W) P(VOID) at the last W slots, the last slot last
    other: Tensor  # (K, N, W) the best other token


def survey(
    model: Model,
    prompts: Sequence[Sequence[int]],
    search: Search,
    *,
    rows: int = 64,
    tick: Callable[[], None] = lambda: None,
) -> Survey:
    """Decode every prompt once on the longest canvas and probe it at every length."""
    model.require_full_attention("VoidExpansion's calibration")
    if model.roles.void is None:
        raise RoleError(f"{model.name}: no VOID token to calibrate; use a VOID-trained checkpoint.")
    if not prompts:
        raise ConfigError("no prompts to calibrate on; give at least one.")
    for prompt in prompts:
        model.check_prompt(prompt, canvas=search.limit)
    lengths = torch.arange(search.start, search.limit + 1, search.block)
    full = model.plan("void", canvas=search.limit, block=search.block)
    done = {o.key: o for o in model.engine(rows=rows).run(prompts, full)}
    tick()
    batches = [prompts[first : first + rows] for first in range(0, len(prompts), rows)]
    tails = []
    for length in lengths.tolist():
        tails.append(torch.cat([_tail(model, batch, length, search) for batch in batches]))
        tick()
    void, other = torch.stack(tails).unbind(3)
    ordered = [done[key] for key in range(len(prompts))]
    return Survey(
        lengths,
        torch.tensor([len(p) for p in prompts]),
        torch.tensor([len(o.tokens) for o in ordered]),
        torch.tensor([o.passes_decode for o in ordered]),
        void,
        other,
    )


def _tail(model: Model, prompts: Sequence[Sequence[int]], length: int, search: Search) -> Tensor:
    """P(VOID) and the best other probability at the last slots of empty canvases (N, W, 2)."""
    width = max(search.windows)
    canvas = Rows.blank(prompts, length, model.roles)
    where = canvas.slots & (canvas.offset >= (canvas.stop - width)[:, None])
    logits = model.denoiser()(canvas, where)
    bans = Bans.of((), (), model.roles.mask, logits.shape[1], logits.device)
    seen = VoidExpansion().measure(logits, model.roles, bans).cpu()
    grid = scatter(where, seen)
    place = canvas.stop[:, None] - width + torch.arange(width)[None]
    picked = grid.gather(1, place.clamp(min=0)[:, :, None].expand(-1, -1, 2))
    return picked * (place >= canvas.prompt[:, None])[:, :, None]


def settings(seen: Survey, search: Search) -> list[Setting]:
    """Every window and pair of thresholds, replayed."""
    found = []
    for window in search.windows:
        # What the two thresholds are compared with, (K, N) each.
        slots = seen.lengths.clamp(max=window)[:, None].double()
        nonvoid = seen.other[:, :, -window:].sum(2) / slots
        gap = (seen.void - seen.other)[:, :, -window:].sum(2) / slots
        # No tail passes 0: that setting always keeps the full canvas, so every answer fits at least there.
        for upper, lower in product([0.0, *_levels(nonvoid, search.levels)], _levels(gap, search.levels)):
            found.append(_replay(seen, window, (nonvoid <= upper) & (gap >= lower), (upper, lower)))
    return found


def _levels(values: Tensor, count: int) -> list[float]:
    """Thresholds between the values seen: finer differences choose the same canvases."""
    steps = torch.linspace(0, 1, count, dtype=values.dtype)
    return sorted({float(f"{v:.6g}") for v in values.flatten().quantile(steps).tolist()})


def _replay(seen: Survey, window: int, enough: Tensor, taus: tuple[float, float]) -> Setting:
    """What a rule that stops at the first `enough` (K, N) costs and keeps."""
    last = len(seen.lengths) - 1
    chosen = torch.where(enough.any(0), enough.int().argmax(0), last)
    canvas = seen.lengths[chosen]
    row = seen.prompt + canvas
    probed = (seen.prompt[None] + seen.lengths[:, None]).cumsum(0).gather(0, chosen[None])[0]
    passes = torch.minimum(seen.passes, canvas)
    cost = probed + (passes - 1) * row  # the last probe is the first decoding pass
    full = seen.passes * (seen.prompt + seen.lengths[-1])
    share = (seen.answer <= canvas).double().mean()
    return Setting(window, *taus, float(share), float(cost.sum() / full.sum()), float(canvas.double().mean()))


def choose(found: Sequence[Setting], fit: float) -> Setting:
    """The cheapest setting that keeps enough answers whole; the one that keeps most if none does."""
    good = [s for s in found if s.fit >= fit]
    return min(good, key=lambda s: (s.cost, -s.fit)) if good else max(found, key=lambda s: (s.fit, -s.cost))


def frontier(found: Sequence[Setting]) -> list[Setting]:
    """Settings that no other beats in both fit and cost, cheapest first."""
    best: list[Setting] = []
    for setting in sorted(found, key=lambda s: (s.cost, -s.fit)):
        if not best or setting.fit > best[-1].fit:
            best.append(setting)
    return best


def fields(setting: Setting, search: Search) -> dict[str, float | int]:
    """The chosen setting as plan fields of `void-expansion`."""
    given = {"canvas": search.start, "limit": search.limit, "block": search.block}
    return {**given, **{name: getattr(setting, name) for name in ("window", "tau_nonvoid", "tau_gap")}}
