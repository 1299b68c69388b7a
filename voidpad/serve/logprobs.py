"""Log-probabilities of committed tokens, kept by canvas slot until the tokens are sent."""

from __future__ import annotations

import numpy as np

from voidpad.decode.loop import Step
from voidpad.serve.answer_text import TokenLogprob

UNKNOWN = TokenLogprob(-1, 0.0)  # a slot that the length rule filled: no pass chose its token


class SlotLogprobs:
    """One row's log-probabilities by slot; they move with their tokens when the canvas changes length."""

    def __init__(self, top: int) -> None:
        self.top = max(1, top)
        self.slots: np.ndarray | None = None  # a TokenLogprob or None for each canvas slot

    def take(self, start: int, count: int) -> list[TokenLogprob]:
        """Those of the `count` slots from `start` on."""
        if self.slots is None:
            return [UNKNOWN] * count
        known = [one or UNKNOWN for one in self.slots[start : start + count].tolist()]
        return known + [UNKNOWN] * (count - len(known))

    def add(self, step: Step, row: int) -> None:
        """Read the tokens that this pass wrote, from the raw softmax of its logits."""
        before = step.before.canvas
        start, length = int(before.prompt[row]), int(before.stop[row] - before.prompt[row])
        if self.slots is None:
            self.slots = np.full(length, None, dtype=object)
        written = step.chosen[row].nonzero()[:, 0]
        if len(written):
            computed = step.where.nonzero()
            mine = (computed[:, 0] == row) & step.chosen[row][computed[:, 1]]
            scores = step.logits[mine.to(step.logits.device)].float().log_softmax(-1)
            best = scores.topk(min(self.top, scores.shape[1]))
            tokens = step.tokens[row, written]
            own = scores.gather(1, tokens.to(scores.device)[:, None])[:, 0].tolist()
            likeliest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            slots = (written - start).tolist()
            for slot, token, value, (ids, values) in zip(slots, tokens.tolist(), own, likeliest, strict=True):
                self.slots[slot] = TokenLogprob(token, value, tuple(zip(ids, values, strict=True)))
        for kind, at, count, _ in step.edits_of(row):
            self.slots = _edited(self.slots, kind, at, count)


def _edited(values: np.ndarray, kind: str, at: int, count: int) -> np.ndarray:
    """The array after a change of the canvas's length; new slots hold None."""
    if kind == "cut":
        return np.delete(values, slice(at, at + count))
    return np.insert(values, at, np.full(count, None, dtype=object))
