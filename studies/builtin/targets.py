"""The targets of the built-in models, mean over the seeds that have been scored: which are met, and by how much.

    python -m studies.builtin.targets runs/seeds
    python -m studies.builtin.targets runs/seeds --pair "rainbow / 192" "void / 192"

`runs/seeds` is what `python -m studies.builtin.seeds` has trained and scored. With `--pair`, two methods problem by
problem instead, seed by seed: second minus first.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from studies.builtin.results import summary
from studies.builtin.seeds import scored
from voidpad.builtin.tasks import CANVAS
from voidpad.evaluate.scores import paired
from voidpad.experiments.report.compare import compare_runs
from voidpad.experiments.report.records import CellRecord
from voidpad.experiments.report.report_metrics import slot_passes

Seed = Mapping[str, list[CellRecord]]  # the cells of one seed, by `method / block`
SMALL, LARGE = "32", str(CANVAS)


@dataclass(frozen=True)
class Target:
    """A figure that should not be below `least`, or not above `most`. One that is not a number has missed."""

    text: str
    seen: float
    least: float | None = None
    most: float | None = None
    unit: str = " %"

    @property
    def row(self) -> str:
        low, high = self.least, self.most
        met = self.seen >= low if low is not None else self.seen <= high if high is not None else False
        bound = f"at least {low:g}{self.unit}" if low is not None else f"at most {high:g}{self.unit}"
        return f"| {self.text} | {bound} | {self.seen:.2f}{self.unit} | {'met' if met else '**missed**'} |"


def right(seeds: Sequence[Seed], name: str) -> float:
    """Right answers in percent, mean over seeds."""
    return fmean(100 * summary(seed[name])["mean"] for seed in seeds)


def passes(seeds: Sequence[Seed], name: str) -> float:
    return fmean(summary(seed[name])["passes_decode"] for seed in seeds)


def kept(seeds: Sequence[Seed], method: str) -> float:
    """The share of a method's block-32 score that it keeps at block = canvas; not a number where there is none."""
    small = right(seeds, f"{method} / {SMALL}")
    return 100 * right(seeds, f"{method} / {LARGE}") / small if small else math.nan


def slots(seeds: Sequence[Seed], name: str) -> float:
    """Canvas slots summed over all passes of an example, mean over tasks and seeds."""
    found = [slot_passes(record) for seed in seeds for record in seed[name]]
    return fmean(value for value in found if value is not None)


def targets(seeds: Sequence[Seed]) -> Iterator[Target]:
    """What VOID padding should reach, what EOS padding should lose, with the family's rules and with `unbanned`."""
    original, void = (right(seeds, f"{method} / {SMALL}") for method in ("original", "void"))
    yield Target("block 32: VOID padding", void, least=95)
    yield Target("block 32: VOID padding less the original", void - original, least=-1, unit=" points")
    yield Target("block = canvas: the original keeps of its block-32 score", kept(seeds, "original"), most=60)
    if f"eos control / {LARGE}" in seeds[0]:
        yield Target("block = canvas: the control keeps", kept(seeds, "eos control"), most=60)
    for method, rules in (("void", ""), ("void, unbanned scores", ", `--scores unbanned`")):
        yield Target(f"block = canvas: VOID padding keeps{rules}", kept(seeds, method), least=95)
        share = 100 * passes(seeds, f"{method} / {LARGE}") / CANVAS
        yield Target(f"block = canvas: passes of VOID padding{rules}", share, most=50)
    expanding = right(seeds, "void, expanding / 16")
    yield Target("VoidExpansion less the full canvas", expanding - void, least=-1.5, unit=" points")
    share = 100 * slots(seeds, "void, expanding / 16") / slots(seeds, f"void / {SMALL}")
    yield Target("VoidExpansion: slot-passes of the full canvas's", share, most=65)


def difference(first: Sequence[CellRecord], second: Sequence[CellRecord]) -> dict[str, Any]:
    """Second less first in points, problem by problem, with half its 95 % interval; problems won and lost."""
    others = {record.task: record.path for record in second}
    runs = [compare_runs(one.path, others[one.task]) for one in first if one.task in others]
    pairs = [pair for run in runs for task in run.tasks for pair in task.pairs]
    changes = [100 * (after["score"] - before["score"]) for before, after in pairs]
    points, half = paired(changes)
    won, lost = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    return {"points": points, "half": half, "won": won, "lost": lost}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.targets", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path, help="the folder of the seeds")
    parser.add_argument(
        "--pair", nargs=2, metavar="METHOD / BLOCK", help="two methods, as `seeds table` names them"
    )
    given = parser.parse_args()
    for family, seeds in sorted(scored(given.out).items()):
        if given.pair is None:
            print(f"\n{family}, scored seeds: {len(seeds)}\n\n| target | | seen | |\n|---|---|---|---|")
            print("\n".join(target.row for target in targets(list(seeds.values()))))
            continue
        for folder, seed in seeds.items():
            if missing := [name for name in given.pair if name not in seed]:
                print(f"{folder}: no cells of {missing[0]!r}; there are {'; '.join(sorted(seed))}")
                continue
            change = difference(*(seed[name] for name in given.pair))
            shown = f"{change['points']:+.1f} ± {change['half']:.1f} points"
            print(f"{folder}: {shown}, {change['won']} won, {change['lost']} lost")


if __name__ == "__main__":
    main()
