"""The engine: prompts in, events out. Rows join and leave between passes (continuous batching).

All live rows of all plans share one forward pass. The decoding rules are those of `voidpad.decode`; the engine
decides which rows take part in a pass and reports what happened to them.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voidpad.decode.canvas import Canvas, join
from voidpad.decode.loop import Denoiser, Observe, Step, advance, begin, check, outcome, wanted
from voidpad.decode.outcome import Outcome
from voidpad.decode.plan import Plan
from voidpad.decode.rows import Rows, join_rows
from voidpad.engine.events import Event, Failed, Finished, Started, Wrote
from voidpad.errors import ConfigError, VoidpadError
from voidpad.roles import Roles

Group = tuple[Plan, Rows]  # rows that share a plan


@dataclass
class _Request:
    """A row that has not ended, from `submit` on."""

    handle: int
    prompt: Sequence[int]
    plan: Plan
    seed: int
    key: int
    limit: int | None  # longest canvas of this row; the plan's limit holds as well
    observe: Observe | None
    admitted: float = 0.0  # when it left the queue
    last_pass: int = 0  # the pass in which it took part last, or after which it was admitted

    @property
    def size(self) -> int:
        """Tokens of its first pass: prompt and canvas."""
        canvas = self.plan.length.canvas
        return len(self.prompt) + (canvas if self.limit is None else min(canvas, self.limit))


class Engine:
    """Decodes many rows under a limit of rows and of tokens (prompts and canvases) in one pass.

    One thread calls `step`, `events`, `outcomes` or `run`. Meanwhile other threads may call `submit`, `cancel`,
    `end_early`, `wait` and `wake`. Passes run in inference mode; a denoiser that takes gradients leaves it and clones
    the ids that it is given.

    Admission is first come, first served, in two queues. Rows of up to half the token budget are admitted while all
    live rows fit one pass. A larger row does not count against that budget, but only one is live at a time. So short
    rows never wait for a long one to end, and short rows that keep arriving never keep a long one out. If the live
    rows do not fit one pass, those whose last pass is longest ago go first.
    """

    def __init__(
        self,
        denoise: Denoiser,
        roles: Roles,
        *,
        rows: int = 32,
        tokens: int = 16384,
        ended: Callable[[int], None] = lambda handle: None,
        accepts: Callable[[Plan], None] = lambda plan: None,
    ) -> None:
        """`ended` is called with the handle of each row that was in a pass and has ended: caches free its memory.

        `accepts` raises an error for a plan that the denoiser cannot serve.
        """
        for name, value in (("rows", rows), ("tokens", tokens)):
            if value < 1:
                raise ConfigError(f"{name}={value} leaves no room for a row; use at least 1.")
        self.denoise, self.roles, self.ended, self.accepts = denoise, roles, ended, accepts
        self.rows, self.tokens = rows, tokens
        self.live: dict[Plan, Rows] = {}
        self.passes = 0
        self.rows_read = 0  # rows of the last pass
        self.tokens_read = 0  # tokens of the last pass
        self._failures = 0  # passes in a row that failed
        # What other threads change, all of it under `_changed`.
        self._changed = threading.Condition()
        self._requests: dict[int, _Request] = {}
        self._short: deque[_Request] = deque()
        self._long: deque[_Request] = deque()
        self._deadlines: dict[int, float] = {}
        self._ending: dict[int, str] = {}  # handle -> stop reason of rows to end before the next pass
        self._next_handle = 0
        self._woken = False  # `wake` was called since the last `wait`

    # -------------------------------------------------------------------------------- from any thread
    def submit(
        self,
        prompt: Sequence[int],
        plan: Plan,
        *,
        seed: int = 0,
        key: int = 0,
        limit: int | None = None,
        deadline: float | None = None,
        observe: Observe | None = None,
    ) -> int:
        """Queue a prompt and return the row's handle, which no other row of this engine ever has.

        Seed and draw key determine the row's randomness: equal ones give equal answers, whatever the handle and
        whatever other rows share the passes. `limit` bounds this row's canvas, in slots, below the plan's limit. At
        `deadline`, a moment of time.monotonic(), the row ends with what it has. `observe` names canvas slots whose
        logits the row's steps must hold besides those that decoding needs.
        """
        check(prompt, self.roles, plan)
        self.accepts(plan)
        if limit is not None and limit < 1:
            raise ConfigError(f"limit={limit} leaves no room for an answer; use at least 1.")
        with self._changed:
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            request = _Request(handle, prompt, plan, seed, key, limit, observe)
            self._requests[handle] = request
            (self._long if self._is_long(request.size) else self._short).append(request)
            if deadline is not None:
                self._deadlines[handle] = deadline
            self._changed.notify_all()
        return handle

    def cancel(self, handle: int) -> None:
        """End a row before its next pass; its outcome holds what it has, with stop reason `cancelled`."""
        self.end_early(handle, "cancelled")

    def end_early(self, handle: int, reason: str = "stop") -> None:
        """End a row before its next pass because its answer is complete. Rows that are over are left alone."""
        with self._changed:
            if handle in self._requests:
                self._ending.setdefault(handle, reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is a row to decode or `wake` is called, at most `timeout` seconds; whether there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self.busy or self._woken, timeout)
            self._woken = False
            return self.busy

    def wake(self) -> None:
        """End the `wait` that another thread is in, or else the next one, although there is no row."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Whether any row has not ended."""
        return bool(self._requests)

    @property
    def waiting(self) -> int:
        """Rows in the queue."""
        return len(self._short) + len(self._long)

    @property
    def handles(self) -> list[int]:
        """Rows that have not ended, in the order in which they were submitted."""
        with self._changed:
            return list(self._requests)

    # ---------------------------------------------------------------------------- from the one thread
    def events(self) -> Iterator[Event]:
        """Step until every row has ended; the events of all passes."""
        while self.busy:
            yield from self.step()

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """Step until every row has ended; handle and outcome of each. A failed pass raises its error."""
        for event in self.events():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Finished):
                yield event.handle, event.outcome

    def run(self, prompts: Sequence[Sequence[int]], plan: Plan, *, seed: int = 0) -> Iterator[Outcome]:
        """Decode all prompts; outcomes come as rows finish, their key is the prompt's index."""
        for key, prompt in enumerate(prompts):
            self.submit(prompt, plan, seed=seed, key=key)
        for _, finished in self.outcomes():
            yield finished

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One forward pass over as many rows as fit, and what happened to them.

        If the network fails, the rows of this pass fail and the engine goes on with the others. If it fails in the
        next pass too, that error is raised instead, and its rows stay live. If a rule of a plan fails, only the rows
        of that plan fail.
        """
        events = self._end_rows()
        events += self._admit()
        chosen, resting = self._choose()
        if not chosen:
            return events
        self.passes += 1
        where = [self._wanted(plan, rows) for plan, rows in chosen]
        canvas = join([rows.canvas for _, rows in chosen])
        self.rows_read, self.tokens_read = len(canvas), int(canvas.stop.sum())
        try:
            written = self._advance(chosen, where, canvas)
        except Exception as error:
            self._failures += 1
            if self._failures > 1:
                raise
            self.live = resting
            return [*events, self._rows_failed(chosen, error)]
        self._failures = 0
        self.live = resting
        for (plan, rows), step in zip(chosen, written, strict=True):
            if isinstance(step, Exception):
                events.append(self._rows_failed([(plan, rows)], step))
                continue
            for handle in rows.canvas.handle.tolist():
                self._requests[handle].last_pass = self.passes
            self._put(plan, step.live)
            events.append(Wrote(plan, step))
            for row, finished in step.finished.items():
                events.append(self._over(int(rows.canvas.handle[row]), finished))
        return events

    def _advance(
        self, chosen: Sequence[Group], where: Sequence[Tensor], canvas: Canvas
    ) -> list[Step | Exception]:
        """The steps of all groups from one call of the denoiser; an exception for a group whose rules failed."""
        width = canvas.ids.shape[1]
        padded = [torch.nn.functional.pad(slots, (0, width - slots.shape[1])) for slots in where]
        logits = self.denoise(canvas, torch.cat(padded))
        largest = logits.amax() if logits.numel() else torch.zeros(())  # NaN if any logit is
        written: list[Step | Exception] = []
        parts = logits.split([int(slots.sum()) for slots in where])
        for (plan, rows), slots, part in zip(chosen, where, parts, strict=True):
            try:
                written.append(advance(rows, plan, slots, part))
            except Exception as error:
                written.append(error)
        if not largest.isfinite():  # only now: the steps have waited for the device already
            raise VoidpadError(
                f"the network gave logits of {float(largest)} in pass {self.passes}, so its choices mean nothing; "
                "the weights may be damaged, or the numbers too large for this dtype (try float32)."
            )
        return written

    def _wanted(self, plan: Plan, rows: Rows) -> Tensor:
        """The slots whose logits this pass needs, (B, L): those of decoding and those that rows' observers name."""
        where = wanted(rows, plan)
        observers = [self._requests[handle].observe for handle in rows.canvas.handle.tolist()]
        for observe in {one for one in observers if one is not None}:
            watched = torch.tensor([one is not None and one == observe for one in observers])
            where = where | (observe(rows.canvas) & watched[:, None])
        return where

    # --------------------------------------------------------------------------- who takes part
    def _is_long(self, size: int) -> bool:
        return 2 * size > self.tokens

    def _admit(self) -> list[Event]:
        """Start waiting rows while the limits of rows and tokens allow; an event for each row that started.

        Short and long rows wait in queues of their own; of the two heads the older one goes first.
        """
        sizes = torch.cat([rows.canvas.stop for rows in self.live.values()]).tolist() if self.live else []
        count, load, longest = len(sizes), sum(sizes), max(sizes, default=0)
        has_long = self._is_long(longest)
        if has_long:
            load -= longest
        admitted: list[_Request] = []
        with self._changed:
            while count < self.rows:
                heads = []
                if self._short and load + self._short[0].size <= self.tokens:
                    heads.append(self._short)
                if self._long and not has_long:
                    heads.append(self._long)
                if not heads:
                    break
                queue = min(heads, key=lambda queue: queue[0].handle)
                request = queue.popleft()
                request.admitted, request.last_pass = time.perf_counter(), self.passes
                admitted.append(request)
                count += 1
                if queue is self._long:
                    has_long = True
                else:
                    load += request.size
        groups: dict[Plan, list[_Request]] = {}
        for request in admitted:
            groups.setdefault(request.plan, []).append(request)
        for plan, requests in groups.items():
            rows = begin(
                [request.prompt for request in requests],
                self.roles,
                plan,
                keys=[request.key for request in requests],
                seeds=[request.seed for request in requests],
                limits=[request.limit for request in requests],
                handles=[request.handle for request in requests],
            )
            self._put(plan, rows)
        return [Started(request.handle) for request in admitted]

    def _choose(self) -> tuple[list[Group], dict[Plan, Rows]]:
        """The rows of this pass, and those that rest because the live rows hold more tokens than a pass may."""
        if sum(int(rows.canvas.stop.sum()) for rows in self.live.values()) <= self.tokens:
            return list(self.live.items()), {}
        sizes = {
            handle: size
            for rows in self.live.values()
            for handle, size in zip(rows.canvas.handle.tolist(), rows.canvas.stop.tolist(), strict=True)
        }
        taken: set[int] = set()
        load = 0
        for handle in sorted(sizes, key=lambda handle: (self._requests[handle].last_pass, handle)):
            if not taken or load + sizes[handle] <= self.tokens:  # one row takes part whatever its size
                taken.add(handle)
                load += sizes[handle]
        chosen: list[Group] = []
        resting: dict[Plan, Rows] = {}
        for plan, rows in self.live.items():
            takes_part = torch.tensor([handle in taken for handle in rows.canvas.handle.tolist()])
            if takes_part.any():
                chosen.append((plan, rows if takes_part.all() else rows.select(takes_part)))
            if not takes_part.all():
                resting[plan] = rows.select(~takes_part)
        return chosen, resting

    def _put(self, plan: Plan, rows: Rows) -> None:
        """Add rows to the live rows of their plan."""
        if not len(rows):
            return
        present = self.live.get(plan)
        self.live[plan] = rows if present is None else join_rows([present, rows])

    # -------------------------------------------------------------------------------- rows that end
    def _end_rows(self) -> list[Event]:
        """End the rows that `cancel` or `end_early` named, and those whose deadline has passed."""
        with self._changed:
            reasons, self._ending = self._ending, {}
            if self._deadlines:
                now = time.monotonic()
                late = [handle for handle, deadline in self._deadlines.items() if deadline <= now]
                reasons = dict.fromkeys(late, "deadline") | reasons
            if not reasons:
                return []
            queued = [request for queue in (self._short, self._long) for request in queue]
            self._short = deque(request for request in self._short if request.handle not in reasons)
            self._long = deque(request for request in self._long if request.handle not in reasons)
        events: list[Event] = []
        for request in queued:
            if request.handle in reasons:
                self._forget(request.handle)
                reason = reasons[request.handle]
                blank = Outcome(key=request.key, ids=[], tokens=[], passes_decode=0, stop_reason=reason)
                events.append(Finished(request.handle, blank))
        for plan, rows in list(self.live.items()):
            handles = rows.canvas.handle.tolist()
            out = torch.tensor([handle in reasons for handle in handles])
            if not out.any():
                continue
            for row in out.nonzero()[:, 0].tolist():
                events.append(self._over(handles[row], outcome(rows, row, plan, reasons[handles[row]])))
            del self.live[plan]
            self._put(plan, rows.select(~out))
        return events

    def _over(self, handle: int, finished: Outcome) -> Finished:
        """Forget a live row that has ended, let caches free it, and make its event."""
        request = self._forget(handle)
        self.ended(handle)
        return Finished(handle, replace(finished, seconds=time.perf_counter() - request.admitted))

    def _forget(self, handle: int) -> _Request:
        with self._changed:
            self._deadlines.pop(handle, None)
            self._ending.pop(handle, None)
            return self._requests.pop(handle)

    def _rows_failed(self, groups: Sequence[Group], error: Exception) -> Failed:
        """End the rows of these groups with an error, and free the memory that the failed pass took."""
        # The frames of the traceback keep local variables alive, among them tensors of the failed pass.
        traceback.clear_frames(error.__traceback__)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        handles = [handle for _, rows in groups for handle in rows.canvas.handle.tolist()]
        for handle in handles:
            self._forget(handle)
            self.ended(handle)
        return Failed(tuple(handles), error)
