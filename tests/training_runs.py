"""A small model, its data and a recipe, for tests that really train."""

import json
import random
import tomllib
from pathlib import Path

import pytest
import torch

from voidpad.models import random_model, save
from voidpad.training import prepared as data
from voidpad.training.prepared import Example, Pairs
from voidpad.training.recipe import TrainingRecipe, check
from voidpad.training.train import Run

RECIPE = """
[model]
name = "{folder}/start"
[data]
path = "{folder}/data.safetensors"
[padding]
policy = "void"
[optim]
lr = 3e-3
[run]
output = "{folder}/out"
steps = 6
global_batch = 8
micro_batch = 4
save_every = 2
log_every = 2
report_to = []
"""


def materials(folder: Path, family: str = "llada", rows: int = 40) -> Path:
    """`start` (a random model), `data.safetensors` and `recipe.toml` in the folder."""
    model = random_model(family, vocab=64, hidden=32, layers=2, context=128)
    save(model, folder / "start")
    rng = random.Random(0)
    letters = range(max(model.roles.all()) + 1, 60)
    examples = [
        Example(
            [rng.choice(letters) for _ in range(rng.randint(1, 4))], [rng.choice(letters)] * rng.randint(1, 9)
        )
        for _ in range(rows)
    ]
    data.write(folder / "data.safetensors", Pairs.of(examples), model.roles)
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder))
    return folder


def recipe(folder: Path, output: str | Path = "out", **parts: dict) -> TrainingRecipe:
    """The recipe with its output folder and parts changed, e.g. run={"steps": 3}; a value of None is left out."""
    values = tomllib.loads((folder / "recipe.toml").read_text())
    for name, change in {"run": {}, **parts}.items():
        part = {**values.get(name, {}), **change}
        values[name] = {key: value for key, value in part.items() if value is not None}
    values["run"]["output"] = str(folder / output)
    return check(values)


def finish(run: Run) -> None:
    """All updates of a run, without a watcher, an export or a lock."""
    for _ in run.updates():
        pass


def entries(output: Path) -> list[dict]:
    """The log entries of a run's folder."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def gradients(run: Run, update: int = 0) -> tuple[dict, float]:
    """Gradients and loss of an update, by the loop's own code up to the optimizer's step, which is left out."""
    found: dict = {}
    run.update, run._sums = update, torch.zeros_like(run._sums)

    def note(*_: object) -> None:
        named = run.module.named_parameters()
        found.update({name: p.grad.clone() for name, p in named if p.grad is not None})

    with pytest.MonkeyPatch.context() as patch:
        for optimizer in run.optimizers:
            patch.setattr(optimizer, "step", note)
        run._make_update()
    return found, float(run._sums[0, 0])
