"""The engine beside the event loop: one thread runs the passes, the event loop talks to clients.

The thread is the only one that steps the engine. After each pass it hands all changes to the event loop in one
call, so that the cost of a pass does not grow with a wake-up for each row. Text is made in the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tokenizers import decoders

from voidpad.constrain.row import RowConstraint
from voidpad.decode.outcome import Outcome
from voidpad.diagnose.trace.format import End, end_record, header_record, pass_record
from voidpad.diagnose.trace.recorder import Recorder
from voidpad.engine.batching import Engine
from voidpad.engine.events import Failed, Finished, Wrote
from voidpad.errors import ConfigError
from voidpad.serve.answer_text import Choice, TextRules, TokenLogprob
from voidpad.serve.logprobs import SlotLogprobs
from voidpad.serve.monitoring import Metrics
from voidpad.serve.protocol import RequestError
from voidpad.serve.requests import GenerationRequest

if TYPE_CHECKING:
    from voidpad.models import Model

MOST_RECORDS = 4096  # canvas events a client may leave unread


@dataclass
class LiveRequest:
    """A request whose rows are in the engine. Used by the event loop only."""

    request: GenerationRequest
    choices: list[Choice]
    prompt_tokens: int
    token_text: Callable[[int], str]
    handles: list[int] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)  # empty until the choice has ended
    error: RequestError | None = None
    gone: bool = False  # the client has left
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    records: deque[tuple[int, dict[str, Any]]] = field(default_factory=deque)
    stop: Callable[[list[int]], None] = lambda handles: None

    def cancel(self) -> None:
        """End the rows that are still being decoded, before their next pass."""
        left = [handle for handle, report in zip(self.handles, self.reports, strict=True) if not report]
        if left:
            self.stop(left)

    def take_records(self) -> list[tuple[int, dict[str, Any]]]:
        records, self.records = list(self.records), deque()
        return records

    def fail(self, error: RequestError) -> None:
        self.error = self.error or error
        self.changed.set()
        self.finished.set()


@dataclass
class _Row:
    """A row as the engine thread sees it."""

    live: LiveRequest
    index: int  # of the choice
    submitted: float
    final: int = 0  # leading slots that were handed over
    ending: bool = False  # the engine was told that the answer is complete
    recorder: Recorder | None = None  # where the client wants to see the canvas
    passes: int = 0  # recorded so far
    named: set[int] = field(default_factory=set)  # tokens whose text the client has
    scores: SlotLogprobs | None = None  # where logprobs were requested


@dataclass(frozen=True)
class _Update:
    """What one pass changed for one row."""

    row: _Row
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] | None = None
    stop_reason: str | None = None
    error: RequestError | None = None
    filled: tuple[str, list[int]] | None = None  # the text and the tokens of a template's gaps


class EngineThread:
    """Runs an engine until it is closed. `submit` is called from the event loop."""

    def __init__(
        self,
        engine: Engine,
        rules: TextRules,
        *,
        model: Model,
        cache: str | None = None,
        token_text: Callable[[int], str],
        queue: int = 256,
        name: str = "",
    ) -> None:
        self.engine, self.rules, self.model, self.cache = engine, rules, model, cache
        self.token_text, self.queue = token_text, queue
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self.rows: dict[int, _Row] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.registering = threading.Lock()  # no event of a row is read before the row is in `rows`
        self.calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()  # to be made between passes
        self.closing = False
        self.alive = False
        self.thread = threading.Thread(target=self._run, name="voidpad-engine", daemon=True)
        self.metrics = Metrics(name, waiting=lambda: engine.waiting, live=lambda: self.live)

    @property
    def live(self) -> int:
        """Rows that take part in passes."""
        return len(self.rows) - self.engine.waiting

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.alive = loop, True
        self.thread.start()

    def give_up(self) -> None:
        """Fail every request whose rows have not ended: the server stops now. Called from the event loop."""
        for row in list(self.rows.values()):
            row.live.fail(
                RequestError(
                    "the server stopped before the answer was complete.",
                    status=503,
                    kind="server_error",
                    code="shutting_down",
                    headers={"Retry-After": "5"},
                )
            )
            row.live.cancel()

    def close(self) -> None:
        """Stop after the pass that is running; rows that are left are dropped."""
        self.closing = True
        self.engine.wake()
        if self.thread.is_alive():
            self.thread.join(timeout=60)

    def submit(self, request: GenerationRequest, *, deadline: float) -> LiveRequest:
        """Queue all rows of a request, or refuse it where the queue is full or no block fits the context."""
        if not self.alive:
            raise RequestError("the engine has stopped.", status=503, kind="server_error")
        if self.engine.waiting + request.rows > self.queue and self.rows:
            raise RequestError(
                f"the queue is full ({self.engine.waiting} of {self.queue} rows wait); try again later.",
                status=429,
                kind="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        filling = request.layout is not None
        limits = [
            None if filling else _canvas_limit(request, prompt, self.model) for prompt in request.prompts
        ]
        if isinstance(request.constraint, RowConstraint) and request.constraint.shortest > min(
            filter(None, limits)
        ):
            raise RequestError(
                f"the shortest answer that matches takes {request.constraint.shortest} tokens; max_tokens, the plan "
                f"and the context leave {min(filter(None, limits))}.",
                param="max_tokens",
            )
        count = request.rows
        choices = [Choice(self.rules, request.stops, request.max_tokens) for _ in range(count)]
        live = LiveRequest(
            request,
            choices,
            sum(len(prompt) for prompt in request.prompts),
            self.token_text,
            reports=[{} for _ in range(count)],
            stop=self._cancel,
        )
        now = time.monotonic()
        with self.registering:
            for index in range(count):
                prompt, recorder = request.prompts[index // request.n], self._recorder(request)
                handle = self.engine.submit(
                    prompt,
                    request.plan,
                    seed=request.seed,
                    key=index % request.n,
                    limit=limits[index // request.n],
                    deadline=deadline,
                    observe=recorder.observe if recorder else None,
                    constraint=request.constraint,
                )
                live.handles.append(handle)
                self.rows[handle] = _Row(
                    live,
                    index,
                    now,
                    recorder=recorder,
                    scores=SlotLogprobs(request.top_logprobs) if request.logprobs else None,
                )
        return live

    def between_passes(self, call: Callable[[], Any], *, timeout: float = 60.0) -> Any:
        """The result of a call that the engine's thread makes before its next pass; blocks the calling thread."""
        if not self.alive:
            raise RequestError("the engine has stopped.", status=503, kind="server_error")
        done: Future[Any] = Future()
        self.calls.append((call, done))
        self.engine.wake()
        return done.result(timeout)

    def _cancel(self, handles: list[int]) -> None:
        for handle in handles:
            if handle in self.rows:
                self.engine.cancel(handle)

    # The engine's thread

    def _run(self) -> None:
        try:
            while True:
                self.engine.wait()
                with self.registering:  # the rows of a request start in the same pass
                    if self.closing:
                        return
                while self.calls:
                    call, done = self.calls.popleft()
                    try:
                        done.set_result(call())
                    except Exception as error:
                        done.set_exception(error)
                events = self.engine.step()
                self.metrics.passes.inc()
                with self.registering:
                    updates = self._updates(events)
                self._hand_over(updates)
        except BaseException as error:
            self._hand_over(
                [_Update(row, error=_server_error("the engine failed.")) for row in list(self.rows.values())]
            )
            self.on_failure(error)
        finally:
            self.alive = False

    def _hand_over(self, updates: list[_Update]) -> None:
        if updates and self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._deliver, updates)

    def _updates(self, events: list[Any]) -> list[_Update]:
        updates: list[_Update] = []
        for event in events:
            if isinstance(event, Wrote):
                updates += self._written(event)
            elif isinstance(event, Failed):
                error = _server_error(f"a pass failed: {event.error}")
                rows = [self.rows.pop(handle) for handle in event.handles if handle in self.rows]
                updates += [_Update(row, error=error) for row in rows]
            elif isinstance(event, Finished) and (row := self.rows.pop(event.handle, None)) is not None:
                updates.append(self._ended(row, event.outcome))
        return updates

    def _written(self, event: Wrote) -> list[_Update]:
        """Tokens that became final in this pass; a row whose answer is complete is told to end."""
        updates = []
        after, final = event.after, event.final_prefix
        starts = after.canvas.prompt.tolist()
        for place, handle in enumerate(event.handles):
            row = self.rows.get(handle)
            if row is None:
                continue
            if row.scores is not None:
                row.scores.add(event.step, place)
            tokens: list[int] = []
            if final[place] > row.final:
                start = starts[place]
                tokens = after.canvas.ids[place, start + row.final : start + final[place]].tolist()
            logprobs = row.scores.take(row.final, len(tokens)) if row.scores is not None else None
            if tokens and not row.final:
                self.metrics.first_token_seconds.observe(time.monotonic() - row.submitted)
            row.final += len(tokens)
            if tokens or row.live.request.canvas_events:
                updates.append(_Update(row, tokens, logprobs, records=self._records(row, event, place)))
            if not row.ending and not self.rules.ends.isdisjoint(tokens):
                row.ending = True
                self.engine.end_early(handle)
        return updates

    def _recorder(self, request: GenerationRequest) -> Recorder | None:
        if not request.canvas_events:
            return None
        return Recorder(self.model, plan_name=request.plan_name, seed=request.seed, cache=self.cache)

    def _records(self, row: _Row, event: Wrote, place: int) -> list[dict[str, Any]]:
        """The lines of a trace that this pass adds, each with the text of the tokens it names first."""
        if row.recorder is None:
            return []
        records, canvas = [], event.step.before.canvas
        if not row.passes:
            header = row.recorder.header_of(event.plan, canvas, place)
            named = [*header.prompt.ids, *header.template]
            records.append(self._with_pieces(row, header_record(row.index, header), named))
        step = row.recorder.pass_of(event.plan, event.step, place, row.passes)
        row.passes += 1
        named = [token for _, token, _ in step.commits] + [
            edit.id for edit in step.edits if edit.id is not None
        ]
        return [*records, self._with_pieces(row, pass_record(row.index, step), named)]

    def _with_pieces(self, row: _Row, record: dict[str, Any], tokens: Iterable[int]) -> dict[str, Any]:
        fresh = [token for token in dict.fromkeys(tokens) if token not in row.named]
        row.named.update(fresh)
        return {"record": record, "pieces": {token: self.token_text(token) for token in fresh}}

    def _ended(self, row: _Row, outcome: Outcome) -> _Update:
        """The rest of a row that has ended, and what it cost."""
        layout = row.live.request.layout
        tokens = outcome.tokens[row.final :] if layout is None else []
        mask = self.engine.roles.mask
        logprobs = row.scores.take(row.final, len(tokens)) if row.scores is not None else None
        if mask in tokens:  # a stalled or cancelled row: its unwritten slots are no text
            kept = [place for place, token in enumerate(tokens) if token != mask]
            logprobs = None if logprobs is None else [logprobs[place] for place in kept]
            tokens = [tokens[place] for place in kept]
        queued = max(0.0, time.monotonic() - row.submitted - outcome.seconds)
        report = {
            "passes_decode": outcome.passes_decode,
            "passes_probe": outcome.passes_probe,
            "passes_shared": outcome.passes_shared,
            "canvas": outcome.canvas,
            **({} if outcome.constraint is None else {"constraint": asdict(outcome.constraint)}),
            "approximations": list(self.model.approximations(row.live.request.plan, cache=self.cache)),
            "queue_seconds": round(queued, 4),
            "decode_seconds": round(outcome.seconds, 4),
        }
        text = None
        if layout is not None:
            gaps = layout.written(self.model, outcome)
            text = gaps[0] if row.live.request.only_gap else layout.whole(gaps)
            report |= {"gaps": list(gaps), "slots": list(layout.slots), "passes_probe": layout.passes_probe}
        self.metrics.queue_seconds.observe(queued)
        self.metrics.decode_seconds.observe(outcome.seconds)
        passes = outcome.passes_decode + outcome.passes_probe - outcome.passes_shared
        if passes:
            self.metrics.tokens_per_pass.observe(len(outcome.tokens) / passes)
        self.metrics.row_passes.labels("decode").inc(outcome.passes_decode)
        self.metrics.row_passes.labels("probe").inc(outcome.passes_probe)
        if outcome.stop_reason in ("cancelled", "deadline"):
            self.metrics.cancelled.labels(outcome.stop_reason).inc()
        records = []
        if row.recorder is not None and row.passes:
            result = self.model.result(outcome, row.live.request.plan, cache=self.cache)
            pieces = {token: self.token_text(token) for token in sorted(row.named)}
            records.append({"record": end_record(row.index, End(result, pieces))})
        filled = None if text is None else (text, [token for gap in outcome.gaps for token in gap])
        return _Update(row, tokens, logprobs, records, report, outcome.stop_reason, filled=filled)

    # The event loop

    def _deliver(self, updates: list[_Update]) -> None:
        """Give every change of a pass to its request; ends rows whose text holds a stop string."""
        for update in updates:
            live, index = update.row.live, update.row.index
            choice = live.choices[index]
            if update.error is not None:
                live.fail(update.error)
                live.cancel()
                continue
            if update.tokens:
                choice.feed(update.tokens, update.logprobs)
            if update.records:
                live.records.extend((index, record) for record in update.records)
                if len(live.records) > MOST_RECORDS:
                    live.fail(RequestError("the client reads canvas events too slowly.", status=400))
                    live.cancel()
            if update.filled is not None and update.stop_reason == "full":
                choice.finish(*update.filled)
            if update.report is not None:
                if update.stop_reason == "deadline" and not choice.complete:
                    live.fail(_timed_out())
                    live.cancel()
                choice.end()
                # The text says what ended the answer: its row may have gone on, or was told to end.
                live.reports[index] = {
                    **update.report,
                    "stop_reason": choice.stop_reason or update.stop_reason,
                }
                if all(live.reports):
                    live.finished.set()
            elif choice.complete and not update.row.ending:
                update.row.ending = True
                self.engine.end_early(live.handles[index])
            if live.request.stream:
                live.changed.set()


def _server_error(message: str) -> RequestError:
    return RequestError(" ".join(message.split())[:300], status=500, kind="server_error")


def _timed_out() -> RequestError:
    return RequestError(
        "the answer took longer than the server's timeout.",
        status=504,
        kind="timeout_error",
        code="timeout",
        headers={"x-should-retry": "false"},
    )


def _canvas_limit(request: GenerationRequest, prompt: Sequence[int], model: Model) -> int:
    """The longest canvas of a row: what the client asked for, in whole blocks, and what the context leaves."""
    try:
        return model.row_limit(prompt, request.plan, max_tokens=request.max_tokens)
    except ConfigError as error:
        param = "messages" if request.route == "chat" else "prompt"
        raise RequestError(str(error), param=param, code="context_length_exceeded") from None


def text_rules(model: Model) -> TextRules:
    """How this model's ids become text, gathered once."""
    from voidpad.models.text import special_ids

    tokenizer = model.tokenizer
    cleaned = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    joins = backend is not None and isinstance(backend.decoder, decoders.ByteLevel | decoders.Fuse)
    return TextRules(
        decode=lambda ids: str(tokenizer.decode(ids)),
        ends=frozenset(model.roles.ends),
        dropped=frozenset(special_ids(tokenizer) | model.roles.all()),
        cleaned=cleaned,
        joins=joins and not cleaned,
    )
