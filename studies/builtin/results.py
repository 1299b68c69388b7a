"""The results that ship with the built-in models, from a finished sweep.

    voidpad sweep tiny-score --out runs/tiny-score --device cuda --allow-code-execution
    python -m studies.builtin.results runs/tiny-score            # compare with the shipped file
    python -m studies.builtin.results runs/tiny-score --write    # replace it
    python -m studies.builtin.results runs/seeds/dream-2/sweep --recipe tiny-seeds --family dream

A sweep can be divided: `--stage prepare` and `--stage judge` here, `--stage answer` on a machine with a GPU.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from voidpad.builtin.tasks import shipped_results
from voidpad.evaluate.intervals import Z95, wilson
from voidpad.experiments.report.frame import read
from voidpad.files import store
from voidpad.models.locate import ASSETS, BUILT_IN_FAMILIES

# Names in the shipped file -> columns of the report's frame.
MEANS = {"answer_tokens": "answer", "passes_decode": "nfe", "passes_probe": "probes", "canvas": "canvas"}
Cell = Mapping[str, Any]  # a row of the report's frame


def summary(cells: Sequence[Cell]) -> dict[str, Any]:
    """One method at one block: accuracy by task with intervals, their mean, and what it cost."""
    counts = {cell["task"]: (cell["correct"], int(cell["n"])) for cell in cells}
    shares = {task: correct / n for task, (correct, n) in counts.items()}
    spread = math.sqrt(sum(p * (1 - p) / counts[task][1] for task, p in shares.items())) / len(shares)
    total = sum(n for _, n in counts.values())
    means = {
        name: math.fsum(cell[column] * cell["n"] for cell in cells) / total for name, column in MEANS.items()
    }
    return {
        "mean": sum(shares.values()) / len(shares),
        "half_width": Z95 * spread,
        "tasks": {task: [shares[task], *wilson(*count)] for task, count in counts.items()},
        **means,
        "problems": total,
    }


def by_method(folder: Path, recipe: str) -> dict[str, list[Cell]]:
    """The finished cells of a recipe in a sweep folder, by `method / block`."""
    (source,) = read(folder / f"{recipe}.sweep.json")
    done = [cell for cell in source.frame.to_dict("records") if cell.get("n", 0) > 0]

    def name(cell: Cell) -> str:
        return f"{cell['method']} / {cell['plan.block']:.0f}"

    return {key: list(some) for key, some in groupby(sorted(done, key=name), key=name)}


def summaries(cells: Mapping[str, Sequence[Cell]]) -> dict[str, dict[str, Any]]:
    """A summary for every method and block."""
    return {key: summary(some) for key, some in cells.items()}


def differences(mine: dict[str, Any], shipped: dict[str, Any]) -> list[str]:
    """A line for every method whose right answers differ in number."""
    lines = [f"{key}: not in this sweep" for key in shipped.keys() - mine.keys()]
    for key, cell in mine.items():
        for task, (share, *_) in cell["tasks"].items():
            known = shipped.get(key, {}).get("tasks", {}).get(task)
            if known is None or share != known[0]:
                lines.append(f"{key}: {task} {share:.4f}, shipped {known[0] if known else None}")
    return sorted(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.results", description=__doc__)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--recipe", default="tiny-score", help="of the sweep")
    parser.add_argument("--family", choices=BUILT_IN_FAMILIES, default="llada", help="whose results they are")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    mine = summaries(by_method(given.sweep, given.recipe))
    if given.write:
        store(ASSETS / f"results-{given.family}.json", [json.dumps(mine) + "\n"])
        return
    lines = differences(mine, shipped_results(given.family))
    print("\n".join(lines) or f"{len(mine)} methods, equal to the shipped results")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
