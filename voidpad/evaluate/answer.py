"""The second stage: answers to prepared requests, through one pool of the engine.

This module needs torch, transformers and our engine alone: a GPU machine can answer without lm-eval, a sandbox
or the benchmarks' data.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch

from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan, describe
from voidpad.engine.batching import Engine
from voidpad.engine.events import Failed, Finished
from voidpad.engine.hide_eos import hidden_eos
from voidpad.errors import ConfigError, DataError, VoidpadError, reason
from voidpad.evaluate.folder import AnswerRequest, RunFolder
from voidpad.evaluate.journal import AnswerRecord, Journal
from voidpad.evaluate.provenance import answer_provenance
from voidpad.evaluate.settings import RESOLVED, Resources, Settings
from voidpad.evaluate.texts import READERS, Reader, cut_first
from voidpad.evaluate.workers import Workers
from voidpad.models import Model, load, merge

Progress = Callable[[int, int], None]  # (examples done, examples in all)


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
    cache: str | None = None  # a policy of engine/cache_policy.py: approximate
    hide_eos: bool = False

    def __post_init__(self) -> None:
        self.model.roles.ids(self.plan.names)  # a role the model lacks is refused here
        self.engine().accepts(self.plan)  # and so are a cache or limits that cannot be

    @property
    def approximations(self) -> tuple[str, ...]:
        """What makes these answers differ from plain decoding, as `Result` names it."""
        return self.model.approximations(self.plan, cache=self.cache)

    def engine(self) -> Engine:
        if self.hide_eos:
            denoiser = self.model.denoiser(forbid=hidden_eos)
            return Engine(denoiser, self.model.roles, rows=self.rows, tokens=self.tokens)
        return self.model.engine(rows=self.rows, tokens=self.tokens, cache=self.cache, block=self.plan.block)

    def encode(self, request: AnswerRequest) -> list[int]:
        bare = request.rendered or self.raw
        return self.model.encode(request.prompt, raw=bare, system=None if bare else self.system)

    def run(self, requests: Sequence[AnswerRequest]) -> Iterator[list[AnswerRecord]]:
        """All requests as one pool; after each pass, the records of the rows that finished."""
        start = time.perf_counter()
        engine = self.engine()
        waiting: dict[int, tuple[AnswerRequest, int, Plan]] = {}
        for request in requests:
            try:
                ids = self.encode(request)
                plan = self.model.fit(ids, self.plan)
            except VoidpadError as error:
                raise type(error)(f"{request.name}: {error}") from None
            handle = engine.submit(ids, plan, seed=self.seed, key=request.key)
            waiting[handle] = (request, len(ids), plan)
        while engine.busy:  # pass by pass, so that the rows of a pass reach the disk together
            done = []
            for event in engine.step():
                if isinstance(event, Failed):
                    raise _failed_pass(event.error, [waiting[handle][0].name for handle in event.handles])
                if isinstance(event, Finished):
                    record = self._record(event.outcome, *waiting.pop(event.handle))
                    done.append(replace(record, elapsed=time.perf_counter() - start))
            if done:
                yield done

    def _record(
        self, outcome: Outcome, request: AnswerRequest, prompt_tokens: int, plan: Plan
    ) -> AnswerRecord:
        roles = self.model.roles
        ends = [slot for slot, token in enumerate(outcome.ids) if token in roles.ends]
        answer = outcome.ids[: ends[0]] if ends else outcome.ids
        slots = outcome.tokens if outcome.stop_reason in ("eos", "rule") else outcome.ids
        return AnswerRecord(
            **asdict(outcome),
            name=request.name,
            prompt_sha256=request.prompt_sha256,
            prompt_tokens=prompt_tokens,
            output=self.read(self.model, slots, request.stop, plan.cut),
            answer_tokens=sum(token not in roles.all() for token in answer),
            eos=bool(ends),
            at_cap=not ends and outcome.canvas >= plan.limit,
        )


def _failed_pass(error: Exception, names: Sequence[str]) -> VoidpadError:
    """The error with the tasks and items that were decoded together when it came."""
    kind = type(error) if isinstance(error, VoidpadError) else VoidpadError
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    said = str(error) if isinstance(error, VoidpadError) else f"{type(error).__name__}: {reason(error)}"
    failed = kind(f"{shown}: {said}")
    failed.__cause__ = error
    return failed


class _Answers(Protocol):
    def run(self, requests: Sequence[AnswerRequest]) -> Iterator[list[AnswerRecord]]: ...


@dataclass(frozen=True)
class LoadedRun:
    """A model that is ready to answer a run's requests, and the settings with all that the model decides."""

    answering: _Answers  # `Answering`, or `Workers` where there are several devices
    settings: dict[str, Any]  # as config.json holds them: weights and every field of the plan included
    provenance: dict[str, Any]


@contextmanager
def opened_run(
    settings: Settings, resources: Resources, *, model: Model | None = None
) -> Iterator[LoadedRun]:
    """A loaded run for as long as the context lasts: here, or in a process for each of several devices."""
    devices = devices_of(resources.device)
    if model is not None or len(devices) == 1:
        yield load_run(settings, replace(resources, device=devices[0]), model=model)
        return
    workers = Workers(settings, resources, devices)
    try:
        yield LoadedRun(workers, workers.settings, workers.provenance)
    finally:
        workers.close()


def devices_of(names: str) -> list[str]:
    """The devices of `cuda:0,cuda:1`, or of `each`, which is every GPU of this machine."""
    if names != "each":
        return [name.strip() for name in names.split(",")]
    count = torch.cuda.device_count()
    if count == 0:
        raise ConfigError("device 'each': this machine has no CUDA device; use auto or cpu.")
    return [f"cuda:{at}" for at in range(count)]


def load_run(settings: Settings, resources: Resources, *, model: Model | None = None) -> LoadedRun:
    """Load the model and build the plan, once. Refuses other weights than the settings name."""
    model = model or load_model(settings, resources)
    weights = model.fingerprint
    if settings.weights not in (None, weights):
        raise ConfigError(
            f"weights={settings.weights!r}: {model.name} now has weights {weights!r}; use another --out"
        )
    plan, fields = describe(
        settings.plan,
        defaults=model.decoding,
        calibration=model.card.calibration,
        **settings.fields,
    )
    answering = Answering(
        model,
        plan,
        seed=settings.seed,
        rows=resources.rows,
        tokens=resources.tokens,
        read=READERS[settings.parity],
        system=settings.system,
        raw=settings.raw,
        cache=settings.cache,
        hide_eos=settings.hide_eos,
    )
    plain = replace(settings, weights=weights).plain()
    facts = answer_provenance(model, resources) | {"approximations": list(answering.approximations)}
    return LoadedRun(answering, {**plain, RESOLVED: json.loads(json.dumps(fields))}, facts)


def load_model(settings: Settings, resources: Resources) -> Model:
    """The model that the settings name, on the device of the resources."""
    model = load(
        settings.model,
        settings.adapter,
        device=resources.device,
        dtype=settings.dtype,
        quantize=settings.quantize,
    )
    return merge(model) if settings.merge and model.adapted else model


def answer(
    folder: RunFolder,
    *,
    resources: Resources | None = None,
    loaded: LoadedRun | None = None,
    progress: Progress | None = None,
) -> None:
    """Answer the requests of a run folder that have no answer yet, and add them to its journal."""
    opened = nullcontext(loaded) if loaded else opened_run(folder.settings, resources or Resources())
    with opened as run, folder.writing():
        requests, journal = folder.requests, folder.journal
        folder.begin(run.settings, run.provenance)
        check_prompts(requests, journal)
        missing = [request for request in requests if request.name not in journal.records]
        tell = progress or (lambda done, total: None)
        tell(len(requests) - len(missing), len(requests))
        for done in run.answering.run(missing) if missing else ():
            journal.append(replace(record, attempt=journal.attempt) for record in done)
            tell(sum(request.name in journal.records for request in requests), len(requests))


def check_prompts(requests: Sequence[AnswerRequest], journal: Journal) -> None:
    """Another prompt under the same name is another run's."""
    for request in requests:
        record = journal.records.get(request.name)
        if record is not None and record.prompt_sha256 != request.prompt_sha256:
            raise DataError(f"{journal.path}: {request.name} has another prompt; use another folder")
