"""Answers to many prompts through one pool of the engine."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from voidpad.decode.loop import Outcome
from voidpad.decode.plan import Plan
from voidpad.engine.batching import Engine
from voidpad.evaluate.journal import Record
from voidpad.evaluate.texts import Reader, cut_first
from voidpad.models import Model


@dataclass(frozen=True)
class Job:
    """One prompt of one task."""

    name: str
    prompt: str
    stops: tuple[str, ...] = ()
    rendered: bool = False  # the chat template is in the prompt already

    @property
    def key(self) -> int:
        """The row's identity. It hangs on the example alone, so a resumed or sharded run draws the same."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big") >> 2

    @property
    def prompt_sha256(self) -> str:
        return hashlib.sha256(self.prompt.encode()).hexdigest()


@dataclass(frozen=True)
class Answering:
    """How prompts become answers."""

    model: Model
    plan: Plan
    seed: int = 0
    rows: int = 32
    tokens: int = 16384
    read: Reader = cut_first
    system: str | None = None
    raw: bool = False
    cache: str | None = None  # prefix or dual: approximate

    def __post_init__(self) -> None:
        self.model.roles.ids([*self.plan.ban, *self.plan.mute])  # a role the model lacks is refused here
        self.engine()  # and so are a cache or limits that cannot be

    @property
    def accelerated(self) -> tuple[str, ...]:
        """Approximations that are on, as `Result` names them."""
        return self.model.approximations(self.plan, cache=self.cache)

    def engine(self) -> Engine:
        return self.model.engine(rows=self.rows, tokens=self.tokens, cache=self.cache, block=self.plan.block)

    def encode(self, job: Job) -> list[int]:
        bare = job.rendered or self.raw
        return self.model.encode(job.prompt, raw=bare, system=None if bare else self.system)

    def run(self, jobs: Sequence[Job]) -> Iterator[list[Record]]:
        """All prompts as one pool; after each pass, the records of the rows that ended."""
        start = time.perf_counter()
        engine = self.engine()
        waiting: dict[int, tuple[Job, int, Plan]] = {}
        for job in jobs:
            ids = self.encode(job)
            plan = self.model.fit(ids, self.plan)
            waiting[engine.submit(ids, plan, seed=self.seed, key=job.key)] = (job, len(ids), plan)
        while engine.busy:
            done = [self._record(outcome, *waiting.pop(outcome.key)) for outcome in engine.step()]
            if done:
                yield [replace(record, elapsed=time.perf_counter() - start) for record in done]

    def _record(self, outcome: Outcome, job: Job, prompt_tokens: int, plan: Plan) -> Record:
        roles = self.model.roles
        ended = [slot for slot, token in enumerate(outcome.ids) if token in roles.ends]
        answer = outcome.ids[: ended[0]] if ended else outcome.ids
        stopped = outcome.stop_reason in ("eos", "rule")
        slots = outcome.tokens if stopped else outcome.ids
        return Record(
            name=job.name,
            prompt_sha256=job.prompt_sha256,
            prompt_tokens=prompt_tokens,
            output=self.read(self.model, slots, job.stops),
            ids=outcome.ids,
            answer_tokens=sum(token not in roles.all() for token in answer),
            eos=bool(ended),
            at_cap=not ended and outcome.canvas >= plan.limit,
            passes_decode=outcome.passes_decode,
            passes_probe=outcome.passes_probe,
            passes_shared=outcome.passes_shared,
            stop_reason=outcome.stop_reason,
            seconds=outcome.seconds,
        )
