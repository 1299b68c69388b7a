"""What an evaluation is, apart from the machine it runs on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from voidpad.decode.plan import Plan
from voidpad.engine.cache_policy import cache_fault
from voidpad.errors import ConfigError
from voidpad.evaluate.tasks import FEWSHOT, FOLDER

PARITIES = ("llada", "dream")


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
    cache: str | None = None  # keep keys and values inside a block, approximately: prefix or dual

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise ConfigError("; ".join(faults))

    def _faults(self) -> Any:
        known = known_tasks()
        if not self.tasks:
            yield f"tasks: none given; use some of {', '.join(known)}"
        for task in self.tasks:
            if task not in known:
                others = "python -m voidpad.evaluate.lm_eval runs lm-eval's own tasks"
                yield f"task {task!r} is unknown; use one of {', '.join(known)} ({others})"
        if len(set(self.tasks)) < len(self.tasks):
            yield f"tasks: {', '.join(self.tasks)} names one twice"
        if self.limit is not None and self.limit < 1:
            yield f"limit={self.limit} must be at least 1"
        if self.fewshot not in FEWSHOT:
            yield f"fewshot={self.fewshot!r} is unknown; use one of {', '.join(FEWSHOT)}"
        if self.parity not in (None, *PARITIES):
            yield f"parity={self.parity!r} is unknown; use llada or dream, or leave it out"
        if self.cache is not None and (fault := cache_fault(self.cache)):
            yield fault
        if self.shard is not None:
            part, parts = self.shard
            if not 0 <= part < parts:
                yield f"shard={part}/{parts}: the first number must lie in 0..{parts - 1}"
            if self.fewshot == "stream":
                yield "fewshot=stream depends on the order of all items; drop the shard or use fewshot=keyed"

    def plain(self) -> dict[str, Any]:
        """As JSON values. Without a cache there is no such key: fingerprints are those from before it."""
        plan = self.plan.plain() if isinstance(self.plan, Plan) else self.plan
        found = json.loads(json.dumps({**asdict(replace(self, plan="")), "plan": plan}))
        return found if self.cache else {name: value for name, value in found.items() if name != "cache"}


def fingerprint(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Resources:
    """Where and how fast it runs; none of this changes a result."""

    device: str = "cpu"
    rows: int = 32  # most rows in one forward pass
    tokens: int = 16384  # most tokens in one forward pass
    data: Path | None = None  # folder with the benchmarks' files; the hub without it
    allow_code_execution: bool = False
    weak_sandbox: bool = False
    workers: int = 1  # programs tested side by side

    def task_options(self, settings: Settings) -> dict[str, Any]:
        return {
            "data": str(self.data) if self.data else None,
            "fewshot": settings.fewshot,
            "weak_sandbox": self.weak_sandbox,
            "workers": self.workers,
        }
