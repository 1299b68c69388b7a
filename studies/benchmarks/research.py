"""Decoding as public research code does it: what our engine is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from voidpad.experiments.bench import Answers, Decoder, now
from voidpad.models import Model
from voidpad.roles import Roles


@dataclass(frozen=True)
class Research:
    """Decoding as public research code does it: one row, logits of the whole row, float64 softmax, host reads."""

    net: Any  # a transformers causal LM with full attention
    roles: Roles
    shift: int = 0
    ban: tuple[int, ...] = ()
    script: Callable[[int], int] | None = None  # canvas slot -> token, for random weights

    @torch.inference_mode()
    def __call__(
        self, prompt: Sequence[int], *, canvas: int, block: int, passes: int | None = None
    ) -> tuple[list[int], int]:
        """The canvas and the passes used; at most `passes` if given."""
        row = torch.tensor([[*prompt, *[self.roles.mask] * canvas]], device=self.net.device)
        start, used = len(prompt), 0
        steered = None if self.script is None else self._steered(start, canvas)
        for left in range(start, start + canvas, block):
            while (row[:, left : left + block] == self.roles.mask).any().item() and used != passes:
                self._pass(row, left, left + block, steered)
                used += 1
                if self._ended(row, start):
                    return row[0, start:].tolist(), used
        return row[0, start:].tolist(), used

    def _steered(self, start: int, canvas: int) -> tuple[Tensor, Tensor]:
        """The script's tokens, and scores that fall from left to right."""
        assert self.script is not None
        tokens = [0] * start + [self.script(slot) for slot in range(canvas)]
        device = self.net.device
        return torch.tensor([tokens], device=device), torch.linspace(1, 0, start + canvas, device=device)[
            None
        ].double()

    def _pass(self, row: Tensor, left: int, right: int, steered: tuple[Tensor, Tensor] | None) -> None:
        logits = self.net(row, use_cache=False).logits
        if self.shift:
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
        probability = logits.double().softmax(-1)
        if self.ban:
            logits[:, :, list(self.ban)] = -torch.inf
        tokens = logits.index_fill(2, torch.tensor([self.roles.mask], device=row.device), -torch.inf).argmax(
            -1
        )
        score = probability.gather(2, tokens[:, :, None])[:, :, 0]
        if steered is not None:
            tokens, score = steered
        open_slots = row == self.roles.mask
        open_slots[:, :left] = open_slots[:, right:] = False
        place = score.masked_fill(~open_slots, -torch.inf).argmax(1)
        row[0, place] = tokens[0, place]

    def _ended(self, row: Tensor, start: int) -> bool:
        canvas = row[0, start:]
        ends = (canvas == self.roles.eos).nonzero()
        return bool(len(ends)) and not (canvas[: ends[0].item()] == self.roles.mask).any().item()


def timed(call: Callable[[], Any], device: torch.device | str) -> tuple[float, Any]:
    begun = now(device)
    value = call()
    return now(device) - begun, value


def research_decoder(model: Model, canvas: int, block: int) -> Decoder:
    """The research loop, which must not profit from compiled layers."""
    loop = Research(model.base, model.roles, model.family.shift, ban=model.roles.ids(["void"]))

    def decode(prompts: Sequence[Sequence[int]]) -> Answers:
        with torch.compiler.set_stance("force_eager"):
            rows = [loop(prompt, canvas=canvas, block=block) for prompt in prompts]
        return [(cut_at_eos(ids, model.roles.eos), passes) for ids, passes in rows]

    return decode


def cut_at_eos(ids: list[int], eos: int) -> list[int]:
    return ids[: ids.index(eos) + 1] if eos in ids else ids
