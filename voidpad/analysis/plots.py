"""Pictures of the analyses. Each function returns a figure; `save` writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from voidpad.analysis.attention import Mass
from voidpad.analysis.eos_prior import LEAST, Curves
from voidpad.analysis.overflow import Rate, Trajectory

LOOK = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}
# Colours that stay apart for readers with any colour vision (Okabe and Ito).
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8A8A8A"
NAMES = {"eos": "EOS", "void": "VOID"}


def save(figure: Figure, path: Path) -> None:
    """A PNG (or what the name ends in), whole or not at all."""
    beside = path.with_name(f".{path.name}.tmp{path.suffix}")
    try:
        figure.savefig(beside, dpi=130)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _figure(
    width: float, height: float, columns: int = 1, *, share: bool = False
) -> tuple[Figure, list[Axes]]:
    with matplotlib.rc_context(LOOK):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, columns, sharey=share, squeeze=False)[0]
    return figure, list(axes)


def prior(curves: Sequence[Curves], *, title: str = "", least: int = LEAST) -> Figure:
    """F, p and q by slot, one panel a token; slots with few examples are shaded."""
    figure, panels = _figure(4.6 * len(curves), 3.4, len(curves), share=True)
    for axes, one in zip(panels, curves, strict=True):
        slot = np.arange(1, len(one.cdf) + 1)
        name, back = NAMES[one.token], "i-1" if one.token == "eos" else "i-2"
        axes.plot(slot, one.cdf, color=GREY, linewidth=4, alpha=0.5, label=f"$F({back})$: lengths")
        axes.plot(slot, one.target, color=ORANGE, linewidth=1.4, label=f"$p_i$: {name} in padded data")
        axes.plot(slot, one.model, color=BLUE, linewidth=1.4, label="$q_i$: model, empty canvas")
        few = (one.count < least).nonzero()
        if len(few):
            axes.axvspan(int(few[0]) + 0.5, len(slot) + 0.5, color="#000000", alpha=0.06, linewidth=0)
        mean, most = one.gap("model", "target", least=least)
        axes.set_title(f"{name}: gap of $q$ and $p$ {mean:.3f} mean, {most:.3f} at most")
        axes.set(xlabel="slot $i$", xlim=(1, len(slot)), ylim=(-0.02, 1.02))
        axes.legend(
            frameon=False, loc="lower right" if one.target.nan_to_num(0).max() > 0.5 else "upper left"
        )
    panels[0].set_ylabel("probability or share")
    if title:
        figure.suptitle(title)
    return figure


def heat(
    some: Sequence[Trajectory], *, titles: Sequence[str], token: str = "eos", slots: int | None = None
) -> Figure:
    """P(EOS) or P(VOID) of every slot (across) at every pass (down), with what was written when."""
    figure, panels = _figure(4.4 * len(some) + 0.6, 4.4, len(some), share=True)
    for axes, one, title in zip(panels, some, titles, strict=True):
        image = _heat(axes, one, f"p_{token}", slots)
        axes.set_title(title)
    panels[0].set_ylabel("pass")
    bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.02)
    bar.set_label(f"P({NAMES[token]})")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _heat(axes: Axes, one: Trajectory, name: str, slots: int | None) -> AxesImage:
    grid = one.probability(name)
    passes, width = grid.shape
    extent = (0.5, width + 0.5, passes + 0.5, 0.5)
    image = axes.imshow(
        grid, aspect="auto", cmap="magma", vmin=0, vmax=1, extent=extent, interpolation="nearest"
    )
    roles = one.trace.header.roles
    ids = np.array(one.trace.result.ids)
    written = one.order >= 0
    slot = np.arange(1, len(ids) + 1)
    for kind, color, label in (
        (ids == roles.eos, ORANGE, "EOS written"),
        ((ids != roles.eos), "#56B4E9", "word written"),
    ):
        chosen = kind & written
        axes.scatter(slot[chosen], one.order[chosen] + 1, s=5, color=color, linewidths=0, label=label)
    first = [np.nan if m.first_eos is None else m.first_eos + 1 for m in one.moments]
    axes.plot(first, np.arange(1, passes + 1), color="white", linewidth=1.2)
    axes.plot([], [], color=GREY, linewidth=1.2, label="first EOS (white)")
    if 0 < one.stage1 < one.stage1 + one.stage2:
        axes.axhline(one.stage1 + 0.5, color=GREEN, linewidth=1.2, linestyle="--")
        axes.plot([], [], color=GREEN, linestyle="--", linewidth=1.2, label="stage 1 | stage 2")
    axes.set(xlabel="slot", xlim=(0.5, (slots or width) + 0.5))
    return image


def blocks(sets: Mapping[str, Sequence[Rate]]) -> Figure:
    """Share of overflown answers by block size, a line for each model."""
    figure, (axes,) = _figure(5.2, 3.2)
    for (name, found), color in zip(sets.items(), (RED, BLUE, GREEN, ORANGE), strict=False):
        x = range(len(found))
        axes.plot(x, [100 * rate.share for rate in found], "o-", color=color, label=name)
        axes.set_xticks(list(x), [str(rate.block) for rate in found])
    axes.set(xlabel="block size", ylabel="answers that overflow (%)", ylim=(-3, 103))
    axes.legend(frameon=False)
    return figure


def layers(before: Sequence[Mass], *, title: str = "") -> Figure:
    """Attention of masked slots on EOS keys, layer by pass, beside what even attention would give."""
    figure, (map_axes, line_axes) = _figure(9.2, 3.4, 2)
    passes = 1 + max(one.number for one in before)
    grid = torch.full((passes, len(before[0].eos)), torch.nan)
    even = torch.full((passes,), torch.nan)
    for number in range(passes):
        some = [one for one in before if one.number == number]
        grid[number] = torch.stack([one.eos for one in some]).mean(0)
        even[number] = sum(one.even for one in some) / len(some)
    depth = grid.shape[1]
    image = map_axes.imshow(
        grid.T, aspect="auto", origin="lower", cmap="magma", vmin=0, vmax=1, interpolation="nearest"
    )
    map_axes.set(
        xlabel="pass", ylabel="layer", yticks=_ticks(depth), yticklabels=[n + 1 for n in _ticks(depth)]
    )
    figure.colorbar(image, ax=map_axes).set_label("attention on EOS keys")
    shades = matplotlib.colormaps["viridis"]
    for layer in range(depth):
        line_axes.plot(
            grid[:, layer], color=shades(layer / max(1, depth - 1)), linewidth=1, label=f"layer {layer + 1}"
        )
    line_axes.plot(even, color="black", linestyle="--", linewidth=1.4, label="even attention")
    line_axes.set(xlabel="pass", ylim=(-0.02, 1.02))
    line_axes.legend(frameon=False, fontsize=7, ncols=2 if depth > 6 else 1)
    if title:
        figure.suptitle(title)
    return figure


def _ticks(depth: int) -> list[int]:
    return list(range(0, depth, max(1, depth // 8)))
