"""The README's plot, from the figures that ship with the package: python scripts/pictures.py docs/img/blocks.png"""

import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from voidpad.tiny.demo import published

LINES = {"original": ("EOS padding (original)", "#c23b3b"), "rainbow": ("Rainbow padding", "#8a6fd1"),
         "void": ("VOID padding, banned, [EOS]Termination", "#1f7a5c")}  # fmt: skip


def main(path: str) -> None:
    known = published()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for name, (label, colour) in LINES.items():
        some = sorted(
            (int(key.split(" / ")[1]), cell) for key, cell in known.items() if key.split(" / ")[0] == name
        )
        ticks = [str(block) for block, _ in some]
        means, bars = [100 * c["mean"] for _, c in some], [100 * c["half_width"] for _, c in some]
        left.errorbar(ticks, means, bars, marker="o", capsize=3, label=label, color=colour, linewidth=2)
        right.plot(ticks, [c["answer_tokens"] for _, c in some], marker="o", color=colour, linewidth=2)
    left.set(xlabel="block size (canvas 192)", ylabel="right answers, %", ylim=(0, 104))
    right.set(xlabel="block size (canvas 192)", ylabel="mean answer length, tokens", ylim=(0, 80))
    left.legend(frameon=False, loc="lower left")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
