"""Answer the cells of prepared sweeps on one GPU, several processes at a time.

    python -m studies.gpu.answers runs/seeds/*/sweep --together 12 --seconds 300 --device cuda --rows 128 --tokens 65536

A sweep folder is one that `voidpad sweep RECIPE --out FOLDER --stage prepare` has written; the models may have been
made since. Of a folder with several, `FOLDER/NAME.sweep.json` is one. A process takes the cells of one method at one
setting that have no answers yet. A network as small as the built-in ones leaves most of a GPU idle, and one process is
bound by its host. Options that are not named below go to `voidpad sweep`.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from voidpad.errors import DataError
from voidpad.experiments.report.layout import SUFFIX


def answered(cell: Path) -> bool:
    """Whether every request of a cell has its answer, judged or not."""
    asked, told = cell / "requests.jsonl", cell / "progress.jsonl"
    return told.is_file() and told.read_bytes().count(b"\n") >= asked.read_bytes().count(b"\n")


def groups(paths: Sequence[Path]) -> Iterator[tuple[Path, str, list[str]]]:
    """(folder, recipe, ids of the cells) of every method and setting, in the order of the paths and of their recipes.

    A path is a sweep folder or one NAME.sweep.json in it. A cell that two recipes share comes once: two processes may
    not write one run.
    """
    seen = set[Path]()
    for path in paths:
        files = [path] if path.name.endswith(SUFFIX) else sorted(path.glob(f"*{SUFFIX}"))
        if not files:
            raise DataError(f"{path}: holds no prepared sweep; run `voidpad sweep --stage prepare` first.")
        for file in files:
            together: dict[str, list[str]] = {}
            for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
                place = file.parent / cell["folder"]
                if place not in seen and not answered(place):
                    seen.add(place)
                    same = json.dumps([cell["model"], cell["method"], cell["plan"]])
                    together.setdefault(same, []).append(place.name)
            for ids in together.values():
                yield file.parent, file.name.removesuffix(SUFFIX), ids


def run(folder: Path, recipe: str, ids: Sequence[str], options: Sequence[str], end: float | None) -> bool:
    """One process, killed when the time is over, its output in a file beside the cells; whether all was answered."""
    left = None if end is None else end - time.monotonic()
    if left is not None and left < 1:
        return False
    command = [sys.executable, "-m", "voidpad", "sweep", recipe, "--out", str(folder), "--stage", "answer"]
    command += [part for cell in ids for part in ("--only", cell)] + list(options)
    begun = time.monotonic()
    with (folder / f"{recipe}-{ids[0]}.log").open("a") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=left).returncode
            outcome = "done" if code == 0 else f"failed, see {log.name}"
        except subprocess.TimeoutExpired:
            outcome = "the time is over"
    took = (
        time.monotonic() - begun
    )  # a process that was killed leaves cells that the same command goes on with
    print(
        f"{time.strftime('%H:%M:%S')} {folder} {recipe}: {len(ids)} cells, {took:.0f} s, {outcome}",
        flush=True,
    )
    return outcome == "done"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.gpu.answers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "sweeps",
        type=Path,
        nargs="+",
        help="folders of prepared sweeps, or files in them; the most wanted first",
    )
    parser.add_argument("--together", type=int, default=12, help="processes at the same time")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    given, options = parser.parse_known_args()
    end = time.monotonic() + given.seconds if given.seconds else None
    work = list(groups(given.sweeps))
    with ThreadPoolExecutor(given.together) as pool:
        complete = list(pool.map(lambda one: run(*one, options, end), work))
    sys.exit(not all(complete))


if __name__ == "__main__":
    main()
