"""Small random networks, rows in the middle of decoding, and what engines make of them: for tests of fast passes."""

import random
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from voidpad.decode import Rows
from voidpad.engine.batching import Engine
from voidpad.models import Model, random_model

BOTH = pytest.mark.parametrize("family", ["llada", "dream"])
# Of the networks on a GPU.
SHAPE = {"vocab": 512, "hidden": 256, "heads": 4, "intermediate": 512, "layers": 4, "context": 1024}


def tiny(
    family: str, seed: int, *, layers: int = 2, dtype=torch.float64, ends: float = 2.0, **fields
) -> Model:
    """A vocabulary of 11 roles and 5 letters; `ends` times as sure of EOS and VOID as of others, so that they occur."""
    shape = {"vocab": 16, "hidden": 16, "heads": 4, "kv_heads": 1 + seed % 2, "intermediate": 32}
    model = random_model(family, **shape, layers=layers, context=256, seed=seed, dtype=dtype, **fields)
    with torch.no_grad():
        model.net.lm_head.weight[sorted({*model.roles.ends, model.roles.eos, model.roles.void})] *= ends
    return model


def ragged(rng: random.Random, count: int, longest: int = 14) -> list[list[int]]:
    return [[rng.randrange(11, 16) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def half_filled(model: Model, prompts, length: int, rng: random.Random) -> Rows:
    """Canvases in the middle of decoding: about half of the slots written."""
    canvas = Rows.blank(prompts, length, model.roles)
    draw = torch.Generator().manual_seed(rng.randrange(2**31))
    chosen = canvas.slots & (torch.rand(canvas.ids.shape, generator=draw) < 0.5)
    chosen &= (canvas.offset - canvas.prompt[:, None]) % 4 > 0  # every block keeps a mask
    words = torch.randint(11, 16, canvas.ids.shape, generator=draw)
    return replace(canvas, ids=torch.where(chosen, words, canvas.ids))


def decoded(engine: Engine, prompts, chosen, *, seed: int = 0) -> list:
    """The outcomes in the order of the prompts, without their times."""
    ended = engine.run(prompts, chosen, seed=seed)
    return [replace(row, seconds=0.0) for row in sorted(ended, key=lambda row: row.key)]


def results(denoise, model: Model, prompts, chosen, *, seed: int = 0, **limits) -> list:
    return decoded(Engine(denoise, model.roles, **limits), prompts, chosen, seed=seed)


@contextmanager
def shapes(model: Model):
    """The shape of the token ids of every forward pass inside."""
    seen: list[tuple[int, ...]] = []
    hook = model.net.model.embed_tokens.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    try:
        yield seen
    finally:
        hook.remove()
