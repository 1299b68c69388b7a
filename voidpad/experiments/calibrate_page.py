"""The page of a calibration: what was measured, what every setting would cost, and which one was chosen."""

from __future__ import annotations

import json
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from voidpad.experiments.calibrate import HEADS, Calibration, fields, frontier
from voidpad.experiments.report.figures import LOOK, svg_bytes
from voidpad.experiments.report.pages import html_page, markdown_table, md

LINE: Any = {"color": "black", "linestyle": "--", "linewidth": 0.8}
TEXT = """# {title}

{count} prompts ({prompts}). Each was decoded once on the full canvas of {limit} slots, which gives the length of its
answer ({answer:.1f} tokens on average), and probed once at each of {lengths} lengths from {start} in steps of {block}.
All {tried} settings were replayed on these numbers.

## The choice

**window {chosen.window}, tau_nonvoid {chosen.tau_nonvoid:.4g}, tau_gap {chosen.tau_gap:.4g}**: {chosen.fit:.1%} of the
answers fit, for {chosen.cost:.1%} of the token-passes of a fixed canvas of {limit}, on a canvas of {chosen.canvas:.1f}
slots on average. {missed}

{table}

![Answers that fit, by cost](trade_off)

Every dot is a setting, the line joins those that no other beats, the star is the chosen one. The dashed line is the
share of answers that must fit.

`voidpad calibrate --save FOLDER` writes the choice into the checkpoint's `voidpad.json`:

```
{values}
```
"""


def calibration_html(done: Calibration) -> str:
    """One file that needs nothing else."""
    chosen, search, seen = done.chosen, done.search, done.seen
    title = f"VoidExpansion thresholds for {done.model}" + (f" with {done.adapter}" if done.adapter else "")
    missed = f"No setting reaches the {search.fit:.0%} asked for; this one keeps most."
    text = TEXT.format(
        title=md(title),
        count=len(seen.answer),
        prompts=md(done.prompts),
        answer=float(seen.answer.double().mean()),
        limit=search.limit,
        lengths=len(seen.lengths),
        start=search.start,
        block=search.block,
        tried=len(done.tried),
        chosen=chosen,
        missed="" if chosen.fit >= search.fit else missed,
        table="\n".join(markdown_table(HEADS, done.rows)),
        values=json.dumps({"void-expansion": fields(chosen, search)}, indent=1),
    )
    with matplotlib.rc_context(LOOK):
        return html_page(title, text, {"trade_off": svg_bytes(trade_off(done))})


def trade_off(done: Calibration) -> Figure:
    """Answers that fit against token-passes."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for window in sorted({setting.window for setting in done.tried}):
        same = [setting for setting in done.tried if setting.window == window]
        at = [100 * setting.cost for setting in same], [100 * setting.fit for setting in same]
        axes.scatter(*at, s=10, alpha=0.5, linewidths=0, label=f"window {window}")
    best = frontier(done.tried)
    axes.plot([100 * one.cost for one in best], [100 * one.fit for one in best], color="black", linewidth=0.8)
    star: Any = {"s": 120, "marker": "*", "color": "black", "label": "chosen", "zorder": 3}
    axes.scatter([100 * done.chosen.cost], [100 * done.chosen.fit], **star)
    axes.axhline(100 * done.search.fit, **LINE)
    axes.set(xlabel=f"token-passes, % of a fixed canvas of {done.search.limit}", ylabel="answers that fit, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return figure
