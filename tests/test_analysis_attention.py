"""The attention intervention is the mask that specification 8.4 describes, and the mass is the network's own."""

from dataclasses import replace

import pytest
import torch

from voidpad.decode.rows import Rows
from voidpad.diagnose.attention import (
    QUERIES,
    AttentionProbe,
    by_layer,
    hidden_eos,
    hidden_eos_from_all,
    probe_attention,
)
from voidpad.diagnose.overflow import survey
from voidpad.models import random_model
from voidpad.roles import Roles

ROLES = Roles(mask=0, eos=1, void=4)
BOTH = pytest.mark.parametrize("family", ["llada", "dream"])
EITHER = pytest.mark.parametrize("queries", list(QUERIES))


def rows(*answers: list[int], prompt: tuple[int, ...] = (9, 1, 8)) -> Rows:
    """Canvases behind a prompt that holds an EOS of its own."""
    parts = [Rows.blank([prompt], len(answer), ROLES) for answer in answers]
    width = max(part.ids.shape[1] for part in parts)
    ids = torch.full((len(parts), width), ROLES.eos)  # filler right of a row is EOS too, and must not count
    for row, answer in enumerate(answers):
        ids[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
    size = torch.full((len(parts),), len(prompt))
    stop = size + torch.tensor([len(answer) for answer in answers])
    return Rows.of(ids, size, stop, ROLES)


CANVAS = rows([7, 0, 1, 0, 1], [0, 0, 0], [1, 1], [0, 7, 0, 6])


@EITHER
def test_pairs_are_those_of_the_specification(queries):
    hidden = QUERIES[queries](CANVAS)
    for row in range(len(CANVAS)):
        ids, stop = CANVAS.ids[row].tolist(), int(CANVAS.stop[row])
        begun = ROLES.eos in ids[3:stop]
        for query in range(stop):
            for key in range(len(ids)):
                eos = key < stop and ids[key] == ROLES.eos
                asks = ids[query] == ROLES.mask if queries == "masked" else query != key
                assert bool(hidden[row, query, key]) == (begun and eos and asks), (row, query, key)


@BOTH
def test_hidden_tokens_have_no_say(family):
    """With EOS hidden from all, what stands at those places changes nothing at the others."""
    model = random_model(family, kv_heads=2)
    canvas = Rows.of(CANVAS.ids, CANVAS.prompt, CANVAS.stop, model.roles)
    fixed = hidden_eos_from_all(canvas)
    eos = canvas.inside & (canvas.ids == model.roles.eos) & (canvas.offset >= 3)
    other = replace(canvas, ids=canvas.ids.masked_fill(eos, 20))
    # A Dream slot is read off the place before it, which must not be an EOS.
    before = torch.nn.functional.pad(eos, (1, 0))[:, :-1] if model.family.shift else torch.zeros_like(eos)
    where = canvas.masked & ~before
    told = [model.denoiser(forbid=lambda _: fixed)(each, where) for each in (canvas, other)]
    assert torch.allclose(*told, atol=1e-5)
    free = [model.denoiser()(each, where) for each in (canvas, other)]
    assert not torch.allclose(*free, atol=1e-3)


@BOTH
@pytest.mark.parametrize("forbid", [None, hidden_eos, hidden_eos_from_all])
def test_watching_changes_no_logits(family, forbid):
    model = random_model(family, kv_heads=2)
    canvas = Rows.of(CANVAS.ids, CANVAS.prompt, CANVAS.stop, model.roles)
    plain = model.denoiser(forbid=forbid)
    watched = AttentionProbe(plain)
    assert torch.allclose(watched(canvas, canvas.masked), plain(canvas, canvas.masked), atol=1e-5)
    if forbid is not None:  # what is hidden gets no attention
        assert all((mass.eos.max() == 0) == (mass.committed > 0) for mass in watched.seen)
    assert plain.body.config._attn_implementation == "sdpa"
    assert not any(layer.self_attn._forward_hooks for layer in plain.body.layers)
    assert not any(layer.self_attn._forward_pre_hooks for layer in plain.body.layers)


@BOTH
def test_mass_is_the_networks_attention(family):
    """Against transformers' own output_attentions, row by row without padding."""
    model = random_model(family, kv_heads=2)
    canvas = Rows.of(CANVAS.ids, CANVAS.prompt, CANVAS.stop, model.roles)
    watched = AttentionProbe(model.denoiser())
    watched(canvas, canvas.masked)
    model.net.set_attn_implementation("eager")
    for row, mass in enumerate(watched.seen):
        ids = canvas.ids[row, : int(canvas.stop[row])]
        masked, eos = ids == ROLES.mask, ids == ROLES.eos
        masked[:3] = False
        with torch.inference_mode():
            layers = model.net(ids[None], output_attentions=True).attentions
        told = [w[0].mean(0)[masked][:, eos].sum(1).mean() if masked.any() else 0.0 for w in layers]
        assert mass.eos.tolist() == pytest.approx([float(t) for t in told], abs=1e-5)
        assert mass.even == pytest.approx(float(eos.float().mean()))
        assert mass.committed == int(eos[3:].sum())


def test_watching_a_decode_counts_its_passes():
    model = random_model("llada")
    prompts = [model.encode(text, raw=True) for text in ("a b", "c")]
    seen = probe_attention(model, prompts, model.plan("original", canvas=8, block=8))
    assert sorted((one.key, one.number) for one in seen) == [(key, n) for key in (0, 1) for n in range(8)]
    layers, even = by_layer(seen)
    assert len(layers) == (2 if any(one.committed for one in seen) else 0)
    assert 0 <= even <= 1


def test_the_intervention_acts_from_the_first_eos_on():
    """A decode without EOS is untouched; one that starts with EOS comes out as with the mask by hand."""
    model = random_model("llada")
    prompt = model.encode("a b c", raw=True)
    banned = model.plan("original", canvas=16, block=16, ban="eos")
    free, hidden = (survey(model, [prompt], [banned], forbid=f) for f in (None, hidden_eos))
    assert untimed(free) == untimed(hidden)
    with torch.no_grad():  # a head that loves EOS: it is committed first
        model.net.lm_head.weight[model.roles.eos] *= 8
    plan = model.plan("original", canvas=16, block=16)
    free, hidden = (survey(model, [prompt], [plan], forbid=f) for f in (None, hidden_eos))
    assert free[0].effective < 16
    assert untimed(free) != untimed(hidden)


def untimed(answers):
    return [replace(answer, seconds=0.0) for answer in answers]
