"""Sweep recipes: models x plans x tasks x grids, written as TOML, read as cells with stable names.

A recipe is an `EvalConfig` and changes to it. At the top level, and in every group, each key that is not listed in the
classes below is a field of `EvalConfig`; a cell is the config of the top level with the changes of its group and of
one point of the grid.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from voidpad.decode.presets import describe
from voidpad.errors import ConfigError, VoidpadError, format_validation_error
from voidpad.evaluate.config import EvalConfig
from voidpad.experiments.report.layout import FigureLayout, TableLayout
from voidpad.files import readable
from voidpad.models import FAMILIES, open_checkpoint
from voidpad.models.locate import ARMS, BUILT_IN_FAMILIES

Fields = dict[str, Any]  # plan fields; the plan itself checks them
Grid = dict[str, list[Any]]
Names = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class _Part(BaseModel):
    """Keys that the class does not declare are fields of `EvalConfig`, which checks them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    fields: Fields = {}
    grid: Grid = {}  # plan field -> values

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Group(_Part):
    """Rows that share a name: every model with every plan at every point of the grid, on every task."""

    model: Names
    plan: Names
    method: str | None = None  # the rows' name in the report; the plan's if not given
    of: str | None = None  # the model the rows stand under in the report; the model itself if not given
    grader: str = ""  # score the rows by this grader of the tasks; by the first one if empty
    labels: dict[str, str] = {}  # further columns of the report's frame
    tasks: list[str] | None = None
    family: Literal["llada", "dream"] | None = None  # rows for this built-in family alone


class SweepRecipe(_Part):
    """A sweep. `fields`, `grid` and `tasks` hold for every group unless it says otherwise."""

    title: str = Field(min_length=1)
    reference: str = ""
    tasks: list[str] = Field(min_length=1)
    limit: int | None = None  # the first so many items of each task
    groups: list[Group] = Field(alias="group", min_length=1)
    # By family: `scores` of `void` and `void-expansion` in rows that do not set it. Shipped results pin it here.
    family_scores: dict[str, Literal["unbanned", "renormalised"]] = {}
    places: dict[str, str] = {}  # where models and adapters lie, by the names that the groups give them
    tables: list[TableLayout] = Field(default=[], alias="table")
    figures: list[FigureLayout] = Field(default=[], alias="figure")


@dataclass(frozen=True)
class SweepCell:
    """One evaluation: a model, a plan with its fields, a task. The labels name its row in the report."""

    model: str  # label
    method: str  # label
    config: EvalConfig = field(hash=False)
    grader: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    plan: Fields = field(default_factory=dict, hash=False)  # every field of the plan with its value

    @property
    def id(self) -> str:
        """A hash of the config, weights included where they are on this machine."""
        return self.config.id

    @property
    def task(self) -> str:
        return self.config.tasks[0]

    @property
    def folder(self) -> str:
        return f"cells/{self.id}"

    def __str__(self) -> str:
        given = " ".join(f"{name}={value}" for name, value in self.config.fields.items())
        return f"{self.id} {self.model} {self.method} {self.task} {given}".rstrip()


# ------------------------------------------------------------------------------------------------ reading a recipe
def read(path: Path) -> SweepRecipe:
    """A recipe that parses and whose every cell is a plan."""
    with readable(path, "TOML", ConfigError):
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    return parse(raw, str(path))


def parse(raw: Mapping[str, Any], name: str) -> SweepRecipe:
    """The recipe. What a plan or the evaluation refuses is named with its group."""
    try:
        recipe = SweepRecipe.model_validate(raw)
        list(_combinations(recipe))
    except ValidationError as error:
        raise ConfigError(f"recipe {name}: {format_validation_error(error)}") from None
    except VoidpadError as error:
        raise ConfigError(f"recipe {name}: {error}") from None
    return recipe


def with_folders(recipe: SweepRecipe, folders: Mapping[str, str]) -> SweepRecipe:
    """The recipe with other places for the models and adapters it names; its rows keep their names."""
    named = {name for group in recipe.groups for name in group.model}
    named |= {str(group.config["adapter"]) for group in recipe.groups if group.config.get("adapter")}
    if unknown := sorted(folders.keys() - named):
        raise ConfigError(f"use={unknown[0]}: the recipe names {', '.join(sorted(named))}.")
    return recipe.model_copy(update={"places": {**recipe.places, **folders}})


def of_family(recipe: SweepRecipe, family: str) -> SweepRecipe:
    """The recipe with the built-in models of this family in the place of `tiny-*`, also in its title and rows.

    Groups of the other family are left out.
    """
    own = BUILT_IN_FAMILIES[family]
    groups = [group for group in recipe.groups if group.family in (None, family)]
    if not groups:
        raise ConfigError(f"family={family}: all rows of the recipe are for the other family.")
    if own == "tiny":
        return recipe.model_copy(update={"groups": groups})
    places = {f"tiny-{arm}": f"{own}-{arm}" for arm in ARMS}
    if not any(name in places for group in groups for name in group.model):
        raise ConfigError(f"family={family}: the recipe names no built-in model; use --use NAME=FOLDER.")
    groups = [group.model_copy(update={"of": own}) if group.of == "tiny" else group for group in groups]
    title = f"{recipe.title} ({family} family)"
    return recipe.model_copy(update={"groups": groups, "places": places, "title": title})


# ---------------------------------------------------------------------------------------------------------- cells
def cells(recipe: SweepRecipe, *, download: bool = False) -> list[SweepCell]:
    """Every row of every group, in the order of the recipe; rows with equal ids are one evaluation.

    Configs have the fingerprint of their weights where these are known. With `download`, models that are not on this
    machine are fetched first, so that their weights are known.
    """
    known: dict[tuple[str, str | None], str | None] = {}
    found: dict[Any, SweepCell] = {}
    for cell in _combinations(recipe):
        pair = (cell.config.model, cell.config.adapter)
        if pair not in known:
            known[pair] = cell.config.with_weights(download=download).weights
        cell = replace(cell, config=cell.config.model_copy(update={"weights": known[pair]}))
        found.setdefault((cell.id, cell.model, cell.method, cell.grader, str(cell.labels)), cell)
    return list(found.values())


def _combinations(recipe: SweepRecipe) -> Iterator[SweepCell]:
    """Models x plans x the grid x tasks of every group. A group's own field or axis replaces the recipe's."""
    known: dict[str, list[str]] = {}  # model -> the families it may be of
    for at, group in enumerate(recipe.groups):
        tasks = group.tasks or recipe.tasks
        shared = {**recipe.fields, **group.fields}
        grid = {**{name: recipe.grid[name] for name in recipe.grid if name not in group.fields}, **group.grid}
        settings = {"limit": recipe.limit, **recipe.config, **group.config, "model": "", "tasks": tasks}
        if settings.get("adapter"):
            settings["adapter"] = recipe.places.get(settings["adapter"], settings["adapter"])
        try:
            base = EvalConfig(**settings)
            for name, plan, values in product(group.model, group.plan, product(*grid.values())):
                model = recipe.places.get(name, name)
                known |= {model: families(model)} if model not in known else {}
                fields = {**shared, **dict(zip(grid, values, strict=True))}
                if len(known[model]) == 1 and plan in ("void", "void-expansion") and "scores" not in fields:
                    pinned = recipe.family_scores.get(known[model][0])
                    fields |= {"scores": pinned} if pinned else {}
                resolved = _resolved(plan, fields, known[model])
                point = base.model_copy(update={"model": model, "plan": plan, "fields": fields})
                changed = [f"cache={base.cache}"] if base.cache else []
                method = group.method or " ".join([plan, *changed, *(["hide_eos"] if base.hide_eos else [])])
                for task in tasks:
                    config = point.model_copy(update={"tasks": (task,)})
                    yield SweepCell(group.of or name, method, config, group.grader, group.labels, resolved)
        except VoidpadError as error:
            raise ConfigError(f"group {at}: {error}") from None


def families(model: str) -> list[str]:
    """The family of a model that is on this machine, from its card or config; every family for any other."""
    try:
        return [open_checkpoint(model, download=False).family.name]
    except VoidpadError:  # loading the model says what is wrong with it
        return list(FAMILIES)


def _resolved(plan: str, fields: Fields, families: Sequence[str]) -> Fields:
    """Every field of the plan with its value, for the first of the families that accepts the fields."""
    refused: list[VoidpadError] = []
    for family in families:
        try:
            return describe(plan, fields, defaults=FAMILIES[family].decoding)[1]
        except VoidpadError as error:
            refused.append(error)
    raise refused[0]
