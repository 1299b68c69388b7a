"""Faster denoisers against the plain one: exact ones give the same tokens and passes, caches what they promise."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from cases import case, watch
from networks import BOTH, SHAPE, half_filled, ragged, results, shapes, tiny
from studies.benchmarks.research import research_decoder
from toys import LOW, Table, Toy
from voidpad.decode import decode, plan
from voidpad.engine import packed
from voidpad.engine.cache import CachedDenoiser
from voidpad.engine.cache_policy import CachePolicy
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import PackedDenoiser
from voidpad.experiments.bench import compare, decoders
from voidpad.models import FAMILIES, Model, random_model

CACHES = pytest.mark.parametrize("keep_suffix", [True, False], ids=["dual", "prefix"])


# --------------------------------------------------------------------------------------- E0: packed rows
def drawn(rng: random.Random, family: str):
    """A plan of any kind, small, with random bans."""
    block = rng.choice([2, 3, 4, 6])
    name = rng.choice(["void", "void", "original", "void-expansion", "daedal", "rho-eos", "smart-crop"])
    fields = {"block": block, "ban": rng.choice(["", "void", "void,eos", "12", "void,rainbow"])}
    if name in ("daedal", "rho-eos"):
        fields |= {"canvas": rng.randint(4, 9), "limit": 20, "check": 4, "ban": ""}
    elif name == "void-expansion":
        fields |= {"canvas": block, "limit": 5 * block, "window": 3}
        fields |= {"tau_nonvoid": rng.choice([0.2, 0.3, 0.4]), "tau_gap": rng.choice([-0.4, -0.1])}
    else:
        fields |= {"canvas": block * rng.randint(1, 4), "temperature": rng.choice([0.0, 0.0, 0.8])}
        fields |= {"threshold": rng.choice([0.0, 0.0, 0.3])}
    return plan(name, defaults=FAMILIES[family].decoding, **fields)


DTYPES = (torch.float32, torch.float64)


@BOTH
def test_packed_rows_decode_as_padded_ones(family):
    reasons, raggedness = set(), 0
    for seed in range(16):
        rng = random.Random(seed)
        model, chosen = tiny(family, seed, dtype=DTYPES[seed // 2 % 2]), drawn(rng, family)
        prompts = ragged(rng, rng.randint(1, 4))
        limits = {"rows": rng.choice([2, 32]), "tokens": rng.choice([60, 10**6])}
        plain = results(model.denoiser(), model, prompts, chosen, seed=seed, **limits)
        bucket = rng.choice([1, 1, 16, 64])
        packed = PackedDenoiser(model.denoiser(), bucket=bucket)
        assert results(packed, model, prompts, chosen, seed=seed, **limits) == plain, seed
        reasons |= {row.stop_reason for row in plain}
        raggedness += len({len(p) for p in prompts}) > 1
    assert reasons >= {"eos", "full"}
    assert raggedness > 5


@pytest.mark.parametrize(("bucket", "width"), [(1, 41 + 3 * 4), (32, 64)])
def test_packed_rows_carry_no_padding(bucket, width):
    model, chosen = tiny("llada", 0), plan("original", canvas=4, block=4)
    with shapes(model) as seen:
        denoise = PackedDenoiser(model.denoiser(), bucket=bucket)
        results(denoise, model, [[12] * size for size in (2, 9, 30)], chosen)
    assert set(seen) == {(1, width)}


def test_threads_may_share_a_network():
    rng = random.Random(5)
    model = tiny("llada", 5, dtype=torch.float32)
    packed, plain = PackedDenoiser(model.denoiser()), model.denoiser()
    asked = []
    for _ in range(8):
        canvas = half_filled(model, ragged(rng, 3), 12, rng)
        where = canvas.masked & (canvas.offset < canvas.prompt[:, None] + rng.choice([4, 8]))
        asked.append((canvas, where, plain(canvas, where)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: packed(*one[:2]), asked * 20))
    for logits, (_, _, right) in zip(found, asked * 20, strict=True):
        torch.testing.assert_close(logits, right, atol=1e-5, rtol=1e-5)


@BOTH
def test_the_last_layer_runs_at_the_asked_tokens_alone(family):
    rng = random.Random(3)
    model = tiny(family, 3, layers=3, dtype=torch.float32)
    canvas = half_filled(model, ragged(rng, 5), 12, rng)
    sizes: list[int] = []
    layers = model.net.model.layers
    hooks = [x.mlp.register_forward_pre_hook(lambda _, args: sizes.append(args[0].shape[1])) for x in layers]
    for share, bucket in ((0.3, 1), (0.3, 64), (0.05, 1), (0.0, 1)):
        draw = torch.Generator().manual_seed(rng.randrange(2**31))
        where = canvas.slots & (torch.rand(canvas.ids.shape, generator=draw) < share)
        sizes.clear()
        found, tokens = PackedDenoiser(model.denoiser(), bucket=bucket)(canvas, where), int(canvas.stop.sum())
        whole = -(-tokens // bucket) * bucket
        assert sizes == [whole, whole, int(where.sum()) or whole]  # no layer takes no token at all
        torch.testing.assert_close(found, model.denoiser()(canvas, where), atol=1e-5, rtol=1e-5)
    sizes.clear()
    block = canvas.masked & (canvas.offset < canvas.prompt[:, None] + 4)
    found = CachedDenoiser(model.denoiser(), 4)(canvas, block)
    assert sizes == [tokens, tokens, int(block.sum())]
    torch.testing.assert_close(found, model.denoiser()(canvas, block), atol=1e-5, rtol=1e-5)
    for hook in hooks:
        hook.remove()
    assert not any(layer._forward_pre_hooks for layer in layers)


# ------------------------------------------------------------------------- E1: equal, or a near-tie
def commits(denoise, model: Model, prompt, chosen) -> list[tuple[int, int, torch.Tensor]]:
    """Slot, token and all probabilities (L, V) of every pass of one row that writes one slot a pass."""
    found = []
    for step in decode(denoise, [prompt], model.roles, chosen):
        [(slot, token, _)] = step.written(0)
        p = torch.zeros(step.where.shape[1], step.logits.shape[1], dtype=torch.float64)
        p[step.where[0]] = step.logits.double().softmax(1).cpu()
        found.append((slot + len(prompt), token, p))
    return found


def equal_or_near_tie(first, second, *, slack: float = 0.03) -> bool:
    """The same commits; or, where they part, the first run finds the other's choice nearly as likely as its own."""
    for (slot, token, p), (other_slot, other_token, _) in zip(first, second, strict=True):
        if (slot, token) != (other_slot, other_token):
            return float(p[other_slot, other_token]) > (1 - slack) * float(p[slot, token])
    return True


# ------------------------------------------------------------------------------------- trimmed canvases
def by_place(canvas: list[int]) -> list[dict[int, float]]:
    """A model that looks at nothing but the slot: EOS is likeliest at slot 5, and surer than the words."""
    return [{LOW.eos if slot == 5 else 6: 0.9 if slot == 5 else 0.6, 7: 0.1} for slot in range(len(canvas))]


@pytest.mark.parametrize("commit", [{}, {"threshold": 0.5}, {"factor": 1.0}], ids=str)
@pytest.mark.parametrize("block", [2, 4, 12])
def test_trimming_changes_nothing_for_a_model_that_ignores_the_tail(block, commit):
    denoise, fields = Toy(Table(by_place)), {"canvas": 12, "block": block, **commit}
    [whole] = watch(denoise, [[8]], LOW, plan("void", **fields))
    [short] = watch(denoise, [[8]], LOW, plan("void", trim=True, **fields))
    assert short.tokens == whole.tokens == [6] * 5 + [LOW.eos]
    assert (short.passes_decode, short.stop_reason) == (whole.passes_decode, "eos")
    assert (short.canvas, whole.canvas) == (6, 12)


def test_a_trimmed_canvas_ends_at_its_first_eos():
    cut_short = 0
    for number in range(50):
        c = case(number, ("fixed", "expansion"))
        trimmed = c.plan.replace(trim=True, stop=plan("void").stop, cut=True)
        for row in watch(c.denoise, c.prompts, c.roles, trimmed, seed=c.seed):
            eos = row.ids.index(c.roles.eos) if c.roles.eos in row.ids else None
            assert eos is None or eos == len(row.ids) - 1, number
            assert row.tokens == row.ids, number
            assert (row.stop_reason == "eos") == (eos is not None and c.roles.mask not in row.ids), number
            cut_short += len(row.ids) % c.settings.block > 0
    assert cut_short > 8


# ------------------------------------------------------------------------------------------ benchmarks
@BOTH
def test_the_comparison_is_like_for_like(family):
    """Research's loop, with LLaDA's rules on either family, gives our tokens in as many passes."""
    for seed in range(2):
        model, prompts = tiny(family, seed), ragged(random.Random(seed), 4)
        named = {"research": research_decoder(model, 12, 4), **decoders(model, 12, 4)}
        found = compare(named, prompts, device="cpu", rounds=2)
        assert found["exact"]["equal"] == found["research"]["equal"] == 4
        assert found["exact"]["passes"] == found["research"]["passes"]
    assert set(found) >= {"prefix cache", "dual cache", "dual cache, threshold 0.9"}


@pytest.mark.slow
@BOTH
def test_compiled_layers_change_no_token(family):
    model, prompts = tiny(family, 2, dtype=torch.float32), ragged(random.Random(2), 4)
    chosen = model.plan("void", canvas=12, block=4)
    ways = {"exact": lambda: model.engine(), "dual": lambda: model.engine(cache="dual", block=4)}
    before = {name: list(make().run(prompts, chosen)) for name, make in ways.items()}
    model.compiled()
    for name, make in ways.items():
        after = list(make().run(prompts, chosen))
        assert [(row.key, row.ids) for row in after] == [(row.key, row.ids) for row in before[name]]


# ------------------------------------------------------------------------------------------------ GPU
gpu = pytest.mark.gpu


def on_gpu(family: str, seed: int, dtype: torch.dtype) -> Model:
    return random_model(family, **SHAPE, seed=seed, dtype=dtype, device="cuda")


@gpu
@BOTH
@pytest.mark.parametrize("graphs", [0, 4096], ids=["eager", "graphs"])
def test_one_row_in_bfloat16_is_the_plain_row_or_a_near_tie(family, graphs):
    for seed in range(4):
        model = on_gpu(family, seed, torch.bfloat16)
        prompt = [40 + n for n in range(30 + seed)]
        chosen = plan("original", canvas=64, block=32)
        plain = commits(model.denoiser(), model, prompt, chosen)
        packed = PackedDenoiser(model.denoiser(), bucket=64 if graphs else 1, graphs=Graphs(graphs))
        fast = commits(packed, model, prompt, chosen)
        assert equal_or_near_tie(plain, fast)


@gpu
@BOTH
def test_packing_changes_logits_by_rounding_only_on_a_gpu(family):
    model = on_gpu(family, 0, torch.bfloat16)
    canvas = half_filled(model, [[40 + n for n in range(size)] for size in (5, 31, 90)], 32, random.Random(0))
    plain = model.denoiser()(canvas, canvas.slots).float()
    packed = PackedDenoiser(model.denoiser(), bucket=64)(canvas, canvas.slots).float()
    assert (plain - packed).abs().max() < 0.05 * plain.abs().max()


@gpu
@BOTH
def test_graphs_change_no_token(family):
    """The same kernels on the same shapes, launched at once: replay is bit for bit the eager pass."""
    model = on_gpu(family, 1, torch.bfloat16)
    prompts = [[40 + n for n in range(size)] for size in (5, 31, 64)]
    chosen = plan("void", canvas=64, block=32)
    eager = results(PackedDenoiser(model.denoiser(), bucket=64), model, prompts, chosen)
    graphed = PackedDenoiser(model.denoiser(), bucket=64, graphs=Graphs(4096))
    assert results(graphed, model, prompts, chosen) == eager
    assert graphed.graphs.captured
    for keep_suffix in (True, False):
        cached = CachedDenoiser(model.denoiser(), 32, CachePolicy(keep_suffix))
        eager = results(cached, model, prompts, chosen, ended=cached.forget)
        fast = CachedDenoiser(model.denoiser(), 32, CachePolicy(keep_suffix), graphs=Graphs(4096))
        assert results(fast, model, prompts, chosen, ended=fast.forget) == eager
        assert fast.graphs.captured


@gpu
@BOTH
@CACHES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_block_pass_on_an_unchanged_canvas_is_the_full_pass_on_a_gpu(family, keep_suffix, dtype):
    model, rng = on_gpu(family, 2, dtype), random.Random(3)
    canvas = half_filled(model, [[40 + n for n in range(size)] for size in (5, 31, 90)], 96, rng)
    first = canvas.prompt + torch.tensor([0, 32, 64])
    where = canvas.masked & (canvas.offset >= first[:, None]) & (canvas.offset < first[:, None] + 32)
    wanted = model.denoiser()(canvas, where).float()
    half = dtype == torch.bfloat16
    for graphs in (0, 4096):
        cached = CachedDenoiser(
            model.denoiser(), 32, CachePolicy(keep_suffix), bucket=64, graphs=Graphs(graphs)
        )
        for number in range(4):  # a refresh, then block passes: eager, or captured and replayed
            later = replace(canvas, decoded=canvas.decoded + number)
            apart = (cached(later, where).float() - wanted).abs().max()
            assert apart < (0.05 * wanted.abs().max() if half else 1e-3)
        assert bool(cached.graphs.captured) == (half and graphs > 0)


# ------------------------------------------------------------------------------------------ compiled passes
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_joined_products_compute_the_same_and_take_no_memory(family):
    model = tiny(family, 1, dtype=torch.float64)
    canvas = half_filled(model, ragged(random.Random(1), 3), 12, random.Random(1))
    where = canvas.masked & (canvas.offset < canvas.prompt[:, None] + 4)
    wanted = PackedDenoiser(model.denoiser())(canvas, where)
    before = {name: weight.clone() for name, weight in model.net.state_dict().items()}
    layer = model.net.model.layers[0]
    joined = packed.JoinedLayer(layer)
    assert joined.attention.inner.weight.data_ptr() == layer.self_attn.q_proj.weight.data_ptr()
    assert joined.mlp.inner.weight.data_ptr() == layer.mlp.gate_proj.weight.data_ptr()
    after = model.net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    seen = torch.randn(1, 5, 16, dtype=torch.float64)
    parts = [getattr(layer.self_attn, f"{name}_proj")(seen) for name in "qkv"]
    for one, other in zip(joined.attention(seen), parts, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(
        joined.mlp(seen), [layer.mlp.gate_proj(seen), layer.mlp.up_proj(seen)], strict=True
    ):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(PackedDenoiser(model.denoiser())(canvas, where), wanted)


def test_one_graph_without_a_break_serves_all_layers(monkeypatch):
    """As on a GPU: attention is one operation that torch.compile does not look into, and keys are written in place."""
    from torch._dynamo.testing import CompileCounter
    from torch.nn.attention import varlen

    model = tiny("llada", 0, layers=3, dtype=torch.float32)
    body, tokens = model.net.model, 24
    monkeypatch.setattr(varlen, "varlen_attn", lambda q, k, *_: q + k[:tokens].sum())
    bounds = torch.tensor([0, 10, tokens], dtype=torch.int32)
    monkeypatch.setattr(packed, "is_fused", lambda *_: True)
    segments = packed.Segments(bounds, bounds, 16, 32)
    counter, places = CompileCounter(), torch.arange(tokens)
    compiled = torch.compile(packed.decoder_layer, dynamic=True, fullgraph=True, backend=counter)
    with torch.inference_mode():
        hidden = body.embed_tokens(torch.randint(11, 16, (1, tokens)))
        rotary = body.rotary_emb(hidden, places[None])
        for layer in body.layers:
            kept = [torch.zeros(64, layer.self_attn.k_proj.out_features // 4, 4) for _ in range(4)]
            given = (layer, packed.JoinedLayer(layer), hidden, rotary, segments, places[:0])
            found = compiled(*given, tuple(kept[:2]), places, None)
            wanted = packed.decoder_layer(*given, tuple(kept[2:]), places, None)
            torch.testing.assert_close(found, wanted)
            assert kept[0].any()
            assert torch.equal(kept[0], kept[2])
    assert counter.frame_count == 1
