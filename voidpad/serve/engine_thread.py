"""The engine beside the event loop: one thread runs the passes, the event loop talks to clients.

The thread is the only one that steps the engine. After each pass it hands all changes to the event loop in one
call, so that the cost of a pass does not grow with a wake-up for each row. Text is made in the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Any

from voidpad.decode.outcome import Outcome
from voidpad.engine.events import Failed, Finished, Wrote
from voidpad.serve.live import Choice, LiveRequest
from voidpad.serve.logprobs import TokenLogprob, prompt_passes
from voidpad.serve.monitoring import Metrics
from voidpad.serve.protocol import RequestError
from voidpad.serve.requests import ServedModel, return_memory

IDLE_SECONDS = 1.0  # without a row to decode, after which freed memory goes back to the system
Update = Callable[[], object]  # a change that the event loop makes


class EngineThread:
    """Runs the engine of a model until it is closed. `submit` is called from the event loop."""

    def __init__(self, served: ServedModel, metrics: Metrics) -> None:
        options = served.options
        self.served, self.metrics, self.queue = served, metrics, options.queue
        self.engine = served.model.engine(
            rows=options.rows, tokens=options.tokens, cache=options.cache, block=served.default.block
        )
        self.rows: dict[int, Choice] = {}  # by handle
        self.loop: asyncio.AbstractEventLoop | None = None
        self.registering = threading.Lock()  # no event of a row is read before the row is in `rows`
        self.calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()  # to be made between passes
        self.closing = False
        self.alive = False

    @property
    def live(self) -> int:
        """Rows that take part in passes."""
        return len(self.rows) - self.engine.waiting

    def start(self, loop: asyncio.AbstractEventLoop, on_failure: Callable[[BaseException], object]) -> None:
        """Begin to decode. If that fails for good, the event loop calls `on_failure`."""
        self.loop, self.alive, self.on_failure = loop, True, on_failure
        self.thread = threading.Thread(target=self._run, name="voidpad-engine", daemon=True)
        self.thread.start()

    def give_up(self) -> None:
        """Fail every request whose rows have not ended: the server stops now. Called from the event loop."""
        for choice in list(self.rows.values()):
            message = "the server stopped before the answer was complete."
            self._fail(choice, RequestError(message, status=503, code="shutting_down"))

    def close(self) -> None:
        """Stop after the pass that is running; rows that are left are dropped."""
        self.closing = True
        self.engine.wake()
        self.thread.join(timeout=60)

    def submit(self, live: LiveRequest, *, deadline: float) -> None:
        """Queue all rows of a request, or refuse it where the queue is full."""
        self._check_room(len(live.choices))
        with self.registering:
            for choice in live.choices:
                place, key = divmod(choice.index, live.body.n)
                choice.handle = self.engine.submit(
                    live.prompts[place],
                    live.plan,
                    seed=live.seed,
                    key=key,
                    limit=live.limits[place],
                    deadline=deadline,
                    observe=choice.canvas.observe if choice.canvas else None,
                    constraint=live.constraint,
                )
                self.rows[choice.handle] = choice

    def cancel(self, live: LiveRequest) -> None:
        """End the rows that are still being decoded, before their next pass."""
        for choice in live.choices:
            if choice.handle in self.rows:
                self.engine.cancel(choice.handle)

    async def score(self, live: LiveRequest, *, deadline: float) -> None:
        """Answer each prompt with itself, its tokens' log-probabilities, and the likeliest next token if wanted."""
        served, more = self.served, live.max_tokens or 0
        for choice, ids in zip(live.choices, live.prompts, strict=True):
            found = [TokenLogprob(ids[0], None)]
            top, tokens = live.top_logprobs or 0, served.options.tokens
            for score in prompt_passes(served.model, ids, top=top, more=more, tokens=tokens):
                left = max(0.0, deadline - time.monotonic())
                found += await asyncio.to_thread(self.between_passes, score, timeout=left)
            added = [one.id for one in found[len(ids) :]]
            choice.logprobs = found
            choice.finish(served.rules.decode([*ids, *added]), added)
            choice.report = {"stop_reason": "echo"}
        live.finished.set()

    def between_passes(self, call: Callable[[], Any], *, timeout: float = 60.0) -> Any:
        """The result of a call that the engine's thread makes before a pass; blocks the calling thread."""
        self._check_room(len(self.calls))
        done: Future[Any] = Future()
        self.calls.append((call, done))
        self.engine.wake()
        try:
            return done.result(timeout)
        except TimeoutError:
            done.cancel()
            raise _timed_out() from None

    def _check_room(self, rows: int) -> None:
        if not self.alive:
            raise RequestError("the engine has stopped.", status=503)
        if self.engine.waiting + rows > self.queue and self.rows:
            raise RequestError(
                f"the queue is full ({self.engine.waiting} of {self.queue} rows wait); try again later.",
                status=429,
                code="queue_full",
            )

    # The engine's thread

    def _run(self) -> None:
        try:
            while True:
                if not self.calls and not self.engine.wait(IDLE_SECONDS):
                    return_memory()
                    if not self.calls and not self.closing:
                        self.engine.wait()
                with self.registering:  # the rows of a request start in the same pass
                    if self.closing:
                        return
                if self.calls:
                    self._make_call(*self.calls.popleft())
                events = self.engine.step()
                self.metrics.passes.inc()
                with self.registering:
                    self._hand_over([update for event in events for update in self._updates(event)])
        except BaseException as error:
            failed = RequestError("the engine failed.", status=500)
            updates: list[Update] = [partial(self._fail, one, failed) for one in list(self.rows.values())]
            self._hand_over([*updates, partial(self.on_failure, error)])
        finally:
            self.alive = False

    def _make_call(self, call: Callable[[], Any], done: Future[Any]) -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)

    def _hand_over(self, updates: list[Update]) -> None:
        def deliver() -> None:
            for update in updates:
                update()

        if updates and self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(deliver)

    def _updates(self, event: Any) -> list[Update]:
        if isinstance(event, Wrote):
            return self._written(event)
        if isinstance(event, Failed):
            error = RequestError(" ".join(f"a pass failed: {event.error}".split())[:300], status=500)
            rows = [self.rows.pop(handle) for handle in event.handles if handle in self.rows]
            return [partial(self._fail, choice, error) for choice in rows]
        if isinstance(event, Finished) and (choice := self.rows.pop(event.handle, None)) is not None:
            return [partial(self._ended, choice, event.outcome)]
        return []

    def _written(self, event: Wrote) -> list[Update]:
        """Tokens that became final in this pass; a row whose answer is complete is told to end."""
        updates: list[Update] = []
        canvas, final = event.after, event.final_prefix
        starts = canvas.prompt.tolist()
        for place, handle in enumerate(event.handles):
            choice = self.rows.get(handle)
            if choice is None:
                continue
            start, known = starts[place], choice.final
            if choice.live.layout is not None:  # a template's text is sent whole, once every gap is full
                final[place] = known
            tokens = canvas.ids[place, start + known : start + max(known, final[place])].tolist()
            logprobs = None
            if choice.scores is not None:
                choice.scores.add(event.step, place)
                logprobs = choice.scores.take(range(known, known + len(tokens)))
            records = choice.canvas.passed(event, place) if choice.canvas is not None else []
            if tokens and not known:
                self.metrics.first_token_seconds.observe(time.monotonic() - choice.live.submitted)
            choice.final += len(tokens)
            if tokens or records:
                updates.append(partial(self._wrote, choice, tokens, logprobs, records))
            if not choice.ending and not self.served.rules.ends.isdisjoint(tokens):
                choice.ending = True
                self.engine.end_early(handle)
        return updates

    # The event loop

    def _fail(self, choice: Choice, error: RequestError) -> None:
        choice.live.fail(error)
        self.cancel(choice.live)

    def _wrote(
        self,
        choice: Choice,
        tokens: list[int],
        logprobs: list[TokenLogprob] | None,
        records: list[dict[str, Any]],
    ) -> None:
        choice.feed(tokens, logprobs)
        choice.live.add_records(choice.index, records)
        if choice.live.error is not None:
            self.cancel(choice.live)
        elif choice.complete and not choice.ending:  # by a stop string, or by its number of tokens
            choice.ending = True
            self.engine.end_early(choice.handle)
        choice.live.changed.set()

    def _ended(self, choice: Choice, outcome: Outcome) -> None:
        """The rest of a row that has ended, and what it cost."""
        live, layout, model = choice.live, choice.live.layout, self.served.model
        queued = max(0.0, time.monotonic() - live.submitted - outcome.seconds)
        self.metrics.count_row(outcome, queued)
        if outcome.stop_reason == "deadline" and not choice.complete:
            self._fail(choice, _timed_out())
        if live.error is not None:  # what was written beyond the finished prefix are fragments
            return
        report = {
            "passes_decode": outcome.passes_decode,
            "passes_probe": outcome.passes_probe,
            "passes_shared": outcome.passes_shared,
            "canvas": outcome.canvas,
            **({} if outcome.constraint is None else {"constraint": asdict(outcome.constraint)}),
            "approximations": list(model.approximations(live.plan, cache=self.served.options.cache)),
            "queue_seconds": round(queued, 4),
            "decode_seconds": round(outcome.seconds, 4),
        }
        if layout is not None:
            gaps = layout.written(model, outcome)
            report |= {"gaps": list(gaps), "slots": list(layout.slots), "passes_probe": layout.passes_probe}
            if outcome.stop_reason == "full":
                ids = [token for gap in outcome.gaps for token in gap]
                choice.finish(gaps[0] if live.only_gap else layout.whole(gaps), ids)
        else:
            # Unwritten slots of a stalled row are no text.
            places = range(choice.final, len(outcome.tokens))
            kept = [place for place in places if outcome.tokens[place] != model.roles.mask]
            logprobs = choice.scores.take(kept) if choice.scores is not None else None
            choice.feed([outcome.tokens[place] for place in kept], logprobs)
        choice.end()
        if choice.canvas is not None:
            live.add_records(choice.index, choice.canvas.ended(outcome, live.plan))
        # The text says what ended the answer: its row may have gone on, or was told to end.
        choice.report = {**report, "stop_reason": choice.stop_reason or outcome.stop_reason}
        live.changed.set()
        if all(one.report is not None for one in live.choices):
            live.finished.set()


def _timed_out() -> RequestError:
    return RequestError("the answer took longer than the server's timeout.", status=504, code="timeout")
