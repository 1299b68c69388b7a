"""A file of published numbers, to set measured ones beside (`python -m studies.paper.measured`).

The file is TOML: `[models.NAME]` with hub id and title, and `[[sheet]]` blocks of printed numbers; other tables are
ignored. studies/paper/published.toml holds the VoidPadding paper's.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from voidpad.errors import ConfigError, first_line, format_validation_error

Setting = int | float | str
SUMMARIES = ("mean", "geomean", "best", "worst")


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Number(NamedTuple):
    """One printed measurement with everything that identifies it."""

    sheet: str
    source: str
    metric: str  # score | nfe | nfe_reduction | speedup | wall
    model: str
    method: str
    task: str  # "mean": the paper's own mean over its tasks
    settings: frozenset[tuple[str, Setting]]
    value: float

    @property
    def at(self) -> dict[str, Any]:
        return dict(self.settings)

    @property
    def identity(self) -> tuple[str, str, str, str, frozenset[tuple[str, Setting]]]:
        """What must be equal for two numbers to be the same measurement."""
        return self.metric, self.model, self.method, self.task, self.settings


class Sheet(Frozen):
    """One printed block: nested rows named by `levels`, columns along `across`, then summary columns."""

    id: str
    source: str
    metric: str
    model: str
    levels: tuple[str, ...]
    across: str
    columns: tuple[Setting, ...]
    cells: dict[str, Any]
    method: str | None = None
    settings: dict[str, Setting] = {}
    per: dict[str, dict[str, Setting]] = {}  # settings of one method only
    summary: tuple[str, ...] = ()
    decimals: int = 2

    @model_validator(mode="after")
    def _complete(self) -> "Sheet":
        """Every row holds a number for each column and each summary."""
        if not self.levels:
            raise ValueError("levels names no row")
        wanted = len(self.columns) + len(self.summary)
        for names, values in self.rows():
            if len(values) != wanted or not all(type(value) in (int, float) for value in values):
                raise ValueError(f"{' '.join(names.values())}: not {wanted} numbers, one for each column")
            if not {"task", "method"} <= {*names, self.across, *(["method"] if self.method else [])}:
                raise ValueError("levels, across and method must name a task and a method")
        return self

    def rows(self) -> Iterator[tuple[dict[str, str], tuple[float, ...]]]:
        """(names of the row, its printed values) for every row, the means over tasks included."""
        yield from _walk(self.cells, self.levels, {})

    def numbers(self) -> Iterator[Number]:
        """Every printed measurement; a summary over tasks counts as the task "mean"."""
        for names, values in self.rows():
            for column, value in zip((*self.columns, *self.summary), values, strict=True):
                if column in SUMMARIES and self.across != "task":
                    continue
                place: dict[str, Any] = {"method": self.method, **names}
                place[self.across] = "mean" if column in SUMMARIES else column
                yield self._number(place, value)

    def _number(self, place: dict[str, Any], value: float) -> Number:
        method, task = place.pop("method"), place.pop("task")
        moved = {name: float(at) if name.startswith("tau") else at for name, at in place.items()}
        settings = frozenset({**self.settings, **self.per.get(method, {}), **moved}.items())
        return Number(self.id, self.source, self.metric, self.model, method, task, settings, value)


class PublishedModel(Frozen):
    hub: str
    family: str
    title: str


class PublishedNumbers(BaseModel):
    """Printed numbers that can be looked up by what they measure."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    models: dict[str, PublishedModel]
    sheets: tuple[Sheet, ...] = Field(alias="sheet")

    @cached_property
    def numbers(self) -> list[Number]:
        return [number for sheet in self.sheets for number in sheet.numbers()]

    def find(self, wanted: tuple[str, str, str, str], settings: Mapping[str, Any]) -> list[Number]:
        """The printed values of a (metric, model, method, task), one per place; `settings` may say more."""
        return [
            number
            for number in self.numbers
            if number.identity[:4] == wanted
            and all(settings.get(name) == value for name, value in number.settings)
        ]

    def model_of(self, hub: str) -> str | None:
        """The short name of one of the published models, or None for any other."""
        return next((name for name, model in self.models.items() if hub in (name, model.hub)), None)


def read_published(path: Path) -> PublishedNumbers:
    try:
        return PublishedNumbers.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"published {path}: cannot be read ({error.strerror}); check the path.") from None
    except ValidationError as error:
        raise ConfigError(f"published {path}: {format_validation_error(error)}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number too long, deep nesting
        raise ConfigError(f"published {path}: not TOML: {first_line(error)}.") from None


def _walk(
    cells: Mapping[str, Any], levels: tuple[str, ...], names: dict[str, str]
) -> Iterator[tuple[dict[str, str], tuple[float, ...]]]:
    for key, below in cells.items():
        here = {**names, levels[0]: key}
        if len(levels) == 1:
            yield here, tuple(below) if isinstance(below, list) else ()
        elif isinstance(below, Mapping):
            yield from _walk(below, levels[1:], here)
        else:
            yield here, ()
