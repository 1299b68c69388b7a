"""The README's plot, from the figures in the package: python studies/pictures/pictures.py docs/img/blocks.png"""

import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from voidpad.builtin.tasks import shipped_results

# Name, label, colour and look. Rainbow and VOID nearly coincide: one is dashed and lies over the other.
SOLID, DASHED = {"linewidth": 2, "marker": "o"}, {"linewidth": 1.6, "marker": "D", "linestyle": (0, (4, 3))}
LINES = (
    ("original", "EOS padding (original)", "#c23b3b", SOLID),
    ("void", "VOID padding, banned, [EOS]Termination", "#1f7a5c", SOLID | {"linewidth": 4, "marker": "s"}),
    ("rainbow", "Rainbow padding", "#e69f00", DASHED),
)
APART = 0.09  # of a tick: so that the points stand side by side


def main(path: str) -> None:
    known = shipped_results()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for place, (name, label, colour, look) in enumerate(LINES):
        some = sorted(
            (int(key.split(" / ")[1]), cell) for key, cell in known.items() if key.split(" / ")[0] == name
        )
        x = [tick + APART * (place - 1) for tick in range(len(some))]
        means, bars = [100 * c["mean"] for _, c in some], [100 * c["half_width"] for _, c in some]
        style = {"color": colour, "markersize": 6, **look}
        left.errorbar(x, means, bars, label=label, capsize=3, elinewidth=1.2, **style)
        right.plot(x, [c["answer_tokens"] for _, c in some], **style)
        for axes in (left, right):
            axes.set_xticks(range(len(some)), [str(block) for block, _ in some])
    left.set(xlabel="block size (canvas 256)", ylabel="right answers, %", ylim=(0, 104))
    right.set(xlabel="block size (canvas 256)", ylabel="mean answer length, tokens", ylim=(0, 80))
    left.legend(frameon=False, loc="lower left")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
