"""What an evaluation is (`EvalConfig`), and where it runs (`Resources`).

`EvalConfig` is the one description of an evaluation: the command line builds it, a sweep copies it with changes, the
run folder stores it, lm-eval's `--model_args` fill it, and reports read it back.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    field_serializer,
    model_validator,
)

from voidpad.decode.plan import Plan
from voidpad.engine.cache_policy import cache_fault
from voidpad.errors import ConfigError, VoidpadError, format_validation_error
from voidpad.evaluate.tasks import known_tasks
from voidpad.models.locate import find_source


class EvalConfig(BaseModel):
    """Everything that decides the results: two runs with equal configs give equal answers and scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    tasks: tuple[str, ...] = ()
    # A preset's name, or a user's own plan; read back from a folder, the latter is a mapping that cannot be run.
    plan: str | InstanceOf[Plan] | dict[str, Any] = "void"
    fields: dict[str, Any] = {}  # plan fields given by the user
    adapter: str | None = None
    merge: bool = False  # fold the adapter into the weights before decoding: faster, rounds differently
    dtype: str = "auto"
    quantize: str | None = None
    weights: str | None = None  # fingerprint of model and adapter; None until the weights are on this machine
    limit: int | None = Field(default=None, ge=1)  # the first so many items of each task
    shard: tuple[int, int] | None = None  # (r, W): of those, items r, r + W, ...
    seed: int = 0
    fewshot: Literal["keyed", "stream"] = "keyed"  # shots by seed and item, or lm-eval's own stream of draws
    fewshot_seed: int = 1234
    num_fewshot: int | None = Field(default=None, ge=0)  # shots in the prompt; None: each task's own number
    parity: Literal["llada", "dream"] | None = None  # read canvases as the paper's harness does
    system: str | None = None
    raw: bool = False  # no chat template
    cache: str | None = None  # keep keys and values inside a block, approximately: dual:4, prompt:4
    hide_eos: bool = False  # masked slots do not attend to committed EOS (the paper's intervention)
    own_tasks: dict[str, str] = {}  # the YAML file of each task that is not voidpad's, by name

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(format_validation_error(error)) from None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        known, faults = known_tasks(), []
        for task in self.tasks:
            if task not in known and task not in self.own_tasks:
                others = "or a YAML file of your own; python -m voidpad.evaluate.lm_eval runs lm-eval's"
                faults.append(f"task {task!r} is unknown; use one of {', '.join(known)}, {others}")
        if len(set(self.tasks)) < len(self.tasks):
            faults.append(f"tasks: {', '.join(self.tasks)} names one twice")
        if self.cache is not None and (wrong := cache_fault(self.cache)):
            faults.append(wrong)
        if self.hide_eos and self.cache:
            faults.append(f"hide_eos and cache={self.cache!r} exclude each other; drop one")
        if self.merge and self.quantize:
            advice = "write the merged model with `voidpad merge` and evaluate that folder without merge and adapter"
            faults.append(f"merge and quantize={self.quantize!r} exclude each other; {advice}")
        part, parts = self.shard or (0, 1)
        if not 0 <= part < parts:
            faults.append(f"shard={part}/{parts}: the first number must lie in 0..{parts - 1}")
        if self.shard is not None and self.fewshot == "stream":
            faults.append(
                "fewshot=stream depends on the order of all items; drop the shard or use fewshot=keyed"
            )
        if faults:
            raise ConfigError("; ".join(faults))
        return self

    @field_serializer("plan")
    def _plain_plan(self, plan: Any) -> Any:
        return plan.plain() if isinstance(plan, Plan) else plan

    def updated(self, **changes: Any) -> Self:
        """A copy with other values, checked like a new config."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    def plain(self) -> dict[str, Any]:
        """Every field as JSON values, as config.json holds them."""
        return self.model_dump(mode="json")

    def require_equal(self, other: Self, where: Path, fix: str) -> None:
        """Refuse a config that differs from this one, that of the run at `where`."""
        mine, theirs = self.plain(), other.plain()
        for name in sorted(mine):
            if mine[name] != theirs[name]:
                raise ConfigError(f"{where}: a run with {name}={mine[name]!r}, now {theirs[name]!r}; {fix}")

    @property
    def id(self) -> str:
        """A hash of what differs from the defaults, so that a new field changes no id."""
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def with_weights(self, *, download: bool = False) -> Self:
        """A copy with the fingerprint of the weights, or without one where they are not on this machine.

        Nothing is fetched from the hub unless `download` is set.
        """
        try:
            weights = find_source(self.model, self.adapter, download=download).fingerprint
        except (VoidpadError, OSError):
            weights = None  # loading the model says what is wrong with it
        return self.model_copy(update={"weights": weights})


@dataclass(frozen=True)
class Resources:
    """Where and how fast an evaluation runs; none of this changes a result."""

    device: str = "cpu"
    rows: int = 32  # most rows in one forward pass
    tokens: int = 16384  # most tokens in one forward pass
    data: Path | None = None  # folder with the benchmarks' files; the hub without it
    allow_code_execution: bool = False
    weak_sandbox: bool = False
    workers: int = 1  # programs tested side by side
    trust_tasks: bool = False  # a user's YAML files may run code: the functions they name, and templates


DEFAULT_RESOURCES = Resources()
