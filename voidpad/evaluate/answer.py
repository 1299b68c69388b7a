"""The second stage: answers to requests, through one pool of the engine.

This module needs torch, transformers and our engine alone: a GPU machine can answer without lm-eval, a sandbox
or the benchmarks' data.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch

from voidpad.decode.denoise import hidden_eos
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.presets import describe
from voidpad.engine.batching import Engine
from voidpad.engine.events import Failed, Finished
from voidpad.errors import ConfigError, DataError, VoidpadError, first_line
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRecord, AnswerRequest, Journal
from voidpad.evaluate.provenance import answer_provenance
from voidpad.evaluate.workers import Workers
from voidpad.models import Model, load, merge
from voidpad.models.text import raw_ids

Progress = Callable[[int, int], None]  # (examples done, examples in all)


# ------------------------------------------------------------------ from a decoded canvas to the text that is scored
# From model, slots, stop strings and cut to the text.
Reader = Callable[[Model, Sequence[int], Sequence[str], bool], str]
LLADA_MARKERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def cut_first(model: Model, slots: Sequence[int], stops: Sequence[str], cut: bool = True) -> str:
    """Ours: cut at the first end unless the plan says not to, drop special tokens by id, then the stop strings."""
    return _until(model.text(slots, cut=cut), stops)


def llada_harness(model: Model, slots: Sequence[int], stops: Sequence[str], cut: bool = True) -> str:
    """The paper's LLaDA harness: text after an EOS counts.

    Special tokens go by tokenising the text once more. HumanEval has no stop strings, and loses the chat markers, which
    this harness's tokenizer spells out.
    """
    if not stops:
        text = model.text(slots, cut=False)
        for marker in LLADA_MARKERS:
            text = text.replace(marker, "")
        return text
    text = _until(str(model.tokenizer.decode(list(slots))), stops)
    return model.text(raw_ids(model.tokenizer, text), cut=False)


def dream_harness(model: Model, slots: Sequence[int], stops: Sequence[str], cut: bool = True) -> str:
    """The paper's Dream harness: cut where EOS is spelled; every other special token stays as literal text."""
    text = str(model.tokenizer.decode(list(slots)))
    return _until(text.split(str(model.tokenizer.decode([model.roles.eos])), 1)[0], stops)


def _until(text: str, stops: Sequence[str]) -> str:
    """The text before the first occurrence of each stop string; the strings are applied in their order."""
    for stop in stops:
        if stop:
            text = text.split(stop, 1)[0]
    return text


# By `EvalConfig.parity`: the two evaluation harnesses of the paper, which are not the model families of these names.
READERS: dict[str | None, Reader] = {None: cut_first, "llada": llada_harness, "dream": dream_harness}


# ------------------------------------------------------------------------------------------------------- answering
@dataclass(frozen=True)
class Answering:
    """How prompts become answers."""

    model: Model
    plan: Plan
    config: EvalConfig = EvalConfig(model="")
    resources: Resources = Resources()

    def __post_init__(self) -> None:
        self.model.roles.ids(self.plan.names)  # a role the model lacks is refused here
        self.engine()  # and so are a cache or limits that cannot be

    @property
    def approximations(self) -> tuple[str, ...]:
        """What makes these answers differ from plain decoding, as `Result` names it."""
        return self.model.approximations(self.plan, cache=self.config.cache)

    def engine(self) -> Engine:
        rows, tokens = self.resources.rows, self.resources.tokens
        if self.config.hide_eos:
            return Engine(self.model.denoiser(forbid=hidden_eos), self.model.roles, rows=rows, tokens=tokens)
        return self.model.engine(rows=rows, tokens=tokens, cache=self.config.cache, block=self.plan.block)

    def encode(self, request: AnswerRequest) -> list[int]:
        bare = request.rendered or self.config.raw
        return self.model.encode(request.prompt, raw=bare, system=None if bare else self.config.system)

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
            handle = engine.submit(ids, plan, seed=self.config.seed, key=request.key)
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
            output=READERS[self.config.parity](self.model, slots, request.stop, plan.cut),
            answer_tokens=sum(token not in roles.all() for token in answer),
            eos=bool(ends),
            at_cap=not ends and outcome.canvas >= plan.limit,
        )


def _failed_pass(error: Exception, names: Sequence[str]) -> VoidpadError:
    """The error with the tasks and items that were decoded together when it came."""
    kind = type(error) if isinstance(error, VoidpadError) else VoidpadError
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    said = str(error) if isinstance(error, VoidpadError) else f"{type(error).__name__}: {first_line(error)}"
    failed = kind(f"{shown}: {said}")
    failed.__cause__ = error
    return failed


class _Answers(Protocol):
    def run(self, requests: Sequence[AnswerRequest]) -> Iterator[list[AnswerRecord]]: ...


@dataclass(frozen=True)
class LoadedRun:
    """A model that is ready to answer a run's requests, and what the model decides about the run."""

    answering: _Answers  # `Answering`, or `Workers` where there are several devices
    config: EvalConfig  # with the fingerprint of the weights
    plan: dict[str, Any]  # every field of the plan with its value, as config.json holds them
    provenance: dict[str, Any]


@contextmanager
def opened_run(
    config: EvalConfig, resources: Resources, *, model: Model | None = None
) -> Iterator[LoadedRun]:
    """A loaded run for as long as the context lasts: here, or in a process for each of several devices."""
    devices = devices_of(resources.device)
    if model is not None or len(devices) == 1:
        yield load_run(config, replace(resources, device=devices[0]), model=model)
        return
    workers = Workers(config, resources, devices)
    try:
        yield LoadedRun(workers, workers.config, workers.plan, workers.provenance)
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


def load_run(config: EvalConfig, resources: Resources, *, model: Model | None = None) -> LoadedRun:
    """Load the model and build the plan, once. Refuses other weights than the config names."""
    model = model or load_model(config, resources)
    weights = model.fingerprint
    if config.weights not in (None, weights):
        raise ConfigError(
            f"weights={config.weights!r}: {model.name} now has weights {weights!r}; use another --out"
        )
    if isinstance(config.plan, dict):
        raise ConfigError("plan: a plan of your own is built in Python; run this stage where it is defined")
    plan, fields = describe(
        config.plan, defaults=model.decoding, calibration=model.card.calibration, **config.fields
    )
    config = config.updated(weights=weights)
    answering = Answering(model, plan, config, resources)
    facts = answer_provenance(model, resources) | {
        "approximations": list(answering.approximations),
        "length_rule": type(plan.length).__name__,
        # Whether `steps` is the number of passes to the end of the canvas: an adaptive length rule says no.
        "fixed_canvas": bool(getattr(plan.length, "steps_are_total", False)),
    }
    return LoadedRun(answering, config, json.loads(json.dumps(fields)), facts)


def load_model(config: EvalConfig, resources: Resources) -> Model:
    """The model that the config names, on the device of the resources."""
    model = load(
        config.model,
        config.adapter,
        device=resources.device,
        dtype=config.dtype,
        quantize=config.quantize,
    )
    return merge(model) if config.merge and model.adapted else model


def answer_requests(
    run: LoadedRun, requests: Sequence[AnswerRequest], journal: Journal, progress: Progress | None = None
) -> dict[str, AnswerRecord]:
    """The answers to all requests by name; those that the journal has are not decoded again."""
    check_prompts(requests, journal)
    missing = [request for request in requests if request.name not in journal.records]
    done = len(requests) - len(missing)
    show = progress or (lambda done, total: None)
    show(done, len(requests))
    for records in run.answering.run(missing) if missing else ():
        journal.append(replace(record, attempt=journal.attempt) for record in records)
        done += len(records)
        show(done, len(requests))
    return journal.records


def check_prompts(requests: Sequence[AnswerRequest], journal: Journal) -> None:
    """Another prompt under the same name is another run's."""
    for request in requests:
        record = journal.records.get(request.name)
        if record is not None and record.prompt_sha256 != request.prompt_sha256:
            raise DataError(f"{journal.path}: {request.name} has another prompt; use another folder")
