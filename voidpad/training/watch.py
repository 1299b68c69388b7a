"""What a run measures about itself: training time, losses by kind of slot, the loss curve on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments

from voidpad.files import store
from voidpad.training.losses import KINDS

CLOCK = "clock.json"
FOREVER = 10**9  # updates of a run that ends by the clock


class TrainingClock:
    """Training time and tokens over all restarts of a run. Start-up and compilation are not training time."""

    def __init__(self) -> None:
        self.before = 0.0  # seconds before this restart
        self.began: float | None = None  # this process
        self.warm: float | None = None  # its first step done
        self.tokens = 0  # of all processes, as far as they have been counted together
        self.uncounted = 0  # of this process since then

    def start(self) -> None:
        self.began = time.monotonic()

    def step(self) -> None:
        self.warm = self.warm or time.monotonic()

    @property
    def here(self) -> float:
        """Seconds in this process."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    @property
    def total(self) -> float:
        """Seconds of training, over all restarts."""
        return self.before + (0.0 if self.warm is None else time.monotonic() - self.warm)

    def count(self, together: Callable[[int], int]) -> None:
        """Add the tokens of all processes since the last call; `together` sums over them, so all must call this."""
        self.tokens, self.uncounted = self.tokens + together(self.uncounted), 0

    def write(self, folder: Path) -> None:
        (folder / CLOCK).write_text(json.dumps({"seconds": self.total, "tokens": self.tokens}))

    def read(self, folder: Path) -> None:
        if (folder / CLOCK).is_file():
            values = json.loads((folder / CLOCK).read_text())
            self.before, self.tokens = values["seconds"], values["tokens"]


class LossMeter:
    """Mean cross entropy at loss slots by kind: response, EOS, padding. Sums stay on the device until they are read."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(2, len(KINDS), device=device)

    def add(self, entropy: Tensor, kind: Tensor) -> None:
        member = (kind[:, None] == torch.arange(len(KINDS), device=kind.device)).to(entropy.dtype)
        self.sums += torch.stack([entropy @ member, member.sum(0)])

    def read(self, reduce: Callable[[Tensor], Tensor]) -> dict[str, float]:
        totals, counts = reduce(self.sums.clone()).tolist()
        self.sums.zero_()
        return {f"loss_{name}": s / n for name, s, n in zip(KINDS, totals, counts, strict=True) if n}


class StopByClock(TrainerCallback):
    """Stop this process after `max_seconds`, to be resumed later, and the run when its `budget` of seconds is spent."""

    def __init__(self, clock: TrainingClock, *, max_seconds: float | None, budget: float | None) -> None:
        self.clock, self.max_seconds, self.budget = clock, max_seconds, budget

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock.start()

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        self.clock.step()
        if control.should_save and args.eval_strategy != "no":
            control.should_evaluate = True  # every checkpoint has a held-out loss, the last one included
        if args.world_size > 1 and state.global_step % args.logging_steps:
            return  # all processes must stop at the same step, and agreeing on it costs a message
        spent = self.clock.here >= (self.max_seconds or float("inf"))
        spent |= self.clock.total >= (self.budget or float("inf"))
        if args.world_size > 1:
            vote = torch.tensor(float(spent), device=args.device)
            torch.distributed.all_reduce(vote, torch.distributed.ReduceOp.MAX)
            spent = bool(vote.item())
        if spent:
            control.should_training_stop = control.should_save = control.should_log = True
            control.should_evaluate = args.eval_strategy != "no"


class Curve(TrainerCallback):
    """Writes the loss curve as JSON lines. A restart first deletes the lines of the updates that it will repeat."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero or not self.path.exists():
            return
        lines = [line for line in self.path.read_text().splitlines() if _step(line) <= state.global_step]
        store(self.path, (f"{line}\n" for line in lines))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        if state.is_world_process_zero and logs and ("loss" in logs or "eval_loss" in logs):
            with self.path.open("a") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def _step(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError):  # the last line of a killed process
        return FOREVER
