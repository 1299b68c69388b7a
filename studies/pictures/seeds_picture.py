"""Several seeds of one built-in family, each a point: right answers at a small block and at block = canvas, and passes.

    python studies/pictures/seeds_picture.py runs/seeds dream docs/img/seeds-dream.png

`runs/seeds` is what `python -m studies.builtin.seeds` has trained and scored.
"""

import sys
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from studies.builtin.results import summaries
from studies.builtin.seeds import scored
from voidpad.builtin.tasks import CANVAS
from voidpad.diagnose.plots import LOOK

SMALL = 32
METHODS = {
    "original": "EOS padding",
    "eos control": "more EOS padding",
    "rainbow": "Rainbow padding",
    "void": "VOID padding",
    "void, unbanned scores": "VOID padding,\nunbanned scores",
    "eos-last": "EOS padding,\neos-last",
}
COLOURS = {SMALL: "#7a7f87", CANVAS: "#1f7a5c"}
APART = 0.16  # of a row: the two blocks side by side


@matplotlib.rc_context(LOOK)  # type: ignore[arg-type]
def main(folder: str, family: str, path: str) -> None:
    seeds = [summaries(seed) for seed in scored(Path(folder))[family].values()]
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, constrained_layout=True)
    for axes, value, scale in zip(panels, ("mean", "passes_decode"), (100, 1), strict=True):
        for block, colour in COLOURS.items():
            for row, method in enumerate(METHODS):
                y = row + (APART if block == CANVAS else -APART)
                found = [scale * seed[f"{method} / {block}"][value] for seed in seeds]
                shown = f"block {block}" + (" = canvas" if block == CANVAS else "") if row == 0 else None
                axes.plot(found, [y] * len(found), "o", color=colour, markersize=6, alpha=0.75, label=shown)
                axes.plot([fmean(found)], [y], "|", color=colour, markersize=16, markeredgewidth=2)
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left, right = panels
    left.set(xlabel="right answers, %", xlim=(0, 103))
    left.set_yticks(range(len(METHODS)), METHODS.values())
    left.set_ylim(len(METHODS) - 0.5, -0.5)  # the first on top
    left.legend(frameon=False, loc="lower left")
    right.set(xlabel=f"passes, of {CANVAS}", xlim=(0, 1.03 * CANVAS))
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
