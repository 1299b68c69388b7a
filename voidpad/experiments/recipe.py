"""Sweep recipes: models x plans x tasks x grids, written as TOML, read as cells with stable names."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from voidpad.decode.plan import describe
from voidpad.errors import ConfigError, VoidpadError
from voidpad.paper import published
from voidpad.report.layout import FigureLayout, TableLayout

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
    family: Literal["llada", "dream"] | None = None  # needed only to check fields before a model is there
    parity: Literal["llada", "dream"] | None = None
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

    id: str
    model: str  # label
    method: str  # label
    settings: Mapping[str, Any] = field(hash=False)  # what `evaluate` takes

    @property
    def task(self) -> str:
        return self.settings["tasks"][0]

    @property
    def weights(self) -> tuple[Any, ...]:
        """What must be loaded; cells with equal weights share a model."""
        return tuple(self.settings[name] for name in ("model", "adapter", "dtype", "quantize"))

    def __str__(self) -> str:
        given = " ".join(f"{name}={value}" for name, value in self.settings["fields"].items())
        return f"{self.id} {self.model} {self.method} {self.task} {given}".rstrip()


def read(path: Path) -> Recipe:
    """A recipe that parses and whose every cell is a plan; all faults at once."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"recipe {path}: no such file; recipes/sweeps holds the ones that ship.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise ConfigError(f"recipe {path}: not TOML: {fault}.") from None
    return parse(raw, str(path))


def parse(raw: Mapping[str, Any], name: str) -> Recipe:
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as fault:
        raise ConfigError(f"recipe {name}: {'; '.join(_said(error) for error in fault.errors())}") from None
    faults = [*_plan_faults(recipe), *_label_faults(recipe)]
    if faults:
        raise ConfigError(f"recipe {name}: {'; '.join(dict.fromkeys(faults))}")
    return recipe


def _said(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"])
    given = json.dumps(error["input"], default=str)
    value = (
        f" (got {given})" if error["type"] not in ("missing", "extra_forbidden") and len(given) < 60 else ""
    )
    return f"{place}: {error['msg']}{value}"


def _plan_faults(recipe: Recipe) -> Iterator[str]:
    """What the plans themselves refuse, cell by cell."""
    for at, group in enumerate(recipe.groups):
        for model, plan, fields in _points(recipe, group):
            try:
                describe(plan, family=family(group, model), **fields)
            except VoidpadError as fault:
                yield f"group.{at}: {fault}"


def _label_faults(recipe: Recipe) -> Iterator[str]:
    """One evaluation under two names would be run once and reported under one of them."""
    seen: dict[str, Cell] = {}
    for cell in _all_cells(recipe):
        first = seen.setdefault(cell.id, cell)
        if (first.model, first.method) != (cell.model, cell.method):
            yield f"{first.method!r} and {cell.method!r} are the same evaluation; remove or change one"


def family(group: Group, model: str) -> str:
    known = published().model_of(model)
    return group.family or (published().models[known].family if known else "llada")


def cells(recipe: Recipe) -> list[Cell]:
    """Every cell once, in the order of the recipe."""
    return list({cell.id: cell for cell in reversed(list(_all_cells(recipe)))}.values())[::-1]


def _all_cells(recipe: Recipe) -> Iterator[Cell]:
    for group in recipe.groups:
        for model, plan, fields in _points(recipe, group):
            for task in group.tasks or recipe.tasks:
                yield _cell(recipe, group, (model, plan, task), fields)


def _cell(recipe: Recipe, group: Group, names: tuple[str, str, str], fields: Fields) -> Cell:
    model, plan, task = names
    settings = {
        "model": model,
        "adapter": group.adapter,
        "dtype": recipe.dtype,
        "quantize": recipe.quantize,
        "plan": plan,
        "fields": fields,
        "tasks": [task],
        "limit": recipe.limit,
        "seed": recipe.seed,
        "fewshot": recipe.fewshot,
        "parity": group.parity,
    }
    return Cell(fingerprint(settings), group.of or model, group.method or plan, settings)


def _points(recipe: Recipe, group: Group) -> Iterator[tuple[str, str, Fields]]:
    """Models x plans x the grid. A group's own field or axis replaces the recipe's."""
    grid = {**{k: v for k, v in recipe.grid.items() if k not in group.fields}, **group.grid}
    for model, plan in product(_listed(group.model), _listed(group.plan)):
        for values in product(*grid.values()):
            yield model, plan, {**recipe.fields, **group.fields, **dict(zip(grid, values, strict=True))}


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def fingerprint(settings: Mapping[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
