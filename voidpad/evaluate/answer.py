"""The second stage: answers to requests, through one pool of the engine.

This module needs torch, transformers and our engine alone: a GPU machine can answer without lm-eval, a sandbox
or the benchmarks' data.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from voidpad.decode.denoise import hidden_eos
from voidpad.decode.length import Fixed
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.presets import describe
from voidpad.engine.batching import Engine
from voidpad.engine.events import Failed, Finished
from voidpad.errors import ConfigError, VoidpadError, first_line
from voidpad.evaluate.config import DEFAULT_RESOURCES, EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRecord, AnswerRequest, Journal, check_answers
from voidpad.evaluate.provenance import answer_provenance
from voidpad.models import Model, load, merge
from voidpad.models.text import raw_ids

Progress = Callable[[int, int], None]  # (examples done, examples in all)
LLADA_MARKERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def scored_text(
    model: Model,
    slots: Sequence[int],
    stops: Sequence[str] = (),
    *,
    cut: bool = True,
    parity: str | None = None,
) -> str:
    """From a decoded canvas to the text that is scored.

    By default it ends at the first end, unless the plan says not to `cut`, special tokens are dropped by id, and then
    the stop strings apply. `parity` names one of the paper's two evaluation harnesses, which are not the model families
    of these names. "llada" scores text after an EOS too, and drops special tokens by tokenising the text once more;
    HumanEval, which has no stop strings, loses the chat markers that this harness's tokenizer spells out. "dream" cuts
    where EOS is spelled and leaves every other special token as literal text.
    """
    spelled = str(model.tokenizer.decode(list(slots)))
    match parity:
        case "dream":
            return _before(spelled, [str(model.tokenizer.decode([model.roles.eos])), *stops])
        case "llada" if stops:
            return model.text(raw_ids(model.tokenizer, _before(spelled, stops)), cut=False)
        case "llada":
            return re.sub("|".join(map(re.escape, LLADA_MARKERS)), "", model.text(slots, cut=False))
    return _before(model.text(slots, cut=cut), stops)


def _before(text: str, stops: Sequence[str]) -> str:
    """The text before the first occurrence of each stop string; the strings are applied in their order."""
    for stop in filter(None, stops):
        text = text.split(stop, 1)[0]
    return text


@dataclass(frozen=True)
class Answerer:
    """A loaded model and a plan: how requests become answers, and what the model decides about the run."""

    model: Model
    plan: Plan
    config: EvalConfig = EvalConfig(model="unnamed")
    resources: Resources = DEFAULT_RESOURCES
    plan_fields: dict[str, Any] = field(default_factory=dict)  # the plan as config.json holds it

    def __post_init__(self) -> None:
        self.model.roles.ids([*self.plan.ban, *self.plan.mute])  # a role the model lacks is refused here
        self.engine()  # and so are a cache or limits that cannot be

    @classmethod
    def load(cls, config: EvalConfig, resources: Resources, *, model: Model | None = None) -> Self:
        """Load the model, unless it is given, and build the plan. Refuses other weights than the config names."""
        model = model or load_model(config, resources)
        weights = model.fingerprint
        if config.weights not in (None, weights):
            raise ConfigError(
                f"weights={config.weights!r}: {model.name} now has weights {weights!r}; use another --out"
            )
        if isinstance(config.plan, dict):
            raise ConfigError(
                "plan: a plan of your own is built in Python; run this stage where it is defined"
            )
        plan, fields = describe(
            config.plan, config.fields, defaults=model.decoding, calibration=model.card.calibration
        )
        return cls(model, plan, config.updated(weights=weights), resources, json.loads(json.dumps(fields)))

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return answer_provenance(self.model, self.resources) | {
            "approximations": list(self.model.approximations(self.plan, cache=self.config.cache)),
            "one_length": self.plan.causal is None and isinstance(self.plan.length, Fixed),
        }

    def engine(self) -> Engine:
        rows, tokens = self.resources.rows, self.resources.tokens
        if self.config.hide_eos:
            return Engine(self.model.denoiser(forbid=hidden_eos), self.model.roles, rows=rows, tokens=tokens)
        return self.model.engine(rows=rows, tokens=tokens, cache=self.config.cache, block=self.plan.block)

    def run(self, requests: Sequence[AnswerRequest]) -> Iterator[list[AnswerRecord]]:
        """All requests as one pool; after each pass, the records of the rows that finished."""
        start = time.perf_counter()
        engine = self.engine()
        waiting: dict[int, tuple[AnswerRequest, int, Plan]] = {}
        for request in requests:
            raw = request.rendered or self.config.raw  # no chat template
            system = None if raw else self.config.system
            try:
                ready = self.model.prepare(request.prompt, self.plan, raw=raw, system=system)
            except VoidpadError as error:
                raise type(error)(f"{request.name}: {error}") from None
            handle = engine.submit(list(ready.ids), ready.plan, seed=self.config.seed, key=request.key)
            waiting[handle] = (request, len(ready.ids), ready.plan)
        while engine.busy:  # pass by pass, so that the rows of a pass reach the disk together
            done = []
            for event in engine.step():
                if isinstance(event, Failed):
                    names = ", ".join(waiting[handle][0].name for handle in event.handles[:3])
                    what = f"{type(event.error).__name__}: {first_line(event.error)}"
                    raise VoidpadError(f"{names}: {what}") from event.error
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
        # Where decoding stopped at an end there is nothing behind it; elsewhere a harness may read the whole canvas.
        slots = outcome.tokens if outcome.stop_reason in ("eos", "rule") else outcome.ids
        return AnswerRecord(
            **asdict(outcome),
            name=request.name,
            prompt_sha256=request.prompt_sha256,
            prompt_tokens=prompt_tokens,
            output=scored_text(self.model, slots, request.stop, cut=plan.cut, parity=self.config.parity),
            answer_tokens=sum(token not in roles.all() for token in answer),
            eos=bool(ends),
            at_cap=not ends and outcome.canvas >= plan.limit,
        )


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
    answerer: Answerer,
    requests: Sequence[AnswerRequest],
    journal: Journal,
    progress: Progress | None = None,
) -> None:
    """Answer the requests that the journal has no answer to, and add the answers to it."""
    check_answers(requests, journal.records, journal.path, complete=False)
    missing = [request for request in requests if request.name not in journal.records]
    done = len(requests) - len(missing)
    show = progress or (lambda done, total: None)
    show(done, len(requests))
    for records in answerer.run(missing) if missing else ():
        journal.append(replace(record, attempt=journal.attempt) for record in records)
        done += len(records)
        show(done, len(requests))
