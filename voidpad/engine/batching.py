"""The engine: prompts in, events out. Rows join and leave between passes (continuous batching).

All live rows of all plans share one forward pass. The decoding rules are those of `voidpad.decode`; the engine
decides which rows take part in a pass and reports what happened to them.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from voidpad.constrain.row import GapConstraints, RowConstraint
from voidpad.decode.loop import Denoiser, Observe, Step, advance, begin, check, wanted
from voidpad.decode.outcome import Outcome, outcome
from voidpad.decode.plan import Plan
from voidpad.decode.rows import Rows, join
from voidpad.engine.events import Event, Failed, Finished, Started, Wrote
from voidpad.engine.host import threads_for
from voidpad.errors import ConfigError, VoidpadError, first_line
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.engine.captured import CapturedPass


@dataclass
class Request:
    """A row from `submit` until it ends: what was asked, and how far it has come."""

    handle: int
    prompt: Sequence[int]
    plan: Plan
    seed: int
    key: int
    limit: int | None  # longest canvas of this row; the plan's limit holds as well
    deadline: float  # by time.monotonic()
    observe: Observe | None
    constraint: RowConstraint | GapConstraints | None
    ending: str | None = None  # the stop reason, once somebody has asked to end the row
    started: float | None = None  # when it left the queue, by time.perf_counter()
    last_pass: int = 0  # the pass in which it took part last, or after which it left the queue

    @property
    def size(self) -> int:
        """About how many tokens its first pass has, prompt and canvas: the row itself is not made yet."""
        canvas = self.plan.length.canvas
        return len(self.prompt) + (canvas if self.limit is None else min(canvas, self.limit))

    def begin(self, roles: Roles) -> Rows:
        """The row before its first pass."""
        return begin(
            [self.prompt],
            roles,
            self.plan,
            keys=[self.key],
            seeds=[self.seed],
            limits=[self.limit],
            handles=[self.handle],
            constraints=[self.constraint],
        )


@dataclass(frozen=True)
class _Group:
    """Rows of one plan in a pass, and how far the pass has come with them."""

    plan: Plan
    rows: Rows
    computed: tuple[Tensor, Tensor] | None = None  # the slots (B, L) whose logits they need, and these logits
    step: Step | None = None
    error: Exception | None = None  # why they cannot go on

    def select(self, rows: Tensor) -> _Group:
        chosen, computed = self.rows.select(rows), self.computed
        if computed is not None:
            where, logits = computed
            logits = logits[torch.isin(where.nonzero()[:, 0], rows).to(logits.device)]
            computed = where[rows][:, : chosen.ids.shape[1]], logits
        return replace(self, rows=chosen, computed=computed)


class Engine:
    """Decodes many rows under a limit of rows and of tokens (prompts and canvases) in one pass.

    Rows start in the order in which they were submitted, while the live rows fit both limits; a row counts as at most
    half of the tokens. So a long row can always start beside short ones, and short rows beside a long one. If the live
    rows together are too many tokens for one pass, those whose last pass is longest ago go first.

    One thread calls `step`, `events`, `outcomes` or `run`. Meanwhile other threads may call `submit`, `cancel`,
    `end_early`, `wait` and `wake`. Passes run in inference mode; a denoiser that takes gradients leaves it and clones
    the ids that it is given.

    A row whose plan, prompt or logits make a pass fail ends with a `Failed` event, alone: the pass is repeated
    without it. Only the loss of the device (`torch.AcceleratorError`) is raised, because no later pass could run.
    """

    def __init__(
        self,
        denoise: Denoiser,
        roles: Roles,
        *,
        rows: int = 32,
        tokens: int = 16384,
        ended: Callable[[int], None] = lambda handle: None,
        parameters: int = 0,
        captured: CapturedPass | None = None,
    ) -> None:
        """`rows` and `tokens` are the limits of one pass.

        `ended` is called with the handle of each row that had started and has ended, so that caches free its memory.
        `parameters` of the network decide how many CPU threads a pass is given; 0 leaves torch's number as it is.
        `captured` runs the passes that it can in place of `denoise` and the rules.
        """
        for name, value in (("rows", rows), ("tokens", tokens)):
            if value < 1:
                raise ConfigError(f"{name}={value} leaves no room for a row; use at least 1.")
        self.denoise, self.roles, self.ended = denoise, roles, ended
        self.rows, self.tokens, self.parameters, self.captured = rows, tokens, parameters, captured
        self.live: dict[Plan, Rows] = {}
        self.passes = 0
        self.rows_read = 0  # rows of the last pass
        self.tokens_read = 0  # tokens of the last pass
        self._warned = False  # that captured passes fail
        # What other threads change, all of it under `_changed`.
        self._changed = threading.Condition()
        self._requests: dict[int, Request] = {}  # all that have not ended, in the order of their handles
        self._queue: deque[Request] = deque()  # those that have not started
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
        constraint: RowConstraint | GapConstraints | None = None,
    ) -> int:
        """Queue a prompt and return the row's handle, which no other row of this engine ever has.

        Seed and draw key determine the row's randomness: equal ones give equal answers, whatever the handle and
        whatever other rows share the passes. `limit` bounds this row's canvas, in slots, below the plan's limit. At
        `deadline`, a moment of time.monotonic(), the row ends with what is final of it. `observe` names canvas slots
        whose logits the row's steps must hold besides those that decoding needs. `constraint` says what the row's text
        must match; `Model.compile` makes it.
        """
        check(prompt, self.roles, plan, constraint)
        if limit is not None and limit < 1:
            raise ConfigError(f"limit={limit} leaves no room for an answer; use at least 1.")
        with self._changed:
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            moment = math.inf if deadline is None else deadline
            request = Request(handle, prompt, plan, seed, key, limit, moment, observe, constraint)
            self._requests[handle] = request
            self._queue.append(request)
            self._changed.notify_all()
        return handle

    def cancel(self, handle: int) -> None:
        """End a row before its next pass, with stop reason `cancelled`."""
        self.end_early(handle, "cancelled")

    def end_early(self, handle: int, reason: str = "stop") -> None:
        """End a row before its next pass, with this stop reason: `stop` says that its answer is complete.

        The outcome's `ids` hold the canvas as it is, its `tokens` only what no later pass could have changed. A row
        that has ended already is left alone.
        """
        with self._changed:
            request = self._requests.get(handle)
            if request is not None and request.ending is None:
                request.ending = reason

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is a row to decode or `wake` is called, at most `timeout` seconds. True if there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self.busy or self._woken, timeout)
            self._woken = False
            return self.busy

    def wake(self) -> None:
        """End the `wait` that another thread is in, or the next one if none is, although there is no row."""
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
        return len(self._queue)

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

    def outcomes(self, listen: Callable[[Event], None] | None = None) -> Iterator[tuple[int, Outcome]]:
        """Step until every row has ended; handle and outcome of each. The error of a failed row is raised.

        `listen` is called with every event first.
        """
        for event in self.events():
            if listen is not None:
                listen(event)
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
        """One forward pass over as many rows as fit, and what happened to them."""
        events = [*self._end_rows(), *self._start_rows()]
        chosen, resting = self._choose()
        self.live = resting
        if not chosen:
            return events
        self.passes += 1
        sizes = [size for rows in chosen.values() for size in rows.stop.tolist()]
        self.rows_read, self.tokens_read = len(sizes), sum(sizes)
        with threads_for(self.parameters * self.tokens_read):
            groups = self._captured_pass(chosen)
            if not groups:
                groups = _isolated([_Group(plan, rows) for plan, rows in chosen.items()], self._compute)
                failed = [group for group in groups if group.error is not None]
                groups = failed + _isolated([group for group in groups if not group.error], self._apply_rules)
        for group in groups:
            events += self._fail(group.rows, group.error) if group.error else self._record_step(group)
        return events

    # ------------------------------------------------------------------------------- one pass
    def _captured_pass(self, chosen: dict[Plan, Rows]) -> list[_Group]:
        """The groups with their steps, from one captured pass; no groups if they have to go the ordinary way."""
        handles = [handle for rows in chosen.values() for handle in rows.handle.tolist()]
        if self.captured is None or any(self._requests[handle].observe for handle in handles):
            return []
        try:
            steps = self.captured(list(chosen.items())) or []
        except torch.AcceleratorError:
            raise
        except Exception as error:  # the ordinary way finds the rows at fault
            if not self._warned and not isinstance(error, VoidpadError | torch.OutOfMemoryError):
                self._warned = True
                warnings.warn(
                    f"a captured pass failed, and passes are slower: {first_line(error)}", stacklevel=2
                )
            _release(error)
            return []
        return [_Group(plan, step.before, step=step) for plan, step in zip(chosen, steps, strict=False)]

    def _compute(self, groups: list[_Group]) -> list[_Group]:
        """The groups with the logits that they need, from one pass of the network over all of them."""
        rows, needed = join([group.rows for group in groups]), []
        for group in groups:
            where = wanted(group.rows, group.plan)
            observers = [self._requests[handle].observe for handle in group.rows.handle.tolist()]
            for observe in {one for one in observers if one is not None}:
                watched = torch.tensor([one is not None and one == observe for one in observers])
                where = where | (observe(group.rows) & watched[:, None])
            needed.append(where)
        padded = [pad(where, (0, rows.ids.shape[1] - where.shape[1])) for where in needed]
        logits = self.denoise(rows, torch.cat(padded))
        if len(rows) < self.rows_read:  # part of a pass that failed: the next part may overwrite these logits
            logits = logits.clone()
        parts = zip(needed, logits.split([int(where.sum()) for where in needed]), strict=True)
        return [replace(group, computed=part) for group, part in zip(groups, parts, strict=True)]

    def _apply_rules(self, groups: list[_Group]) -> list[_Group]:
        """The groups with their steps."""
        done = []
        for group in groups:
            assert group.computed is not None
            where, logits = group.computed
            try:
                step = advance(group.rows, group.plan, where, logits)
            finally:  # After the rules, which wait for the device anyway. Bad logits also explain why rules fail.
                highest = logits.amax(1)  # NaN where any logit is
                wrong = highest[~highest.isfinite()].tolist()
                if wrong:
                    raise VoidpadError(
                        f"the network gave logits of {wrong[0]} in pass {self.passes}, so its choices mean "
                        "nothing; the weights may be damaged, or the numbers too large for this dtype (try float32)."
                    )
            done.append(replace(group, step=step))
        return done

    def _record_step(self, group: _Group) -> list[Event]:
        """Put the rows of a step back among the live ones; the events of the step."""
        step = group.step
        assert step is not None
        handles = step.after.handle.tolist()
        for handle in handles:
            self._requests[handle].last_pass = self.passes
        self._add_live(group.plan, step.live)
        ended = [self._finish(handles[row], finished) for row, finished in step.finished.items()]
        return [Wrote(group.plan, step), *ended]

    def _fail(self, rows: Rows, error: Exception) -> list[Event]:
        """End rows with an error."""
        handles = rows.handle.tolist()
        for handle in handles:
            self._forget(handle)
            self.ended(handle)
        return [Failed(tuple(handles), error)]

    # --------------------------------------------------------------------------- who takes part
    def _start_rows(self) -> list[Event]:
        """Start waiting rows, in order, while the limits of rows and tokens allow; an event for each of them."""
        largest = self.tokens / 2
        sizes = [size for rows in self.live.values() for size in rows.stop.tolist()]
        load = sum(min(size, largest) for size in sizes)
        starting: list[Request] = []
        with self._changed:
            while self._queue and len(sizes) + len(starting) < self.rows:
                load += min(self._queue[0].size, largest)
                if load > self.tokens:
                    break
                starting.append(self._queue.popleft())
        events: list[Event] = []
        for request in starting:
            request.started, request.last_pass = time.perf_counter(), self.passes
            events.append(Started(request.handle))
            try:
                self._add_live(request.plan, request.begin(self.roles))
            except Exception as error:
                self._forget(request.handle)
                events.append(Failed((request.handle,), error))
        return events

    def _choose(self) -> tuple[dict[Plan, Rows], dict[Plan, Rows]]:
        """The rows of this pass, and those that rest because the live rows hold more tokens than a pass may."""
        if sum(int(rows.stop.sum()) for rows in self.live.values()) <= self.tokens:
            return self.live, {}
        sizes = {
            handle: size
            for rows in self.live.values()
            for handle, size in zip(rows.handle.tolist(), rows.stop.tolist(), strict=True)
        }
        taken: set[int] = set()
        load = 0
        for handle in sorted(sizes, key=lambda handle: (self._requests[handle].last_pass, handle)):
            if not taken or load + sizes[handle] <= self.tokens:  # one row takes part whatever its size
                taken.add(handle)
                load += sizes[handle]
        chosen: dict[Plan, Rows] = {}
        resting: dict[Plan, Rows] = {}
        for plan, rows in self.live.items():
            takes_part = torch.tensor([handle in taken for handle in rows.handle.tolist()])
            if takes_part.any():
                chosen[plan] = rows if takes_part.all() else rows.select(takes_part)
            if not takes_part.all():
                resting[plan] = rows.select(~takes_part)
        return chosen, resting

    def _add_live(self, plan: Plan, rows: Rows) -> None:
        """Add rows to the live rows of their plan."""
        if len(rows):
            present = self.live.get(plan)
            self.live[plan] = rows if present is None else join([present, rows])

    # -------------------------------------------------------------------------------- rows that end
    def _end_rows(self) -> list[Event]:
        """End the rows that `cancel` or `end_early` named, and those whose deadline has passed."""
        now = time.monotonic()
        with self._changed:
            reasons = {
                handle: request.ending or "deadline"
                for handle, request in self._requests.items()
                if request.ending or request.deadline <= now
            }
            if not reasons:
                return []
            self._queue = deque(request for request in self._queue if request.handle not in reasons)
        events: list[Event] = []
        for plan, rows in list(self.live.items()):
            handles = rows.handle.tolist()
            out = torch.tensor([handle in reasons for handle in handles])
            if not out.any():
                continue
            final = plan.final_prefix(rows).tolist()
            for row in out.nonzero()[:, 0].tolist():
                ended = outcome(rows, row, plan, reasons.pop(handles[row]))
                events.append(self._finish(handles[row], replace(ended, tokens=ended.tokens[: final[row]])))
            del self.live[plan]
            self._add_live(plan, rows.select(~out))
        for handle, reason in reasons.items():  # they never started
            request = self._forget(handle)
            blank = Outcome(key=request.key, ids=[], tokens=[], passes_decode=0, stop_reason=reason)
            events.append(Finished(handle, blank))
        return events

    def _finish(self, handle: int, finished: Outcome) -> Finished:
        """Forget a live row that has ended, let caches free it, and make its event."""
        started = self._forget(handle).started
        assert started is not None
        self.ended(handle)
        return Finished(handle, replace(finished, seconds=time.perf_counter() - started))

    def _forget(self, handle: int) -> Request:
        with self._changed:
            return self._requests.pop(handle)


def _isolated(groups: list[_Group], work: Callable[[list[_Group]], list[_Group]]) -> list[_Group]:
    """`work(groups)`. Where that fails, groups are halved until each row at fault is a group with its error."""
    try:
        return work(groups)
    except torch.AcceleratorError:
        raise
    except Exception as error:
        _release(error)
        if len(groups) > 1:
            middle = len(groups) // 2
            halves = [groups[:middle], groups[middle:]]
        elif len(groups[0].rows) > 1:
            halves = [[groups[0].select(half)] for half in torch.arange(len(groups[0].rows)).tensor_split(2)]
        else:
            return [replace(groups[0], error=error)]
    return [group for half in halves for group in _isolated(half, work)]


def _release(error: Exception) -> None:
    """Free the memory that a failed pass took: the frames of a traceback keep its tensors alive."""
    traceback.clear_frames(error.__traceback__)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
