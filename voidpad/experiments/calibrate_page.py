"""The page of a calibration: what was measured, what every setting would cost, and which one was chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from voidpad.experiments.calibrate import HEADS, Calibration, fields, frontier, measures
from voidpad.experiments.report.figures import LOOK, file_bytes
from voidpad.experiments.report.render import html_figure, html_page


def calibration_html(done: Calibration) -> str:
    """One file that needs nothing else."""
    chosen, search, seen = done.chosen, done.search, done.seen
    whole = f"{chosen.fit:.1%} of the answers fit, for {chosen.cost:.1%} of the token-passes"
    missed = (
        ""
        if chosen.fit >= search.fit
        else f" No setting reaches the {search.fit:.0%} asked for; this one keeps most."
    )
    values = json.dumps({"void-expansion": fields(chosen, search)}, indent=1)
    title = f"VoidExpansion thresholds for {done.model}"
    parts = [
        f"<p>{len(seen.answer)} prompts ({escape(done.prompts)}). Each was decoded once on the full canvas of "
        f"{search.limit} slots, which gives the length of its answer, and probed once at each of {len(seen.lengths)} "
        f"lengths from {search.start} in steps of {search.block}. All {len(done.tried)} settings were replayed on "
        "these numbers.</p>",
        "<h2>The choice</h2>",
        f"<p><b>window {chosen.window}, tau_nonvoid {chosen.tau_nonvoid:.4g}, tau_gap {chosen.tau_gap:.4g}</b>: "
        f"{whole} of a fixed canvas of {search.limit}, on a canvas of {chosen.canvas:.1f} slots on average."
        f"{missed}</p>",
        _table(done),
        _figure(
            "Answers that fit, by cost",
            "Every dot is a setting, the line joins those that no other beats, the star is the "
            "chosen one. The dashed line is the share of answers that must fit.",
            _trade_off,
            done,
        ),
        "<h2>What was measured</h2>",
        _figure(
            "Length of the answers",
            "Tokens up to and with the EOS, on the full canvas. The dashed line is the mean "
            "canvas of the chosen setting.",
            _lengths,
            done,
        ),
        _figure(
            "The tail of an empty canvas",
            "Means over the last slots of the chosen window, one dot for each prompt and length. A "
            "canvas stops growing in the corner that the thresholds cut off: little probability outside VOID, and "
            "VOID ahead of the best other token.",
            _tails,
            done,
        ),
        "<h2>To keep it</h2>",
        "<p><code>voidpad calibrate --save FOLDER</code> writes this into the checkpoint's <code>voidpad.json</code>, "
        f"where the plan <code>void-expansion</code> finds it:</p><pre>{escape(values)}</pre>",
    ]
    return html_page(title, "\n".join(parts) + "\n", "tr.chosen { font-weight: bold; }")


def trade_off(done: Calibration) -> Figure:
    """Answers that fit against token-passes."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    _trade_off(figure.subplots(), done)
    return figure


def _table(done: Calibration) -> str:
    top = "".join(f"<th>{head}</th>" for head in HEADS)
    rows = [
        f'<tr class="{cells[0]}">' + "".join(f'<td class="number">{cell}</td>' for cell in cells) + "</tr>"
        for cells in done.rows
    ]
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _figure(title: str, caption: str, draw: Callable[[Axes, Calibration], None], done: Calibration) -> str:
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        draw(figure.subplots(), done)
        return html_figure(title, file_bytes(figure, "svg"), caption)


def _trade_off(axes: Axes, done: Calibration) -> None:
    for window in sorted({setting.window for setting in done.tried}):
        same = [setting for setting in done.tried if setting.window == window]
        at = [100 * setting.cost for setting in same], [100 * setting.fit for setting in same]
        axes.scatter(*at, s=10, alpha=0.5, linewidths=0, label=f"window {window}")
    best = frontier(done.tried)
    axes.plot([100 * one.cost for one in best], [100 * one.fit for one in best], color="black", linewidth=0.8)
    axes.scatter(
        [100 * done.chosen.cost],
        [100 * done.chosen.fit],
        s=120,
        marker="*",
        color="black",
        label="chosen",
        zorder=3,
    )
    axes.axhline(100 * done.search.fit, color="gray", linestyle="--", linewidth=0.8)
    axes.set(xlabel=f"token-passes, % of a fixed canvas of {done.search.limit}", ylabel="answers that fit, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def _lengths(axes: Axes, done: Calibration) -> None:
    edges = range(0, done.search.limit + done.search.block, done.search.block)
    axes.hist(done.seen.answer.tolist(), bins=list(edges))
    axes.axvline(done.chosen.canvas, color="black", linestyle="--", linewidth=0.8)
    axes.set(xlabel="tokens", ylabel="prompts")
    axes.grid(alpha=0.3)


def _tails(axes: Axes, done: Calibration) -> None:
    nonvoid, gap = measures(done.seen, done.chosen.window)
    room = (done.seen.lengths[:, None] >= done.seen.answer[None]).expand_as(nonvoid)
    for there, label, color in ((~room, "canvas shorter than the answer", "C3"), (room, "answer fits", "C0")):
        axes.scatter(
            nonvoid[there].tolist(),
            gap[there].tolist(),
            s=7,
            alpha=0.4,
            linewidths=0,
            color=color,
            label=label,
        )
    axes.axvline(done.chosen.tau_nonvoid, color="black", linestyle="--", linewidth=0.8)
    axes.axhline(done.chosen.tau_gap, color="black", linestyle="--", linewidth=0.8)
    low = min(-0.05, float(torch.minimum(gap.min(), torch.tensor(0.0))))
    axes.set(
        xlabel="best token other than VOID (at most tau_nonvoid)",
        ylabel="VOID minus that (at least tau_gap)",
        ylim=(low, 1.05),
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right")
