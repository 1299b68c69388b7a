"""Decode the tasks' test problems in every cell of a list, many rows to a pass; judging is `voidpad.tiny.score`.

`python -m voidpad.tiny.outputs recipes/tiny/score.toml --out outputs.jsonl --device cuda`. It needs no sandbox and
no evaluation harness, so that a machine lent for its GPU does the decoding and another one the judging.
"""

import argparse
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from voidpad.analysis.attention import hidden_eos
from voidpad.decode.loop import Outcome
from voidpad.decode.plan import Plan
from voidpad.engine import Engine
from voidpad.errors import ConfigError
from voidpad.models import Model, load
from voidpad.tiny.tasks import TASKS, heldout
from voidpad.trace.files import store


@dataclass(frozen=True)
class Cell:
    """One way to decode with one model."""

    name: str  # the method's name in the tables
    model: str  # built-in name or folder
    plan: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    first: bool = False  # judge the first answer of the text: for decodes that cannot stop
    hide_eos: bool = False  # masked slots do not see committed EOS (the paper's attention intervention)


@dataclass(frozen=True)
class Limits:
    """How much one pass may hold; it changes no answer."""

    rows: int = 1024
    tokens: int = 1 << 18


def read_cells(path: Path) -> tuple[int, list[Cell]]:
    """Problems per task, and the cells: every entry once per value of its `block` list.

    An entry without blocks takes nothing from the shared fields: the model's calibration decides.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cells {path}: cannot be read ({error}).") from None
    shared, found = given.get("fields", {}), []
    for entry in given.get("cell", []):
        blocks, own = entry.pop("block", None), entry.pop("fields", {})
        if blocks is None:
            found.append(Cell(**entry, fields=own))
        for block in blocks or ():
            found.append(Cell(**entry, fields={**shared, **own, "block": block}))
    return given["problems"], found


def decode(model: Model, cells: Sequence[Cell], count: int, *, limits: Limits) -> Iterator[dict[str, Any]]:
    """Every cell on every task's first `count` test problems; records come as rows finish.

    All cells share the passes of one engine. The cells must agree on `hide_eos`: it belongs to the network.
    """
    (hide,) = {cell.hide_eos for cell in cells}
    denoise = model.denoiser(forbid=hidden_eos) if hide else model.exact()
    engine = Engine(denoise, model.roles, rows=limits.rows, tokens=limits.tokens)
    jobs: list[tuple[Cell, Plan, str, int]] = []
    prompts = {name: [model.encode(p.prompt) for p in heldout(name, count)] for name in TASKS}
    for cell in cells:
        plan = model.plan(cell.plan, **cell.fields)
        for task, encoded in prompts.items():
            for index, ids in enumerate(encoded):
                engine.submit(ids, model.fit(ids, plan), key=len(jobs))
                jobs.append((cell, plan, task, index))
    while engine.busy:
        for outcome in engine.step():
            cell, plan, task, index = jobs[outcome.key]
            where = {"block": plan.block, "task": task, "index": index}
            yield {**asdict(cell), **where, **record(model, outcome, plan)}


def record(model: Model, outcome: Outcome, plan: Plan) -> dict[str, Any]:
    result = model.result(outcome, plan)
    length = next(
        (n for n, token in enumerate(result.tokens) if token in model.roles.ends), len(result.tokens)
    )
    kept = ("text", "passes_decode", "passes_probe", "passes_shared", "canvas", "stop_reason")
    return {name: getattr(result, name) for name in kept} | {"answer_tokens": length}


def decode_all(cells: Iterable[Cell], count: int, *, device: str, limits: Limits) -> Iterator[dict[str, Any]]:
    """Model by model, so that each is loaded once. Weights are those of the file, arithmetic is float32.

    On a GPU, products inside the network use TF32: much faster, and far finer than the differences judged.
    """
    torch.set_float32_matmul_precision("high")

    def kind(cell: Cell) -> tuple[str, bool]:
        return cell.model, cell.hide_eos

    for (name, _), group in groupby(sorted(cells, key=kind), key=kind):
        model = load(name, device=device, dtype="float32")
        yield from decode(model, list(group), count, limits=limits)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m voidpad.tiny.outputs", description=__doc__)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of cells, separated by commas")
    parser.add_argument("--problems", type=int, help="per task; overrides the file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=Limits.rows)
    given = parser.parse_args(arguments)
    count, cells = read_cells(given.cells)
    wanted = [cell for cell in cells if not given.only or cell.name in given.only.split(",")]
    lines = decode_all(wanted, given.problems or count, device=given.device, limits=Limits(rows=given.rows))
    store(given.out, (json.dumps(line) + "\n" for line in lines))
    print(f"{given.out}: {len(wanted)} cells")


if __name__ == "__main__":
    main()
