"""Pictures of the analyses. Each function returns a figure; `save` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from voidpad.diagnose.attention import EosAttention
from voidpad.diagnose.eos_prior import LEAST, Curves
from voidpad.diagnose.overflow import Trajectory
from voidpad.files import atomic_file

LOOK = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}
# Colours that stay apart for readers with any colour vision (Okabe and Ito).
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8A8A8A"
BLANK = "#E4E4E4"  # passes after a stop; slots that a pass had not, or did not record
HEAT = LinearSegmentedColormap.from_list("eos", ["#FFFFFF", "#FDD9B5", "#F9A14A", "#E8641B"])


def save(figure: Figure, path: Path) -> None:
    """A PNG (or what the name ends in), whole or not at all."""
    with atomic_file(path) as draft:
        figure.savefig(draft, dpi=130)


def _figure(
    width: float, height: float, columns: int = 1, *, share: bool = False
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns, sharey=share, squeeze=False)[0])


@matplotlib.rc_context(LOOK)  # type: ignore[arg-type]
def prior(curves: Sequence[Curves], *, title: str = "", least: int = LEAST) -> Figure:
    """F, p and q by slot, one panel a token; slots with few examples are shaded."""
    figure, panels = _figure(4.4 * len(curves), 3.2, len(curves), share=True)
    for axes, one in zip(panels, curves, strict=True):
        slot = np.arange(1, len(one.cdf) + 1)
        name, back = one.token.upper(), "i-1" if one.token == "eos" else "i-2"
        axes.plot(slot, one.cdf, color=GREY, linewidth=4, alpha=0.5, label=f"$F({back})$: answer lengths")
        axes.plot(slot, one.target, color=ORANGE, linewidth=1.4, label=f"$p_i$: {name} in padded data")
        axes.plot(slot, one.model, color=BLUE, linewidth=1.4, label=f"$q_i$: P({name}), empty canvas")
        few = (one.count < least).nonzero()
        if len(few):
            axes.axvspan(int(few[0]) + 0.5, len(slot) + 0.5, color="#000000", alpha=0.06, linewidth=0)
        mean, most = one.gap("model", "target", least=least)
        axes.set_title(f"{name} in slot $i$\n$|q - p|$ is {mean:.3f} on average, {most:.3f} at most")
        axes.set(xlabel="slot $i$", xlim=(1, len(slot)), ylim=(-0.02, 1.02))
        axes.legend(frameon=False, loc="center right" if float(one.model[-1]) < 0.5 else "lower right")
    panels[0].set_ylabel("probability or share")
    if title:
        figure.suptitle(title)
    return figure


@matplotlib.rc_context(LOOK)  # type: ignore[arg-type]
def lengths(prompt: Sequence[int], response: Sequence[int]) -> Figure:
    """How long the prompts and responses of training data are, and F(m) of the responses."""
    figure, (left, right) = _figure(9, 3.4, 2)
    left.hist([prompt, response], bins=60, label=["prompt", "response"])
    left.set(xlabel="tokens", ylabel="examples")
    left.legend(frameon=False)
    right.ecdf(response)
    right.set(xlabel="m", ylabel="F(m)", ylim=(0, 1))
    return figure


@matplotlib.rc_context(LOOK)  # type: ignore[arg-type]
def heat(some: Sequence[Trajectory]) -> Figure:
    """P(EOS) of every slot (across) at every pass (down), with what was written when."""
    figure, panels = _figure(4.2 * len(some) + 0.6, 4.2, len(some), share=True)
    handles: dict[str, Artist] = {}
    for axes, one in zip(panels, some, strict=True):
        grid = one.probability("p_eos")
        passes, width = grid.shape
        extent = (0.5, width + 0.5, passes + 0.5, 0.5)
        image = axes.imshow(
            grid, aspect="auto", cmap=HEAT, vmin=0, vmax=1, extent=extent, interpolation="nearest"
        )
        ids, slot = np.array(one.trace.result.ids), np.arange(1, len(one.order) + 1)
        written, ends = one.order >= 0, ids == one.trace.header.roles.eos
        for kind, color, label in ((ends, "black", "EOS written"), (~ends, BLUE, "word written")):
            chosen = kind & written
            axes.scatter(slot[chosen], one.order[chosen] + 1, s=6, color=color, linewidths=0, label=label)
        first = [np.nan if m.first_eos is None else m.first_eos + 1 for m in one.moments]
        axes.plot(first, np.arange(1, passes + 1), color="#7A3E9D", linewidth=1.2, label="first EOS")
        if one.stage1 and one.stage2_start is not None:
            begin = one.stage2_start + 0.5
            axes.axhline(begin, color=GREEN, linewidth=1.2, linestyle="--", label="stage 2 begins")
        axes.set(xlabel="slot", xlim=(0.5, width + 0.5), facecolor=BLANK)
        header, end = one.trace.header, "overflow" if one.overflow else f"{one.effective} tokens"
        axes.set_title(f"{header.model}, block {header.plan.get('block', '?')}: {end}")
        handles |= {label: mark for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    deepest = max(len(one.moments) for one in some)
    panels[0].set(ylabel="pass", ylim=(deepest + 0.5, 0.5))
    stopped = any(len(one.moments) < deepest for one in some)
    absent = any(np.isnan(one.probability("p_eos")).any() for one in some)
    if stopped or absent:
        why = ["stopped"] * stopped + ["no value"] * absent
        handles[" or ".join(why)] = Patch(color=BLANK)
    bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.02)
    bar.set_label("P(EOS)")
    columns = 3 if len(some) == 1 else 6
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)
    return figure


@matplotlib.rc_context(LOOK)  # type: ignore[arg-type]
def layers(seen: Sequence[EosAttention], *, title: str = "") -> Figure:
    """Attention of masked slots on EOS keys, layer by pass, beside what even attention would give."""
    figure, (chart, lines) = _figure(8.8, 3.2, 2)
    passes = 1 + max(one.number for one in seen)
    by_pass = [[one for one in seen if one.number == number] for number in range(passes)]
    grid = torch.stack([torch.stack([one.eos for one in some]).mean(0) for some in by_pass])
    even = [sum(one.even for one in some) / len(some) for some in by_pass]
    depth = grid.shape[1]
    ticks = list(range(0, depth, max(1, depth // 8)))
    image = chart.imshow(
        grid.T.numpy(), aspect="auto", origin="lower", cmap=HEAT, vmin=0, vmax=1, interpolation="nearest"
    )
    chart.set(xlabel="pass", ylabel="layer", yticks=ticks, yticklabels=[n + 1 for n in ticks])
    figure.colorbar(image, ax=chart).set_label("attention on EOS keys")
    shades = matplotlib.colormaps["viridis"]
    for layer in range(depth):
        shade = shades(0.9 * layer / max(1, depth - 1))
        lines.plot(grid[:, layer].numpy(), color=shade, linewidth=1.2, label=f"layer {layer + 1}")
    lines.plot(even, color="black", linestyle="--", linewidth=1.4, label="even attention")
    lines.set(xlabel="pass", ylim=(-0.02, 1.02), ylabel="attention on EOS keys")
    lines.legend(frameon=False, fontsize=7, ncols=1 if depth <= 8 else 3)
    if title:
        figure.suptitle(title)
    return figure
