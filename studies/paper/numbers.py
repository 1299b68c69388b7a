"""The published numbers of the VoidPadding paper, with all that its derived numbers are derived from."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from studies.paper.sheets import Frozen, Number, PublishedNumbers, Setting, Sheet

__all__ = ["FILE", "Number", "Paper", "PaperSheet", "published"]

FILE = Path(__file__).parent / "published.toml"


class Method(Frozen):
    padding: str
    ban: tuple[str, ...]
    stop: str
    length: str


class Stopping(Frozen):
    """A row of Table 5: the method under both stopping rules."""

    vanilla: str
    termination: str
    printed: tuple[float, float, float, float]


class Table5(Frozen):
    blocks: tuple[int, ...]
    rows: dict[str, Stopping]


class Spread(Frozen):
    """A row of Table 6: what moves, and the range the results then cover."""

    axes: tuple[str, ...]
    score: tuple[float, float]
    nfe: tuple[float, float]
    sheets: tuple[str, ...] = ()
    values: tuple[int, ...] = ()


class Claim(Frozen):
    """A difference stated in the text: the first row minus the second, in one column of a sheet."""

    what: str
    source: str
    value: float
    sheet: str
    rows: tuple[tuple[str, ...], tuple[str, ...]]
    column: Setting


class Statement(Frozen):
    """A setting stated in several places."""

    id: str
    what: str
    values: dict[str, Any]
    effect: str


class Observation(Frozen):
    task: str
    model: str
    method: str
    canvas: int
    block: int
    plain: float
    eos_banned_first_answer: float


class Abstract(Frozen):
    dream_nfe_reduction: float
    observation1: Observation


class PaperSheet(Sheet):
    """A sheet whose printed values can be looked up by the names of a row."""

    def row(self, *path: str) -> tuple[float, ...]:
        """The measured values of one row, summaries left out."""
        return self._values(path)[: len(self.columns)]

    def at(self, *path: str, column: Setting) -> float:
        """One printed value; `column` may be a summary."""
        return self._values(path)[(*self.columns, *self.summary).index(column)]

    def _values(self, path: tuple[str, ...]) -> tuple[float, ...]:
        return next(values for names, values in self.rows() if tuple(names.values()) == path)


class Paper(PublishedNumbers):
    model_config = ConfigDict(extra="forbid", frozen=True)

    sheets: tuple[PaperSheet, ...] = Field(alias="sheet")
    version: int
    tasks: tuple[str, ...]
    sizes: dict[str, tuple[int, ...]]
    methods: dict[str, Method]
    table5: Table5
    table6: dict[str, Spread]
    abstract: Abstract
    claims: tuple[Claim, ...] = Field(alias="claim")
    statements: tuple[Statement, ...] = Field(alias="statement")

    def sheet(self, name: str) -> PaperSheet:
        return next(sheet for sheet in self.sheets if sheet.id == name)


@cache
def published() -> Paper:
    """The data file beside this module."""
    return Paper.model_validate(tomllib.loads(FILE.read_text(encoding="utf-8")))
