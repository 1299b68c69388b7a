"""Typed answers: the probability of each of a few choices, instead of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from voidpad.constrain import bytes_of_tokens, choice
from voidpad.constrain.messages import FRONTIER, Beliefs, Window, Windows, log_probabilities
from voidpad.decode.rows import Rows
from voidpad.models.checkpoint import PreparedPrompt, Prompt
from voidpad.models.text import encode_text

if TYPE_CHECKING:
    from voidpad.models.model import Model


@dataclass(frozen=True)
class Decision:
    """How probable each choice is, among these choices."""

    probabilities: dict[str, float]  # they add up to 1
    estimate: Literal["product", "chain"]  # of one pass, or token by token
    passes: int  # forward passes; those of the chain rule run over all choices at once

    @property
    def best(self) -> str:
        """The most probable choice, the first of equals."""
        return max(self.probabilities, key=self.probabilities.__getitem__)


def decide(
    model: Model,
    prompt: Prompt,
    choices: Sequence[str],
    *,
    exact: bool = False,
    raw: bool = False,
    system: str | None = None,
) -> Decision:
    """The probability of each choice as the answer, among these choices, at temperature 1.

    Tokens that all choices begin with are written first. In one pass, the probability of the rest of a choice is
    the product of its slots' probabilities, as if they were independent, summed over all ways to split it into
    tokens. With `exact`, the chain rule: the tokenizer's own split, token by token from left to right, one pass for
    each token of the longest choice and one for the end. The canvas has one slot more than the longest choice has
    tokens.
    """
    given = prompt.ids if isinstance(prompt, PreparedPrompt) else model.encode(prompt, system=system, raw=raw)
    texts = list(dict.fromkeys(choices))
    choice(texts)  # refuses what is no list of texts
    ids = [encode_text(model.tokenizer, text, roles=model.roles) for text in texts]
    slots = max(map(len, ids)) + 1
    if model.card.causal_block:
        slots = -(-(len(given) + slots) // model.card.causal_block) * model.card.causal_block - len(given)
    model.check_prompt(given, canvas=slots)
    shared = _shared(ids, model)
    with torch.inference_mode():
        logs = (_chain if exact else _product)(model, given, ids, slots, shared)
        shares = torch.tensor(logs, dtype=torch.float64).softmax(0).tolist()
    passes = max(map(len, ids)) - shared + 1 if exact else 1
    return Decision(dict(zip(texts, shares, strict=True)), "chain" if exact else "product", passes)


def _shared(choices: Sequence[list[int]], model: Model) -> int:
    """How many tokens all choices begin with; what follows them is text in every choice."""
    equal = takewhile(lambda column: len(set(column)) == 1, zip(*choices, strict=False))
    size = min(len(list(equal)), *(len(tokens) - 1 for tokens in choices))
    return next(
        n for n in range(size, -1, -1) if all(_text(tokens[n:], model) is not None for tokens in choices)
    )


def _text(tokens: Sequence[int], model: Model) -> str | None:
    """The text of some tokens; None if they begin or end inside a character."""
    spelled = bytes_of_tokens(model.tokenizer)
    try:
        return b"".join(spelled[token] or b"" for token in tokens).decode()
    except UnicodeDecodeError:
        return None


def _written(
    model: Model, prompt: Sequence[int], choices: Sequence[list[int]], slots: int, shared: int
) -> Rows:
    """A row for each choice, with the tokens that all choices share written, and masks after them."""
    blank = Rows.blank([prompt] * len(choices), slots, model.roles)
    ids = blank.ids.clone()
    ids[:, len(prompt) : len(prompt) + shared] = torch.tensor(choices[0][:shared], dtype=torch.long)
    return replace(blank, ids=ids)


def _product(
    model: Model, prompt: Sequence[int], choices: Sequence[list[int]], slots: int, shared: int
) -> list[float]:
    """The log-weight of each choice in one pass: the product of its slots' probabilities, over all its spellings.

    Slots after a choice count by the model's belief that nothing stands there.
    """
    row = _written(model, prompt, choices[:1], slots, shared)
    log_p = log_probabilities(model.default_denoiser()(row, row.masked))
    kind, found = np.full(slots - shared, FRONTIER), []
    for tokens in choices:
        text = _text(tokens[shared:], model)
        assert text, "the shared tokens leave some text of every choice"
        own = model.compiler(choice([text]))
        beliefs = Beliefs.of(own.tables(model.roles, log_p.device).beliefs(log_p).cpu().numpy())
        windows = Windows.of([Window(kind, kind, kind < 0, 0, own.messages.final(0, closed=False))])
        weights = own.messages.weights(windows, beliefs, best=False)
        found.append(float(own.messages.backward(windows, weights, best=False)[0, 0, 0]))
    return found


def _chain(
    model: Model, prompt: Sequence[int], choices: Sequence[list[int]], slots: int, shared: int
) -> list[float]:
    """The log-probability of each choice by the chain rule: its tokens from left to right, then the end."""
    roles, first = model.roles, len(prompt)
    denoise = model.default_denoiser()
    rows = _written(model, prompt, choices, slots, shared)
    ids, found = rows.ids.clone(), torch.zeros(len(choices), dtype=torch.float64)
    for place in range(shared, max(map(len, choices)) + 1):
        live = [row for row, tokens in enumerate(choices) if place <= len(tokens)]
        canvas = replace(rows, ids=ids.clone()).select(torch.tensor(live))
        where = torch.zeros_like(canvas.ids, dtype=torch.bool)
        where[:, first + place] = True
        log_p = log_probabilities(denoise(canvas, where)).cpu()
        for number, row in enumerate(live):
            if place < len(choices[row]):
                ids[row, first + place] = choices[row][place]
                found[row] += log_p[number, choices[row][place]]
            else:
                found[row] += log_p[number, list(roles.ends)].logsumexp(0)
    return found.tolist()
