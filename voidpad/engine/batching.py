"""The engine: many prompts in, finished rows out. Rows join and leave between passes.

All live rows of all plans share one forward pass. The rules are those of `voidpad.decode`: the engine only
decides who takes part in a pass.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from voidpad.decode.canvas import join
from voidpad.decode.loop import Denoiser, Outcome, advance, begin, check, outcome, wanted
from voidpad.decode.plan import Plan
from voidpad.decode.rows import Rows, join_rows
from voidpad.errors import ConfigError
from voidpad.roles import Roles


@dataclass(frozen=True)
class Request:
    key: int
    prompt: Sequence[int]
    plan: Plan
    seed: int


@dataclass
class Engine:
    """Continuous batching under a limit of rows and of tokens (prompt and canvas) in one pass.

    Passes run in inference mode. A denoiser that takes gradients leaves it and clones the ids it is given.
    """

    denoise: Denoiser
    roles: Roles
    rows: int = 32
    tokens: int = 16384
    ended: Callable[[int], None] = lambda key: None  # told when a row is over; caches drop it then
    waiting: deque[Request] = field(default_factory=deque)
    live: dict[Plan, Rows] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)  # key -> when it was queued, then when it began
    cancelled: set[int] = field(default_factory=set)
    next_key: int = 0
    passes: int = 0
    took_part: int = 0  # rows of the last pass
    tokens_read: int = 0  # tokens of the last pass

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("tokens", self.tokens)):
            if value < 1:
                raise ConfigError(f"{name}={value} leaves no room for a row; use at least 1.")

    def submit(self, prompt: Sequence[int], plan: Plan, *, seed: int = 0, key: int | None = None) -> int:
        """Queue a prompt. The key identifies the row and, with the seed, its randomness."""
        check(prompt, self.roles, plan)
        key = self.next_key if key is None else key
        if key in self.since:
            raise ConfigError(f"key={key} is in use by a row that has not ended; choose another.")
        self.waiting.append(Request(key, prompt, plan, seed))
        self.since[key] = time.perf_counter()
        self.next_key = max(self.next_key, key + 1)
        return key

    def cancel(self, key: int) -> None:
        """End a row before its next pass; it comes out with what it has, as `cancelled`."""
        self.cancelled.add(key)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.live)

    def run(self, prompts: Sequence[Sequence[int]], plan: Plan, *, seed: int = 0) -> Iterator[Outcome]:
        """Decode all prompts; outcomes come as rows finish, their key is the prompt's index."""
        for key, prompt in enumerate(prompts):
            self.submit(prompt, plan, seed=seed, key=key)
        while self.busy:
            yield from self.step()

    @torch.inference_mode()
    def step(self) -> list[Outcome]:
        """One forward pass over as many rows as fit; the rows that ended."""
        done = self._drop_cancelled()
        self._admit()
        groups, resting = self._share()
        if not groups:
            return done
        self.passes += 1
        asks = [wanted(rows, plan) for plan, rows in groups]
        canvas = join([rows.canvas for _, rows in groups])
        self.took_part, self.tokens_read = len(canvas), int(canvas.stop.sum())
        width = canvas.ids.shape[1]
        where = torch.cat([torch.nn.functional.pad(ask, (0, width - ask.shape[1])) for ask in asks])
        logits = self.denoise(canvas, where).split([int(ask.sum()) for ask in asks])
        took_part = {plan for plan, _ in groups}
        self.live = dict(sorted(resting.items(), key=lambda item: item[0] in took_part))
        for (plan, rows), ask, part in zip(groups, asks, logits, strict=True):
            step = advance(rows, plan, ask, part)
            self._put(plan, step.live)
            done += [self._timed(finished) for finished in step.finished.values()]
        return done

    def _admit(self) -> None:
        """Start waiting rows while the limits allow; a single row always may."""
        count = sum(len(rows) for rows in self.live.values())
        load = sum(int(rows.canvas.stop.sum()) for rows in self.live.values())
        fresh: dict[Plan, list[Request]] = {}
        while self.waiting and count < self.rows:
            request = self.waiting[0]
            size = len(request.prompt) + request.plan.length.canvas
            if count and load + size > self.tokens:
                break
            fresh.setdefault(request.plan, []).append(self.waiting.popleft())
            self.since[request.key] = time.perf_counter()
            count, load = count + 1, load + size
        for plan, requests in fresh.items():
            keys, seeds = [r.key for r in requests], [r.seed for r in requests]
            self._put(plan, begin([r.prompt for r in requests], self.roles, plan, keys=keys, seeds=seeds))

    def _share(self) -> tuple[list[tuple[Plan, Rows]], dict[Plan, Rows]]:
        """Who takes part in this pass, and who rests because canvases have grown past the limit."""
        load = 0
        groups: list[tuple[Plan, Rows]] = []
        resting: dict[Plan, Rows] = {}
        if sum(int(rows.canvas.stop.sum()) for rows in self.live.values()) <= self.tokens:
            return list(self.live.items()), resting
        for plan, rows in self.live.items():
            size = load + rows.canvas.stop.cumsum(0)
            fits = size <= self.tokens
            if not groups:
                fits[0] = True
            if fits.any():
                groups.append((plan, rows if fits.all() else rows.select(fits)))
                load = int(size[fits][-1])
            if not fits.all():
                resting[plan] = rows.select(~fits)
        return groups, resting

    def _put(self, plan: Plan, rows: Rows) -> None:
        """Add rows to their group, behind those that rested: they go first next time."""
        if not len(rows):
            return
        there = self.live.get(plan)
        self.live[plan] = rows if there is None else join_rows([there, rows])

    def _drop_cancelled(self) -> list[Outcome]:
        if not self.cancelled:
            return []
        done = [Outcome(r.key, [], [], 0, 0, 0, "cancelled") for r in self.waiting if r.key in self.cancelled]
        for one in done:
            del self.since[one.key]
        self.waiting = deque(r for r in self.waiting if r.key not in self.cancelled)
        for plan, rows in list(self.live.items()):
            out = torch.tensor([int(key) in self.cancelled for key in rows.canvas.key])
            ended = [outcome(rows, row, plan, "cancelled") for row in out.nonzero()[:, 0].tolist()]
            done += [self._timed(one) for one in ended]
            del self.live[plan]
            self._put(plan, rows.select(~out))
        self.cancelled.clear()
        return done

    def _timed(self, finished: Outcome) -> Outcome:
        self.ended(finished.key)
        return replace(finished, seconds=time.perf_counter() - self.since.pop(finished.key))
