"""Every interval of a report, computed again from the verdicts that it keeps.

    python -m studies.intervals runs/report/verdicts.jsonl.gz
    python -m studies.intervals verdicts.jsonl.gz --pair "void" "eos-last"

A line of the file is one task of one run. Without `--pair`, each method at each setting gets its mean over tasks with
the interval that the report prints. With `--pair`, two methods are compared problem by problem wherever both have the
same task at equal settings.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from voidpad.evaluate.intervals import mcnemar, mean_of_tasks, paired_bootstrap, wilson

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def setting(line: Line) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(line["fields"].items()))


def means(lines: Sequence[Line]) -> Iterator[str]:
    """Each method at each setting: the mean over tasks in percent, and its interval."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line["model"], line["method"], setting(line)), []).append(line)
    for name, tasks in groups.items():
        shares = []
        for line in tasks:
            right, count = sum(line["score"]), len(line["score"])
            low, high = wilson(right, count)
            shares.append((100 * right / count, (100 * low, 100 * high)))
        low, high = mean_of_tasks(shares)
        yield f"{' | '.join(name)} | {fmean([share for share, _ in shares]):.2f} [{low:.1f}, {high:.1f}]"


def paired(lines: Sequence[Line], first: str, second: str) -> Iterator[str]:
    """Second less first in points, for each setting that both have, all tasks together."""
    by_place = {(line["method"], line["task"], setting(line)): line for line in lines}
    changes: dict[str, list[float]] = {}
    for (method, task, at), line in by_place.items():
        other = by_place.get((second, task, at))
        if method != first or other is None:
            continue
        theirs = dict(zip(other["index"], other["score"], strict=True))
        for index, score in zip(line["index"], line["score"], strict=True):
            if index in theirs:
                changes.setdefault(at, []).append(100 * (theirs[index] - score))
    for at, found in changes.items():
        low, high = paired_bootstrap(found)
        lost, won = sum(change < 0 for change in found), sum(change > 0 for change in found)
        shown = f"{fmean(found):+.2f} [{low:+.2f}, {high:+.2f}] points"
        yield f"{at} | {shown} | {lost} lost, {won} won, McNemar p {mcnemar(lost, won):.3g}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m studies.intervals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verdicts", type=Path)
    parser.add_argument("--pair", nargs=2, metavar="METHOD", help="two methods of the report")
    given = parser.parse_args()
    found = read(given.verdicts)
    print("\n".join(paired(found, *given.pair) if given.pair else means(found)))
