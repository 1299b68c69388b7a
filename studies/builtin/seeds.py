"""Several seeds of the built-in models, of both families: train them, score them, put them side by side.

    python -m studies.builtin.prepare --out runs/tiny/data.safetensors --examples 1200000 --workers 16
    python -m studies.builtin.prepare --out runs/tiny/names.safetensors --examples 60000 --workers 16 --names
    python -m studies.builtin.seeds train --family dream --seeds 1,2,3 --out runs/seeds --seconds 560
    python -m studies.builtin.seeds sweep --out runs/seeds --device cuda --allow-code-execution
    python -m studies.builtin.seeds table runs/seeds
    python -m studies.builtin.targets runs/seeds

The recipes are `tiny/*`: the families differ in the recipes of the base alone, and every arm has the same number of
updates. A family has one base; a seed is that of `instruct` and of the arms made from it. `--together` trainings run at
the same time: a network this small leaves most of a GPU idle.

All three commands go on where they stopped: what has been trained or scored is left as it is. `sweep` takes the options
of `voidpad sweep`, `--stage` among them, so that answers can come from a machine with a GPU. Prepared before there are
models (`sweep --family dream --stage prepare`), a sweep can be answered right after the training, where it took place:
`python -m studies.gpu.answers`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Condition

from studies.builtin.results import by_method, summaries
from voidpad.builtin.tasks import CANVAS, TASKS
from voidpad.errors import DataError
from voidpad.experiments.report.records import CellRecord
from voidpad.files import store
from voidpad.models.card import read_card

# The recipes that make a family's base, one after the other. The rest of a checkpoint's rules follow from its family.
BASES = {"llada": ("base",), "dream": ("dream_base", "dream_names")}
# Updates of each stage: counted, not timed, so that the arms are equal on any machine.
UPDATES = {"base": 8700, "dream_base": 8700, "dream_names": 800, "instruct": 4900, "void": 1500, "eos": 1500}
UPDATES |= {"rainbow": 1500}
ARMS = ("void", "eos", "rainbow")
FROM_BASE = tuple(f"from_base_{arm}" for arm in ARMS)
SWEEP = "tiny-seeds"
FROM_BASE_SWEEP = "sweep-from-base"  # the folder beside `sweep` for the fine-tunes of the base


@dataclass(frozen=True)
class Stage:
    """One training: its recipe, where it goes, and the model that it starts from, which may yet have to be made."""

    recipe: str
    folder: Path
    seed: int
    source: Path | None

    @property
    def made(self) -> Path:
        return self.folder / self.recipe / "model"


def stages(given: argparse.Namespace) -> list[Stage]:
    """Every training of a family in the order in which they should end: one base, then seed by seed."""
    found: list[Stage] = []
    for recipe in BASES[given.family]:
        source = found[-1].made if found else None
        found.append(Stage(recipe, given.out / f"{given.family}-base", given.base_seed, source))
    base = found[-1].made
    if base.is_dir():  # what it was made from need not be there any more
        found = []
    seeds = [(number, given.out / f"{given.family}-{number}") for number in given.seeds]
    if given.from_base:
        return found + [Stage(arm, folder, number, base) for number, folder in seeds for arm in FROM_BASE]
    found += [Stage("instruct", folder, number, base) for number, folder in seeds]
    for number, folder in seeds:
        found += [Stage(arm, folder, number, folder / "instruct" / "model") for arm in ARMS]
    return found


def train(given: argparse.Namespace) -> None:
    """Train every stage that is missing, several at a time, each as soon as its source is there, until time is over."""
    end = time.monotonic() + given.seconds if given.seconds else None
    waiting, running, changed = stages(given), 0, Condition()

    def work() -> None:
        nonlocal running
        while True:
            with changed:
                while not (ready := [s for s in waiting if s.source is None or s.source.is_dir()]):
                    if not running:
                        return  # nothing will become ready any more
                    changed.wait()
                waiting.remove(ready[0])
                running += 1
            try:
                if not _train(ready[0], given, end):
                    print(f"{ready[0].made.parent}: the time is over; the same command goes on", flush=True)
                elif ready[0].recipe in ("void", "from_base_void"):
                    _calibrate(ready[0], given.prompts)
            finally:
                with changed:
                    running -= 1
                    changed.notify_all()

    with ThreadPoolExecutor(given.together) as pool:
        for done in [pool.submit(work) for _ in range(given.together)]:
            done.result()


def _train(stage: Stage, given: argparse.Namespace, end: float | None) -> bool:
    """One stage by `voidpad train`, its output in a file beside it; whether it is complete."""
    if stage.made.is_dir():
        return True
    left = None if end is None else end - time.monotonic()
    if left is not None and left < 1:
        return False
    output = stage.made.parent
    changes = [
        *([f"model.name={stage.source}"] if stage.source else []),
        f"data.path={given.names if stage.recipe == 'dream_names' else given.data}",
        f"run.output={output}",
        f"run.seed={stage.seed}",
        f"run.steps={given.updates or UPDATES[stage.recipe.removeprefix('from_base_')]}",
        *given.set,
    ]
    command = [sys.executable, "-m", "voidpad", "train", f"tiny/{stage.recipe}", "--resume"]
    command += [part for change in changes for part in ("--set", change)]
    command += ["--max-seconds", str(left)] if left is not None else []
    output.parent.mkdir(parents=True, exist_ok=True)
    print(f"{time.strftime('%H:%M:%S')} {output}", flush=True)
    with output.with_suffix(".log").open("a") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return stage.made.is_dir()


def _calibrate(stage: Stage, count: int) -> None:
    """VoidExpansion's thresholds for this adapter, from training prompts, as those of the model that ships."""
    card = read_card(stage.made)
    if card is not None and "void-expansion" in card.calibration:
        return
    rng, tasks = Random("tiny calibration"), tuple(TASKS.values())
    prompts = [tasks[index % len(tasks)].sample(rng).prompt for index in range(count)]
    file = stage.folder / "prompts.jsonl"
    store(file, [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts])
    command = [sys.executable, "-m", "voidpad", "calibrate", "--model", str(stage.source)]
    command += ["--adapter", str(stage.made), "--file", str(file), "--save", str(stage.made)]
    subprocess.run([*command, "--canvas", "64", "--block", "16", "--limit", str(CANVAS)], check=True)


def sweep(given: argparse.Namespace, options: Sequence[str]) -> None:
    """Score every seed whose arms are complete, or those named: `voidpad sweep` with their models instead of ours.

    From the base there is no `instruct`: the fine-tune with EOS padding is the original, and there is no control.
    """
    named = [given.out / f"{given.family}-{number}" for number in given.seeds] if given.family else None
    place, prefix = (FROM_BASE_SWEEP, "from_base_") if given.from_base else ("sweep", "")
    for folder in named or _complete(given.out, prefix):
        use = {f"tiny-{arm}": folder / f"{prefix}{arm}" / "model" for arm in ARMS}
        use["tiny-instruct"] = use["tiny-eos"] if given.from_base else folder / "instruct" / "model"
        command = [sys.executable, "-m", "voidpad", "sweep", SWEEP, "--out", str(folder / place), *options]
        command += [part for name, model in use.items() for part in ("--use", f"{name}={model}")]
        print(folder, flush=True)
        subprocess.run(command, check=True)


def table(given: argparse.Namespace) -> None:
    """Mean over seeds, their spread, and the interval over problems of the mean seed, for each family."""
    found = {
        family: [summaries(seed) for seed in seeds.values()] for family, seeds in scored(given.out).items()
    }
    print(
        "| family | method / block | seeds | right, mean over seeds | lowest to highest | ± over problems | passes |"
    )
    print("|---|---|---|---|---|---|---|")
    for family, seeds in sorted(found.items()):
        for method in sorted(set.intersection(*(set(scores) for scores in seeds))):
            scores = [seed[method] for seed in seeds]
            right = [100 * score["mean"] for score in scores]
            problems = 100 * statistics.fmean(score["half_width"] for score in scores)
            passes = statistics.fmean(score["passes_decode"] for score in scores)
            print(
                f"| {family} | {method} | {len(seeds)} | {statistics.fmean(right):.1f} "
                f"| {min(right):.1f} to {max(right):.1f} | {problems:.1f} | {passes:.1f} |"
            )


def scored(out: Path) -> dict[str, dict[Path, Mapping[str, list[CellRecord]]]]:
    """The finished cells of every seed by method, under its sweep folder, by family.

    Fine-tunes of the base count as a family of their own.
    """
    found: dict[str, dict[Path, Mapping[str, list[CellRecord]]]] = {}
    for sweep, start in (("sweep", ""), (FROM_BASE_SWEEP, ", from the base")):
        for folder in sorted(out.glob(f"*/{sweep}")):
            if cells := by_method(folder, SWEEP):
                found.setdefault(folder.parent.name.rpartition("-")[0] + start, {})[folder] = cells
    if not found:
        raise DataError(f"{out}: no seed has been scored; run `python -m studies.builtin.seeds sweep` first.")
    return found


def _complete(out: Path, prefix: str = "") -> list[Path]:
    """The folders of the seeds whose arms are all there."""
    arms = [f"{prefix}{arm}" for arm in ARMS] if prefix else ["instruct", *ARMS]
    folders = [path.parent for path in sorted(out.glob(f"*/{arms[0]}"))]
    return [folder for folder in folders if all((folder / arm / "model").is_dir() for arm in arms)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.seeds", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter

    def numbers(text: str) -> list[int]:
        return [int(seed) for seed in text.split(",")]

    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help=train.__doc__)
    training.add_argument("--family", choices=BASES, required=True)
    training.add_argument("--seeds", type=numbers, default=[1, 2, 3], help="of instruct and the arms")
    training.add_argument("--out", type=Path, default=Path("runs/seeds"))
    training.add_argument("--data", type=Path, default=Path("runs/tiny/data.safetensors"))
    training.add_argument("--names", type=Path, default=Path("runs/tiny/names.safetensors"))
    training.add_argument("--seconds", type=float, help="stop after so many seconds")
    training.add_argument("--base-seed", type=int, default=1, help="of the base, which all seeds share")
    training.add_argument("--together", type=int, default=3, help="trainings at the same time")
    training.add_argument("--updates", type=int, help="of every stage; for a rehearsal")
    training.add_argument("--prompts", type=int, default=512, help="training prompts of a calibration")
    training.add_argument("--from-base", action="store_true", help="the fine-tunes of the base instead")
    training.add_argument("--set", action="append", default=[], help="a further setting of every recipe")
    scoring = commands.add_parser("sweep", help=sweep.__doc__)
    scoring.add_argument("--out", type=Path, default=Path("runs/seeds"))
    scoring.add_argument("--family", choices=BASES, help="the seeds of this family, trained or not")
    scoring.add_argument("--seeds", type=numbers, default=[1, 2, 3], help="with --family")
    scoring.add_argument("--from-base", action="store_true", help="the fine-tunes of the base instead")
    showing = commands.add_parser("table", help=table.__doc__)
    showing.add_argument("out", type=Path)
    given, rest = parser.parse_known_args()
    if rest and given.command != "sweep":
        parser.error(f"unknown: {' '.join(rest)}")
    if given.command == "train":
        train(given)
    elif given.command == "sweep":
        sweep(given, rest)
    else:
        table(given)


if __name__ == "__main__":
    main()
