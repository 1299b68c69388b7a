"""Sweep recipes: models x plans x tasks x grids, written as TOML, read as cells with stable names."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from voidpad.decode.plan import Plan, describe
from voidpad.engine.cache_policy import FORM
from voidpad.errors import ConfigError, VoidpadError, fault, reason
from voidpad.evaluate.run_weights import with_weights
from voidpad.evaluate.settings import Settings, settings_digest
from voidpad.experiments.report.layout import FigureLayout, TableLayout
from voidpad.models import FAMILIES
from voidpad.models.load import family_of
from voidpad.models.locate import ARMS, BUILT_IN_FAMILIES
from voidpad.models.quantizer import QuantizerName

MOST_CELLS = 10_000  # of one recipe; more is a mistake in a grid
Fields = dict[str, Any]  # plan fields; the plan itself checks them
Grid = dict[str, list[Any]]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Group(_Closed):
    """Rows that share a name: every model with every plan at every point of the grid, on every task."""

    model: str | list[str]
    plan: str | list[str]
    method: str | None = None  # the rows' name in the report; the plan's if not given
    of: str | None = None  # the model the rows stand under in the report; the model itself if not given
    adapter: str | None = None
    parity: Literal["llada", "dream"] | None = None
    cache: str | None = Field(default=None, pattern=f"^{FORM}$")  # approximate: dual:4, prompt:4
    hide_eos: bool = False  # masked slots do not attend to committed EOS
    grader: str = ""  # score the rows by this grader of the tasks; by the first one if empty
    fields: Fields = {}
    grid: Grid = {}
    tasks: list[str] | None = None
    family: Literal["llada", "dream"] | None = None  # rows for this built-in family alone


class SweepRecipe(_Closed):
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
    quantize: QuantizerName | None = None
    fewshot: Literal["keyed", "stream"] = "keyed"
    merge: bool = False  # fold adapters into the weights first: faster, rounds differently
    tables: list[TableLayout] = Field(default=[], alias="table")
    figures: list[FigureLayout] = Field(default=[], alias="figure")


@dataclass(frozen=True)
class SweepCell:
    """One evaluation: a model, a plan with its fields, a task.

    The id is a hash of the settings, weights included where they are on this machine.
    """

    model: str  # label
    method: str  # label
    settings: Settings = field(hash=False)
    grader: str = ""

    @cached_property
    def id(self) -> str:
        return settings_digest(self.settings.plain())[:12]

    @property
    def task(self) -> str:
        return self.settings.tasks[0]

    @property
    def folder(self) -> str:
        return f"cells/{self.id}"

    def __str__(self) -> str:
        given = " ".join(f"{name}={value}" for name, value in self.settings.fields.items())
        return f"{self.id} {self.model} {self.method} {self.task} {given}".rstrip()


def read(path: Path) -> SweepRecipe:
    """A recipe that parses and whose every cell is a plan; all faults at once."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"recipe {path}: no such file; `voidpad recipes` lists the ones that ship."
        ) from None
    except OSError as error:
        raise ConfigError(f"recipe {path}: cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number too long, deep nesting
        raise ConfigError(f"recipe {path}: not TOML: {reason(error)}.") from None
    return parse(raw, str(path))


def with_folders(recipe: SweepRecipe, folders: Mapping[str, str]) -> SweepRecipe:
    """The recipe with other places for the models and adapters it names; its rows keep their names."""
    named = {
        name for group in recipe.groups for name in (*_listed(group.model), group.adapter) if name is not None
    }
    if unknown := sorted(folders.keys() - named):
        raise ConfigError(f"use={unknown[0]}: the recipe names {', '.join(sorted(named))}.")
    groups = [
        group.model_copy(
            update={
                "model": folders.get(model, model),
                "adapter": folders.get(group.adapter or "", group.adapter),
                "of": group.of or model,
            }
        )
        for group in recipe.groups
        for model in _listed(group.model)
    ]
    return recipe.model_copy(update={"groups": groups})


def of_family(recipe: SweepRecipe, family: str) -> SweepRecipe:
    """The recipe with the built-in models of this family in the place of `tiny-*`, also in its title and rows.

    Groups of the other family are left out.
    """
    own = BUILT_IN_FAMILIES[family]
    groups = [group for group in recipe.groups if group.family in (None, family)]
    if not groups:
        raise ConfigError(f"family={family}: all rows of the recipe are for the other family.")
    recipe = recipe.model_copy(update={"groups": groups})
    if own == "tiny":
        return recipe
    places = {f"tiny-{arm}": f"{own}-{arm}" for arm in ARMS}
    named = {model for group in recipe.groups for model in _listed(group.model)} & places.keys()
    if not named:
        raise ConfigError(f"family={family}: the recipe names no built-in model; use --use NAME=FOLDER.")
    moved = with_folders(recipe, {name: places[name] for name in named})
    groups = [group.model_copy(update={"of": own}) if group.of == "tiny" else group for group in moved.groups]
    return moved.model_copy(update={"groups": groups, "title": f"{recipe.title} ({family} family)"})


def parse(raw: Mapping[str, Any], name: str) -> SweepRecipe:
    try:
        recipe = SweepRecipe.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"recipe {name}: {'; '.join(map(fault, error.errors()))}") from None
    count = sum(_size(recipe, group) for group in recipe.groups)
    if count > MOST_CELLS:
        raise ConfigError(
            f"recipe {name}: {count:,} cells, more than {MOST_CELLS:,}; make its grids smaller."
        )
    groups: dict[str, list[str]] = {}
    for at, said in _faults(recipe):
        groups.setdefault(said, []).append(str(at))
    if groups:
        faults = [f"group {', '.join(dict.fromkeys(at))}: {said}" for said, at in groups.items()]
        raise ConfigError(f"recipe {name}: {'; '.join(faults)}")
    return recipe


def _faults(recipe: SweepRecipe) -> Iterator[tuple[int, str]]:
    """(group, fault): what the plans and the evaluation refuse, and evaluations that have two names."""
    seen: dict[str, SweepCell] = {}
    known: dict[str, tuple[str, ...]] = {}
    for at, group in enumerate(recipe.groups):
        for point in _points(recipe, group):
            try:
                if point.model not in known:
                    known[point.model] = families(point.model)
                resolved_fields(point.plan, point.fields, known[point.model])
                cell = _cell(recipe, group, point)
            except VoidpadError as error:
                yield at, str(error)[:400]
                continue
            first = seen.setdefault(cell.id, cell)
            if (first.model, first.method) != (cell.model, cell.method):
                yield at, f"{first.method!r} and {cell.method!r} are the same evaluation; change or drop one"


def families(model: str) -> tuple[str, ...]:
    """The family of a model that is on this machine, from its card or config; every family for any other."""
    try:
        return (family_of(model, download=False).name,)
    except VoidpadError:  # loading the model says what is wrong with it
        return tuple(FAMILIES)


def resolved_fields(plan: str | Plan, fields: Fields, families: Sequence[str]) -> Fields:
    """Every field of the plan with its value, for the first of the families that accepts the fields."""
    refused: VoidpadError | None = None
    for family in families:
        try:
            return describe(plan, defaults=FAMILIES[family].decoding, **fields)[1]
        except VoidpadError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def cells(recipe: SweepRecipe, *, download: bool = False) -> list[SweepCell]:
    """Every cell once, in the order of the recipe, with the fingerprint of its weights where they are known.

    With `download`, models that are not on this machine are fetched first, so that their weights are known.
    """
    known: dict[tuple[str, str | None], str | None] = {}
    distinct: dict[str, SweepCell] = {}
    for group in recipe.groups:
        for point in _points(recipe, group):
            cell = _cell(recipe, group, point)
            pair = (cell.settings.model, cell.settings.adapter)
            if pair not in known:
                known[pair] = with_weights(cell.settings, download=download).weights
            cell = replace(cell, settings=replace(cell.settings, weights=known[pair]))
            distinct.setdefault(cell.id, cell)
    return list(distinct.values())


class _Point(NamedTuple):
    """One combination of a group."""

    model: str
    plan: str
    task: str
    fields: Fields


def _grid(recipe: SweepRecipe, group: Group) -> Grid:
    return {**{k: v for k, v in recipe.grid.items() if k not in group.fields}, **group.grid}


def _size(recipe: SweepRecipe, group: Group) -> int:
    axes = (
        _listed(group.model),
        _listed(group.plan),
        group.tasks or recipe.tasks,
        *_grid(recipe, group).values(),
    )
    return math.prod(map(len, axes))


def _points(recipe: SweepRecipe, group: Group) -> Iterator[_Point]:
    """Models x plans x the grid x tasks. A group's own field or axis replaces the recipe's."""
    grid = _grid(recipe, group)
    for model, plan in product(_listed(group.model), _listed(group.plan)):
        for values in product(*grid.values()):
            fields = {**recipe.fields, **group.fields, **dict(zip(grid, values, strict=True))}
            yield from (_Point(model, plan, task, fields) for task in group.tasks or recipe.tasks)


def _cell(recipe: SweepRecipe, group: Group, point: _Point) -> SweepCell:
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
        hide_eos=group.hide_eos,
        merge=recipe.merge,
    )
    changed = [f"cache={group.cache}"] if group.cache else []
    changed += ["hide_eos"] if group.hide_eos else []
    method = group.method or " ".join([point.plan, *changed])
    return SweepCell(group.of or point.model, method, settings, group.grader)


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
