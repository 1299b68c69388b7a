"""Sweep recipes: models x plans x tasks x grids, written as TOML, read as cells with stable names."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from voidpad.decode.plan import describe
from voidpad.engine.cache_policy import FORM
from voidpad.errors import ConfigError, VoidpadError, fault
from voidpad.evaluate.settings import Settings, fingerprint
from voidpad.experiments.report.layout import FigureLayout, TableLayout
from voidpad.models.families_decoding import DECODING
from voidpad.paper import published

Fields = dict[str, Any]  # plan fields; the plan itself checks them
Grid = dict[str, list[Any]]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Group(Closed):
    """Rows that share a name: every model with every plan at every point of the grid, on every task."""

    model: str | list[str]
    plan: str | list[str]
    method: str | None = None  # the rows' name in the report; the plan's if not given
    of: str | None = None  # the model the rows stand under in the report; the model itself if not given
    adapter: str | None = None
    parity: Literal["llada", "dream"] | None = None
    cache: str | None = Field(default=None, pattern=f"^{FORM}$")  # approximate: prefix, dual, dual:4
    fields: Fields = {}
    grid: Grid = {}
    tasks: list[str] | None = None


class Recipe(Closed):
    """A sweep. `fields`, `grid` and `tasks` hold for every group unless it says otherwise."""

    title: str
    reference: str = ""
    tasks: list[str] = Field(min_length=1)
    groups: list[Group] = Field(alias="group", min_length=1)
    fields: Fields = {}
    grid: Grid = {}
    limit: int | None = Field(default=None, ge=1)
    seed: int = 0
    dtype: str = "auto"
    quantize: Literal["8bit", "4bit"] | None = None
    fewshot: Literal["keyed", "stream"] = "keyed"
    tables: list[TableLayout] = Field(default=[], alias="table")
    figures: list[FigureLayout] = Field(default=[], alias="figure")


@dataclass(frozen=True)
class Cell:
    """One evaluation: a model, a plan with its fields, a task. Its id is a hash of all that decides it."""

    model: str  # label
    method: str  # label
    settings: Settings = field(hash=False)

    @cached_property
    def id(self) -> str:
        return fingerprint(self.settings.plain())[:12]

    @property
    def task(self) -> str:
        return self.settings.tasks[0]

    @property
    def folder(self) -> str:
        return f"cells/{self.id}"

    def __str__(self) -> str:
        given = " ".join(f"{name}={value}" for name, value in self.settings.fields.items())
        return f"{self.id} {self.model} {self.method} {self.task} {given}".rstrip()


def read(path: Path) -> Recipe:
    """A recipe that parses and whose every cell is a plan; all faults at once."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"recipe {path}: no such file; recipes/sweeps holds the ones that ship.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path}: not TOML: {error}.") from None
    return parse(raw, str(path))


def parse(raw: Mapping[str, Any], name: str) -> Recipe:
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"recipe {name}: {'; '.join(map(fault, error.errors()))}") from None
    groups: dict[str, list[str]] = {}
    for at, said in _faults(recipe):
        groups.setdefault(said, []).append(str(at))
    if groups:
        faults = [f"group {', '.join(dict.fromkeys(at))}: {said}" for said, at in groups.items()]
        raise ConfigError(f"recipe {name}: {'; '.join(faults)}")
    return recipe


def _faults(recipe: Recipe) -> Iterator[tuple[int, str]]:
    """(group, fault): what the plans and the evaluation refuse, and evaluations that have two names."""
    seen: dict[str, Cell] = {}
    for at, group in enumerate(recipe.groups):
        for point in _points(recipe, group):
            try:
                describe(point.plan, defaults=DECODING[family(point.model)], **point.fields)
                cell = _cell(recipe, group, point)
            except VoidpadError as error:
                yield at, str(error)
                continue
            first = seen.setdefault(cell.id, cell)
            if (first.model, first.method) != (cell.model, cell.method):
                yield at, f"{first.method!r} and {cell.method!r} are the same evaluation; change or drop one"


def family(model: str) -> str:
    """What to check a plan's fields against before the model is there."""
    known = published().model_of(model)
    return published().models[known].family if known else "llada"


def cells(recipe: Recipe) -> list[Cell]:
    """Every cell once, in the order of the recipe."""
    found: dict[str, Cell] = {}
    for group in recipe.groups:
        for point in _points(recipe, group):
            cell = _cell(recipe, group, point)
            found.setdefault(cell.id, cell)
    return list(found.values())


class Point(NamedTuple):
    """One combination of a group."""

    model: str
    plan: str
    task: str
    fields: Fields


def _points(recipe: Recipe, group: Group) -> Iterator[Point]:
    """Models x plans x the grid x tasks. A group's own field or axis replaces the recipe's."""
    grid = {**{k: v for k, v in recipe.grid.items() if k not in group.fields}, **group.grid}
    for model, plan in product(_listed(group.model), _listed(group.plan)):
        for values in product(*grid.values()):
            fields = {**recipe.fields, **group.fields, **dict(zip(grid, values, strict=True))}
            yield from (Point(model, plan, task, fields) for task in group.tasks or recipe.tasks)


def _cell(recipe: Recipe, group: Group, point: Point) -> Cell:
    settings = Settings(
        model=point.model,
        tasks=(point.task,),
        plan=point.plan,
        fields=point.fields,
        adapter=group.adapter,
        dtype=recipe.dtype,
        quantize=recipe.quantize,
        limit=recipe.limit,
        seed=recipe.seed,
        fewshot=recipe.fewshot,
        parity=group.parity,
        cache=group.cache,
    )
    cached = [f"cache={group.cache}"] if group.cache else []
    return Cell(group.of or point.model, group.method or " ".join([point.plan, *cached]), settings)


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
