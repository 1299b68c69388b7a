"""Decode the tasks' test problems in every cell of a list, many rows to a pass; judging is `voidpad.builtin.score`.

`python -m voidpad.builtin.outputs recipes/tiny/score.toml --out outputs.jsonl --device cuda`. It needs no sandbox and
no evaluation harness, so that a machine lent for its GPU does the decoding and another one the judging.
"""

import argparse
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch

from voidpad.builtin.tasks import TASKS, heldout
from voidpad.decode.plan import Plan
from voidpad.diagnose.attention import hidden_eos
from voidpad.engine.batching import Engine
from voidpad.engine.cache_policy import CachePolicy
from voidpad.errors import ConfigError
from voidpad.files import store
from voidpad.models import Model, Result, load


@dataclass(frozen=True)
class Cell:
    """One way to decode with one model."""

    name: str  # the method's name in the tables
    model: str  # built-in name or folder
    plan: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    first: bool = False  # judge the first answer of the text: for decodes that cannot stop
    hide_eos: bool = False  # masked slots do not see committed EOS (the paper's attention intervention)
    cache: str | None = None  # prefix or dual: keys and values are kept inside a block (approximate)

    def __post_init__(self) -> None:
        if self.cache is not None:
            CachePolicy.parse(self.cache)
        if self.hide_eos and self.cache:
            raise ConfigError(f"cell {self.name!r}: hide_eos and cache={self.cache!r} exclude each other.")


@dataclass(frozen=True)
class Limits:
    """How much one pass may hold; it changes no answer."""

    rows: int = 1024
    cached: int = 256  # rows with a cache: in float32 attention runs row by row, so more would gain nothing
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

    All cells share the passes of one engine, so they must agree on its `Kind`.
    """
    (shared,) = {kind(model, cell) for cell in cells}
    engine = shared.engine(model, limits)
    jobs: list[tuple[Cell, Plan, str, int]] = []
    prompts = {name: [model.encode(p.prompt) for p in heldout(name, count)] for name in TASKS}
    for cell in cells:
        plan = model.plan(cell.plan, **cell.fields)
        for task, encoded in prompts.items():
            for index, ids in enumerate(encoded):
                engine.submit(ids, model.fit(ids, plan), key=len(jobs))
                jobs.append((cell, plan, task, index))
    for _, outcome in engine.outcomes():
        cell, plan, task, index = jobs[outcome.key]
        where = {"block": plan.block, "task": task, "index": index}
        result = model.result(outcome, plan, cache=cell.cache)
        yield {**asdict(cell), **where, **record(model, result)}


class Kind(NamedTuple):
    """What an engine is made for."""

    hide_eos: bool
    cache: str | None
    block: int  # of the cache; 0 without one

    def engine(self, model: Model, limits: Limits) -> Engine:
        if self.cache is not None:
            rows = min(limits.rows, limits.cached)
            return model.engine(rows=rows, tokens=limits.tokens, cache=self.cache, block=self.block)
        denoise = model.denoiser(forbid=hidden_eos) if self.hide_eos else model.exact()
        return Engine(denoise, model.roles, rows=limits.rows, tokens=limits.tokens)


def kind(model: Model, cell: Cell) -> Kind:
    block = 0 if cell.cache is None else model.plan(cell.plan, **cell.fields).block
    return Kind(cell.hide_eos, cell.cache, block)


def record(model: Model, result: Result) -> dict[str, Any]:
    length = next(
        (n for n, token in enumerate(result.tokens) if token in model.roles.ends), len(result.tokens)
    )
    kept = ("text", "passes_decode", "passes_probe", "passes_shared", "canvas", "stop_reason")
    found = {name: getattr(result, name) for name in kept}
    return found | {"answer_tokens": length, "accelerated": list(result.approximations)}


def decode_all(cells: Iterable[Cell], count: int, *, device: str, limits: Limits) -> Iterator[dict[str, Any]]:
    """Model by model, so that each is loaded once. Weights are those of the file, arithmetic is float32.

    On a GPU, products inside the network use TF32: much faster, and far finer than the differences judged.
    """
    torch.set_float32_matmul_precision("high")
    for name, group in groupby(sorted(cells, key=lambda cell: cell.model), key=lambda cell: cell.model):
        model = load(name, device=device, dtype="float32")
        kinds: dict[Kind, list[Cell]] = {}
        for cell in group:
            kinds.setdefault(kind(model, cell), []).append(cell)
        for some in kinds.values():
            yield from decode(model, some, count, limits=limits)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m voidpad.builtin.outputs", description=__doc__)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], help="name of a cell; may be repeated")
    parser.add_argument("--problems", type=int, help="per task; overrides the file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=Limits.rows)
    given = parser.parse_args(arguments)
    count, cells = read_cells(given.cells)
    unknown = set(given.only) - {cell.name for cell in cells}
    if unknown:
        raise ConfigError(f"only={', '.join(sorted(unknown))}: no such cell in {given.cells}.")
    wanted = [cell for cell in cells if not given.only or cell.name in given.only]
    lines = decode_all(wanted, given.problems or count, device=given.device, limits=Limits(rows=given.rows))
    store(given.out, (json.dumps(line) + "\n" for line in lines))
    print(f"{given.out}: {len(wanted)} cells")


if __name__ == "__main__":
    from voidpad.commands.cli import guarded

    guarded(main)
