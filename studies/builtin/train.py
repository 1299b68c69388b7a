"""Train the built-in models of both families: instruct further, then the adapters side by side.

    python -m studies.builtin.train --out runs/tiny              # from the tiny-instruct that ships
    python -m studies.builtin.train --out runs/tiny --scratch    # base and a first instruct before it

Every stage is `voidpad train tiny/STAGE` with its own output folder; what has been trained is left as it is, so the
same command goes on where it stopped. Families run side by side and the adapters of a family too: a network this small
leaves most of a GPU idle. `--toy` makes every stage a few updates on a CPU; a network from scratch is then tiny.

The recipes hold what the shipped weights were trained with: a test compares them with the cards.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from voidpad.models.locate import BUILT_IN_FAMILIES

BASES = {"llada": "base", "dream": "dream_base"}  # the recipe of each family's base
ADAPTERS = ("void", "eos", "rainbow", "void-gap")
RECIPES = "tiny"
TOY = ("run.global_batch=8", "run.micro_batch=8", "run.compile=false", "run.steps=3", "run.log_every=1")
TOY_NETWORK = ("model.scratch.hidden=48", "model.scratch.layers=2", "model.scratch.intermediate=64")


def stage(recipe: str, folder: Path, name: str, settings: Sequence[str]) -> Path:
    """One training, its output in a log beside its folder. Returns the folder of the model."""
    made = folder / name / "model"
    if made.is_dir():
        return made
    command = [sys.executable, "-m", "voidpad", "train", f"{RECIPES}/{recipe}", "--resume"]
    for setting in (f"run.output={folder / name}", *settings):
        command += ["--set", setting]
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with (folder / f"{name}.log").open("a") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    print(f"{time.strftime('%H:%M:%S')} {made}: {time.monotonic() - begun:.0f} s", flush=True)
    return made


def family(name: str, given: argparse.Namespace) -> None:
    """A family from its instruct, or its base, to its adapters."""
    folder, toy = given.out / name, TOY if given.toy else ()
    seed = f"run.seed={given.seed}"
    data, gaps = (f"data.path={path}" for path in (given.data, given.gaps))
    first = f"{BUILT_IN_FAMILIES[name]}-instruct"
    if given.scratch:
        network = TOY_NETWORK if given.toy else ()
        base = stage(BASES[name], folder, "base", [data, seed, *network, *toy])
        first = str(stage("instruct", folder, "first", [data, seed, f"model.name={base}", *toy]))
    instruct = stage("instruct_more", folder, "instruct", [data, seed, f"model.name={first}", *toy])

    def adapter(arm: str) -> None:
        source = gaps if arm == "void-gap" else data
        stage(arm, folder, arm, [source, seed, f"model.name={instruct}", *toy])

    with ThreadPoolExecutor(len(given.adapters)) as pool:
        list(pool.map(adapter, given.adapters))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.train", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=Path("runs/tiny"))
    parser.add_argument("--families", type=lambda text: text.split(","), default=list(BASES))
    parser.add_argument("--adapters", type=lambda text: text.split(","), default=list(ADAPTERS))
    parser.add_argument("--data", type=Path, default=Path("runs/tiny/data.safetensors"))
    parser.add_argument("--gaps", type=Path, default=Path("runs/tiny/gaps.safetensors"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", action="store_true", help="train base and first instruct, too")
    parser.add_argument("--toy", action="store_true", help="a rehearsal on a CPU")
    given = parser.parse_args()
    with ThreadPoolExecutor(len(given.families)) as pool:
        list(pool.map(lambda name: family(name, given), given.families))


if __name__ == "__main__":
    main()
