"""What the JSON files of a run folder must hold to be read: names and types, checked before anything uses them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, model_validator

from voidpad.errors import DataError, fault, printable, reason

Pair = Annotated[list[float], Field(min_length=2, max_length=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
# Pydantic's own check of texts refuses half a surrogate pair, which JSON can carry.
Text = Annotated[str, InstanceOf()]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Shape(BaseModel):
    """Fields that are not named here may be anything: other releases write other ones."""

    model_config = ConfigDict(strict=True, extra="allow")


class _ResolvedPlan(_Shape):
    """Every field of a plan with its value; those that reports compute with."""

    block: Annotated[int, Field(ge=1)] | None = None
    canvas: Annotated[int, Field(ge=1)] | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    steps: Annotated[int, Field(ge=1)] | None = None


class StoredSettings(_Shape):
    """`settings` of config.json and of a sweep's cells."""

    model: str
    tasks: list[str]
    plan: str | dict[str, Any]
    fields: dict[str, Any]
    adapter: str | None = None
    dtype: str = "auto"
    quantize: str | None = None
    limit: int | None = None
    shard: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    seed: int = 0
    fewshot: str = "keyed"
    fewshot_seed: int = 1234
    parity: str | None = None
    system: str | None = None
    raw: bool = False
    cache: str | None = None
    hide_eos: bool = False
    merge: bool = False
    weights: str | None = None
    plan_resolved: _ResolvedPlan | None = None


class _Allowed(_Shape):
    allowed: bool
    weak: bool


class _Provenance(_Shape):
    """Facts about the machines; each stage adds its own, so most may be missing."""

    commit: str | None = None
    dirty: bool | None = None
    device: str | None = None
    device_count: int | None = None
    tf32: bool | None = None
    probes_counted: bool | None = None
    approximations: list[str] = []
    sandbox: _Allowed | None = None


class RunConfig(_Shape):
    settings: dict[str, Any]
    provenance: _Provenance


class _Score(_Shape):
    correct: Amount
    score: float
    interval: Pair


class _TaskResult(_Score):
    n: Annotated[int, Field(ge=1)]
    test_size: int
    filter: str
    scores: dict[str, _Score]
    passes_decode: Amount
    passes_probe: Amount
    passes_shared: Amount
    passes_total: float
    canvas: Amount
    answer_tokens: Amount
    share_at_cap: Share
    share_without_eos: Share
    seconds: Amount

    @model_validator(mode="after")
    def _no_more_than_all(self) -> Self:
        if max([self.correct, *(score.correct for score in self.scores.values())]) > self.n:
            raise ValueError(f"more answers are correct than the {self.n} there are")
        return self


class RunResults(_Shape):
    tasks: Annotated[dict[str, _TaskResult], Field(min_length=1)]
    provenance: _Provenance
    wall_seconds: Amount


class RunExample(_Shape):
    """A line of examples.jsonl."""

    task: str
    index: int
    prompt_sha256: str
    output: Text
    score: float
    scores: dict[str, float]
    passes_decode: Count
    passes_probe: Count
    passes_shared: Count
    canvas: Count
    answer_tokens: int
    seconds: float


class StoredRequest(BaseModel):
    """A line of requests.jsonl, which has no other fields."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    prompt: Text
    stop: list[str]
    gold: Any = None
    rendered: bool = False


class StoredAnswer(BaseModel):
    """A line of progress.jsonl, which has no other fields."""

    model_config = ConfigDict(strict=True, extra="forbid")

    key: int
    ids: list[int]
    tokens: list[int]
    passes_decode: Count
    passes_probe: Count = 0
    passes_shared: Count = 0
    stop_reason: str
    seconds: Amount = 0.0
    name: str
    prompt_sha256: str
    prompt_tokens: int
    output: Text
    answer_tokens: int
    eos: bool
    at_cap: bool
    attempt: Count = 0
    elapsed: Amount = 0.0


class _SweepRow(_Shape):
    folder: str
    model: str
    method: str
    task: str
    grader: str = ""
    at: _ResolvedPlan
    settings: StoredSettings


class SweepFile(_Shape):
    """NAME.sweep.json."""

    title: str
    cells: list[_SweepRow]
    tables: list[dict[str, Any]]
    figures: list[dict[str, Any]]


def check_shape(shape: type[BaseModel], value: Any, where: str, fix: str) -> None:
    """Refuse a value that does not have the shape; the message names the first field at fault."""
    try:
        shape.model_validate(value)
    except ValidationError as error:
        raise DataError(f"{where}: {printable(fault(error.errors()[0]))[:300]}; {fix}.") from None


def read_json_lines(path: Path, fix: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line; a file or line that cannot be read is named."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({reason(error)}); {fix}.") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number} is damaged ({reason(error)}); {fix}.") from None
        if not isinstance(value, dict):
            raise DataError(f"{path}:{number} is damaged (not a JSON object); {fix}.")
        yield number, value
