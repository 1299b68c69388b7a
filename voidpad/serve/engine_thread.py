"""The engine beside the event loop: one thread runs the passes, the event loop talks to clients.

The thread is a pool of one worker. A pass queues the next one as long as there are rows, and whatever else needs the
network (starting rows, scoring prompts, probing gaps) takes its turn between two passes. What a pass changed is handed
to the event loop in one call, so that its cost does not grow with a wake-up for each row; text is made there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from voidpad.decode.outcome import Outcome
from voidpad.engine.events import Event, Failed, Finished, Wrote
from voidpad.serve.live import Choice, LiveRequest
from voidpad.serve.logprobs import TokenLogprob, prompt_passes
from voidpad.serve.monitoring import Metrics
from voidpad.serve.protocol import RequestError
from voidpad.serve.requests import ServedModel, return_memory

log = logging.getLogger("voidpad.serve")
IDLE_SECONDS = 1.0  # without a pass, after which freed memory goes back to the system
Update = partial[None]  # a change that the event loop makes; its first argument is the choice
T = TypeVar("T")


class EngineThread:
    """Runs the engine of a model until it is closed. Its public methods are called from the event loop."""

    def __init__(self, served: ServedModel, metrics: Metrics) -> None:
        options = served.options
        self.served, self.metrics, self.queue = served, metrics, options.queue
        self.engine = served.model.engine(
            rows=options.rows, tokens=options.tokens, cache=options.cache, block=served.default.block
        )
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="voidpad-engine")
        self.rows: dict[int, Choice] = {}  # by handle; changed by the thread only
        self.passing = False  # a pass is queued or runs
        self.alive = False
        self.idle: asyncio.TimerHandle | None = None

    @property
    def live(self) -> int:
        """Rows that take part in passes."""
        return len(self.rows) - self.engine.waiting

    def start(self, loop: asyncio.AbstractEventLoop, on_failure: Callable[[BaseException], object]) -> None:
        """Take requests from now on. If the engine fails for good, the event loop calls `on_failure`."""
        self.loop, self.on_failure, self.alive = loop, on_failure, True

    def give_up(self) -> None:
        """Fail every request whose rows have not ended: the server stops now."""
        self.alive = False
        message = "the server stopped before the answer was complete."
        for choice in list(self.rows.values()):
            self._fail(choice, RequestError(message, status=503, code="shutting_down"))

    async def close(self) -> None:
        """Stop after the pass that is running."""
        self.give_up()
        if self.idle is not None:
            self.idle.cancel()
        await asyncio.to_thread(self.thread.shutdown, cancel_futures=True)

    async def between_passes(self, call: Callable[[], T], *, deadline: float) -> T:
        """The result of a call that the engine's thread makes between two passes."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await self.loop.run_in_executor(self.thread, call)
        except TimeoutError:
            raise timed_out() from None

    async def submit(self, live: LiveRequest, *, deadline: float) -> None:
        """Queue all rows of a request, or refuse it where the queue is full."""
        await self.between_passes(partial(self._start_rows, live, deadline), deadline=deadline)

    def cancel(self, live: LiveRequest) -> None:
        """End the rows that are still being decoded, before their next pass."""
        for choice in live.choices:
            if choice.handle in self.rows:
                self.engine.cancel(choice.handle)

    async def score(self, live: LiveRequest, *, deadline: float) -> None:
        """Answer each prompt with itself, its tokens' log-probabilities, and the likeliest next token if wanted."""
        served, more = self.served, live.body.most_tokens or 0
        for choice, ids in zip(live.choices, live.prompts, strict=True):
            found = [TokenLogprob(ids[0], None)]
            top, tokens = live.body.alternatives or 0, served.options.tokens
            for score in prompt_passes(served.model, ids, top=top, more=more, tokens=tokens):
                found += await self.between_passes(score, deadline=deadline)
            added = [one.id for one in found[len(ids) :]]
            choice.logprobs = found
            choice.finish(served.rules.decode([*ids, *added]), added)
            choice.report = {"stop_reason": "echo"}
        live.finished.set()

    # The engine's thread

    def _start_rows(self, live: LiveRequest, deadline: float) -> None:
        if not self.alive:
            raise RequestError("the engine has stopped.", status=503)
        if self.engine.waiting + len(live.choices) > self.queue and self.rows:
            raise RequestError(
                f"the queue is full ({self.engine.waiting} of {self.queue} rows wait); try again later.",
                status=429,
                code="queue_full",
            )
        for choice in live.choices:
            place, key = divmod(choice.index, live.body.n)
            choice.handle = self.engine.submit(
                live.prompts[place],
                live.plan,
                seed=live.seed,
                key=key,
                limit=live.limits[place],
                deadline=deadline,
                observe=choice.canvas.recorder.observe if choice.canvas else None,
                constraint=live.constraint,
            )
            self.rows[choice.handle] = choice
        if not self.passing:
            self._queue_pass()

    def _queue_pass(self) -> None:
        self.passing = self.alive and self.engine.busy
        if self.passing:
            self.thread.submit(self._pass)

    def _pass(self) -> None:
        updates: list[Update] = []
        try:
            for event in self.engine.step():
                updates += self._updates(event)
            self.metrics.passes.inc()
        except BaseException as error:
            self.alive = False
            failed = RequestError("the engine failed.", status=500)
            updates += [partial(self._fail, choice, failed) for choice in self.rows.values()]
            self.loop.call_soon_threadsafe(self.on_failure, error)
        self._queue_pass()
        self.loop.call_soon_threadsafe(self._deliver, updates)

    def _updates(self, event: Event) -> Iterator[Update]:
        if isinstance(event, Wrote):
            yield from self._written(event)
        elif isinstance(event, Failed):
            for handle in event.handles:
                yield partial(self._fail, self.rows.pop(handle), failed_pass(event.error))
        elif isinstance(event, Finished):
            yield partial(self._ended, self.rows.pop(event.handle), event.outcome)

    def _written(self, event: Wrote) -> Iterator[Update]:
        """What became final in this pass; a row that cannot be read fails alone."""
        starts, final = event.after.prompt.tolist(), event.final_prefix
        for place, handle in enumerate(event.handles):
            choice = self.rows[handle]
            try:
                yield from self._row_written(event, place, choice, starts[place], final[place])
            except Exception as error:
                yield partial(self._fail, choice, failed_pass(error))

    def _row_written(
        self, event: Wrote, place: int, choice: Choice, start: int, final: int
    ) -> Iterator[Update]:
        """New tokens of the final prefix, with what was asked about them; a complete answer is told to end."""
        known = choice.final
        if choice.live.layout is not None:  # a template's text is sent whole, once every gap is full
            final = known
        tokens = event.after.ids[place, start + known : start + max(known, final)].tolist()
        logprobs = None
        if choice.scores is not None:
            choice.scores.add(event.step, place)
            logprobs = choice.scores.take(range(known, known + len(tokens)))
        records = choice.canvas.passed(event, place) if choice.canvas is not None else []
        if tokens and not known:
            self.metrics.first_token_seconds.observe(choice.live.seconds)
        choice.final += len(tokens)
        if tokens or records:
            yield partial(self._wrote, choice, tokens, logprobs, records)
        if not self.served.rules.ends.isdisjoint(tokens):
            self.engine.end_early(choice.handle)

    # The event loop

    def _deliver(self, updates: list[Update]) -> None:
        for update in updates:
            try:
                update()
            except Exception as error:
                log.exception("an answer could not be written")
                self._fail(update.args[0], failed_pass(error))
        if self.idle is not None:
            self.idle.cancel()
        if self.alive and not self.passing:
            self.idle = self.loop.call_later(IDLE_SECONDS, self.thread.submit, return_memory)

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
        elif choice.complete:  # by a stop string, or by its number of tokens
            self.engine.end_early(choice.handle)
        choice.live.changed.set()

    def _ended(self, choice: Choice, outcome: Outcome) -> None:
        """The rest of a row that has ended, and what it cost."""
        live, layout, model = choice.live, choice.live.layout, self.served.model
        queued = max(0.0, live.seconds - outcome.seconds)
        self.metrics.count_row(outcome, queued)
        if outcome.stop_reason == "deadline" and not choice.complete:
            self._fail(choice, timed_out())
        if live.error is not None:  # what was written beyond the finished prefix are fragments
            return
        costs = ("passes_decode", "passes_probe", "passes_shared", "canvas")
        report: dict[str, Any] = {name: getattr(outcome, name) for name in costs}
        if outcome.constraint is not None:
            report["constraint"] = asdict(outcome.constraint)
        report["approximations"] = list(model.approximations(live.plan, cache=self.served.options.cache))
        report |= {"queue_seconds": round(queued, 4), "decode_seconds": round(outcome.seconds, 4)}
        if layout is not None:
            gaps = layout.written(model, outcome)
            report |= {"gaps": list(gaps), "slots": list(layout.slots), "passes_probe": layout.passes_probe}
            if outcome.stop_reason == "full":
                ids = [token for gap in outcome.gaps for token in gap]
                choice.finish(layout.whole(gaps) if live.body.voidpad.template else gaps[0], ids)
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


def timed_out() -> RequestError:
    return RequestError("the answer took longer than the server's timeout.", status=504, code="timeout")


def failed_pass(error: Exception) -> RequestError:
    return RequestError(f"a pass failed: {error}", status=500)
