"""Answer the cells of prepared sweeps on one GPU, several processes at a time.

    python -m studies.gpu.answers runs/seeds/*/sweep --together 12 --seconds 300 --device cuda --rows 128 --tokens 65536

A sweep folder is one that `voidpad sweep RECIPE --out FOLDER --stage prepare` has written; the models may have been
made since. A process takes the cells of one method at one setting. A network as small as the built-in ones leaves most
of a GPU idle, and one process is bound by its host. Options that are not named below go to `voidpad sweep`.
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
from voidpad.experiments.report.records import SUFFIX


def groups(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(recipe, ids of the cells) of every method and setting in a sweep folder, in the recipes' order.

    A cell that two recipes share comes once: two processes may not write one run.
    """
    files, seen = sorted(folder.glob(f"*{SUFFIX}")), set[str]()
    if not files:
        raise DataError(f"{folder}: holds no prepared sweep; run `voidpad sweep --stage prepare` first.")
    for file in files:
        together: dict[str, list[str]] = {}
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            if cell["folder"] not in seen:
                seen.add(cell["folder"])
                same = json.dumps([cell["model"], cell["method"], cell["at"]])
                together.setdefault(same, []).append(Path(cell["folder"]).name)
        for ids in together.values():
            yield file.name.removesuffix(SUFFIX), ids


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
    parser.add_argument("folders", type=Path, nargs="+", help="of prepared sweeps, the most wanted first")
    parser.add_argument("--together", type=int, default=12, help="processes at the same time")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    given, options = parser.parse_known_args()
    end = time.monotonic() + given.seconds if given.seconds else None
    work = [(folder, recipe, ids) for folder in given.folders for recipe, ids in groups(folder)]
    with ThreadPoolExecutor(given.together) as pool:
        complete = list(pool.map(lambda one: run(*one, options, end), work))
    sys.exit(not all(complete))


if __name__ == "__main__":
    main()
