"""What an evaluation is, apart from the machine it runs on."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from voidpad.decode.plan import Plan
from voidpad.engine.cache_policy import cache_fault
from voidpad.errors import ConfigError, DataError
from voidpad.evaluate.tasks import FEWSHOT, FOLDER

PARITIES = ("llada", "dream")
RESOLVED = "plan_resolved"  # the key of config.json's settings that holds every field of the plan
# Left out of files while they have their default.
_OPTIONAL: dict[str, Any] = {
    "cache": None,
    "hide_eos": False,
    "merge": False,
    "weights": None,
    "num_fewshot": None,
    "own_tasks": {},
}
_NEVER = object()  # equal to no value


def known_tasks() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@dataclass(frozen=True)
class Settings:
    """Everything that decides the results. Two runs with equal settings give equal files."""

    model: str
    tasks: tuple[str, ...]
    plan: str | Plan = "void"  # a preset's name, or a plan with rules of the user's own
    fields: Mapping[str, Any] = field(default_factory=dict)  # plan fields given by the user
    adapter: str | None = None
    dtype: str = "auto"
    quantize: str | None = None
    limit: int | None = None  # the first so many items of each task
    shard: tuple[int, int] | None = None  # (r, W): of those, items r, r + W, ...
    seed: int = 0
    fewshot: str = "keyed"  # or "stream", lm-eval's own draw
    fewshot_seed: int = 1234
    parity: str | None = None  # read canvases as the paper's harness does: llada or dream
    system: str | None = None
    raw: bool = False  # no chat template
    cache: str | None = None  # keep keys and values inside a block, approximately: dual:4, prompt:4
    hide_eos: bool = False  # masked slots do not attend to committed EOS (the paper's intervention)
    merge: bool = False  # fold the adapter into the weights before decoding: faster, rounds differently
    weights: str | None = None  # fingerprint of model and adapter; None until the weights are there
    num_fewshot: int | None = None  # shots in the prompt; None: each task's own number
    # Digest of each task that is not voidpad's, by name.
    own_tasks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise ConfigError("; ".join(faults))

    def _faults(self) -> Iterator[str]:
        known = known_tasks()
        if not self.tasks:
            yield f"tasks: none given; use some of {', '.join(known)}"
        for task in self.tasks:
            if task in known and task in self.own_tasks:
                yield f"task {task!r} of your own has the name of a task of voidpad; give it another name"
            if task not in known and task not in self.own_tasks:
                others = "--include-path finds tasks of your own, python -m voidpad.evaluate.lm_eval runs lm-eval's"
                yield f"task {task!r} is unknown; use one of {', '.join(known)} ({others})"
        if len(set(self.tasks)) < len(self.tasks):
            yield f"tasks: {', '.join(self.tasks)} names one twice"
        if self.limit is not None and self.limit < 1:
            yield f"limit={self.limit} must be at least 1"
        if self.num_fewshot is not None and self.num_fewshot < 0:
            yield f"num_fewshot={self.num_fewshot} must be at least 0"
        if self.fewshot not in FEWSHOT:
            yield f"fewshot={self.fewshot!r} is unknown; use one of {', '.join(FEWSHOT)}"
        if self.parity not in (None, *PARITIES):
            yield f"parity={self.parity!r} is unknown; use llada or dream, or leave it out"
        if self.cache is not None and (fault := cache_fault(self.cache)):
            yield fault
        if self.hide_eos and self.cache:
            yield f"hide_eos and cache={self.cache!r} exclude each other; drop one"
        if self.merge and self.quantize:
            yield (
                f"merge and quantize={self.quantize!r} exclude each other; write the merged model with `voidpad merge` "
                "and evaluate that folder without merge and adapter"
            )
        if self.shard is not None:
            part, parts = self.shard
            if not 0 <= part < parts:
                yield f"shard={part}/{parts}: the first number must lie in 0..{parts - 1}"
            if self.fewshot == "stream":
                yield "fewshot=stream depends on the order of all items; drop the shard or use fewshot=keyed"

    def plain(self) -> dict[str, Any]:
        """As JSON values. Settings that most runs leave alone have no key while they have their default."""
        plan = self.plan.plain() if isinstance(self.plan, Plan) else self.plan
        values = json.loads(json.dumps({**asdict(replace(self, plan="")), "plan": plan}))
        return {name: value for name, value in values.items() if value != _OPTIONAL.get(name, _NEVER)}

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> "Settings":
        """The settings that `plain` wrote; the resolved plan beside them is left out."""
        given = {name: value for name, value in plain.items() if name != RESOLVED}
        shard = given.get("shard")
        unknown = sorted(set(given) - {one.name for one in fields(cls)})
        if unknown:
            raise DataError(f"settings: {unknown[0]!r} is unknown; use the voidpad that wrote the run.")
        return cls(**{**given, "tasks": tuple(given["tasks"]), "shard": tuple(shard) if shard else None})


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The name of the first setting, by the alphabet, in which two runs differ; None if they are equal."""
    return next((name for name in sorted({*one, *other}) if one.get(name) != other.get(name)), None)


def settings_digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


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
    include_path: tuple[Path, ...] = ()  # YAML files, or folders of them, with tasks that are not voidpad's
    trust_tasks: bool = False  # such files may run code: the functions they name, and templates

    def task_options(self, settings: Settings) -> dict[str, Any]:
        return {
            "data": str(self.data) if self.data else None,
            "fewshot": settings.fewshot,
            "weak_sandbox": self.weak_sandbox,
            "workers": self.workers,
        }
