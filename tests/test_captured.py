"""The captured pass on a CPU, without a graph: the same tokens, scores and endings as the ordinary path."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from networks import BOTH, ragged, tiny
from toys import LOW
from voidpad.decode import Plan, Rows, plan
from voidpad.decode.commit import EntropyBound, Factor, Threshold, TopK
from voidpad.decode.loop import begin
from voidpad.decode.noise import Noise
from voidpad.decode.propose import Bans, GumbelProposal, TemperedProposal, propose_in_tiles
from voidpad.engine import captured
from voidpad.engine.batching import Engine
from voidpad.engine.cache import CachedDenoiser
from voidpad.engine.cache_policy import CachePolicy
from voidpad.engine.captured import CapturedPass, device_step, kind_of
from voidpad.engine.events import Finished, Wrote
from voidpad.engine.graphs import Graphs
from voidpad.engine.graphs import run as run_plainly
from voidpad.engine.packed import PackedDenoiser
from voidpad.models import FAMILIES

COMMITS = [
    {},
    {"steps": 6},
    {"threshold": 0.3},
    {"factor": 0.6},
    {"entropy_bound": 1.5, "entropy_order": "entropy"},
    {"entropy_bound": 0.7},
]


def drawn(rng: random.Random, family: str):
    fields = {"block": 4, "canvas": 12, "ban": rng.choice(["void", "", "void,12"])}
    fields |= rng.choice(COMMITS) | {"temperature": rng.choice([0.0, 0.0, 0.7])}
    return plan(rng.choice(["void", "original"]), defaults=FAMILIES[family].decoding, **fields)


def run(engine: Engine, prompts, plans) -> tuple[list, list]:
    """The outcomes by key, and everything that the steps showed."""
    for key, (prompt, chosen) in enumerate(zip(prompts, plans, strict=True)):
        engine.submit(prompt, chosen, seed=3, key=key)
    done, seen = [], []
    for event in engine.events():
        if isinstance(event, Finished):
            done.append(replace(event.outcome, seconds=0.0))
        elif isinstance(event, Wrote):
            step = event.step
            for row, handle in enumerate(event.handles):
                seen.append(
                    (engine.passes, handle, step.proposed.frontier[row].tolist(), step.chosen[row].tolist())
                )
                seen.append(step.proposed.tokens[row].tolist())
                seen.append(step.proposed.score[row].tolist())
                seen.append(event.after.answer(row))
            assert len(step.logits) == int(step.where.sum())
    return sorted(done, key=lambda row: row.key), seen


class Counting(CapturedPass):
    taken = 0

    def __call__(self, groups):
        found = super().__call__(groups)
        self.taken += found is not None
        return found


class Replayed:
    """A graph on a CPU: it calls its function with the inputs of the last call that brought new ones."""

    def __init__(self, call, state):
        self.call, self.inputs, self.state, self.replays = call, None, state, 0

    def __call__(self, inputs):
        self.replays += inputs is self.inputs
        self.inputs = inputs
        return self.call(*inputs, *self.state)


@pytest.fixture
def graphs(monkeypatch):
    """Every pass is captured when it comes for the second time."""
    monkeypatch.setattr(Graphs, "_capture", lambda self, call, *given: Replayed(call, state=given[2]))
    monkeypatch.setattr(PackedDenoiser, "graphed", lambda self, packing: True)
    monkeypatch.setattr(captured, "CAPTURE_AT", 2)


def engine_of(model, cache: str | None, *, captured: bool) -> Engine:
    inner = model.denoiser()
    denoise = CachedDenoiser(inner, 4, CachePolicy.parse(cache)) if cache else PackedDenoiser(inner)
    ended = {"ended": denoise.forget} if cache else {}
    return Engine(denoise, model.roles, rows=3, captured=Counting(denoise) if captured else None, **ended)


def both_ways(model, prompts, plans, cache: str | None = None) -> tuple[Engine, list]:
    """The engine and the answers with captured passes; answers and steps are the same without them."""
    watched = engine_of(model, cache, captured=True)
    found, steps = run(watched, prompts, plans)
    wanted, ordinary = run(engine_of(model, cache, captured=False), prompts, plans)
    assert found == wanted
    for a, b in zip(steps, ordinary, strict=True):
        assert a == pytest.approx(b, abs=1e-12) if b and isinstance(b[0], float) else a == b
    return watched, found


@BOTH
@pytest.mark.parametrize("cache", [None, "dual", "ahead:2"])
def test_a_captured_pass_is_the_ordinary_pass(family, cache):
    reasons = set()
    for seed in range(8):
        rng = random.Random(seed)
        model, prompts = tiny(family, seed), ragged(rng, 5)
        watched, found = both_ways(model, prompts, [drawn(rng, family)] * 5, cache)
        assert watched.captured.taken == watched.passes
        reasons |= {row.stop_reason for row in found}
    assert reasons >= {"eos", "full"}


@BOTH
@pytest.mark.parametrize("cache", [None, "dual", "ahead:2"])
def test_replayed_passes_go_on_from_the_state_that_the_last_one_left(family, cache, graphs):
    """Rows join and leave, blocks end, the prompt's keys are refreshed: whatever was replayed, answers are the same."""
    replays = 0
    for seed in range(6):
        rng = random.Random(seed)
        model, prompts = tiny(family, seed), ragged(rng, 5)
        watched, _ = both_ways(model, prompts, [drawn(rng, family)] * 5, cache)
        replays += sum(graph.replays for graph in watched.denoise.graphs.captured.values())
    assert replays > 6


def test_bans_that_clients_make_up_take_no_memory_for_ever(graphs, monkeypatch):
    monkeypatch.setattr(captured, "MOST_STATES", 2)
    model = tiny("llada", 1)
    plans = [model.plan("void", canvas=16, block=8, ban=("void", 11 + n)) for n in range(4)]
    denoise = PackedDenoiser(model.denoiser())
    taken = CapturedPass(denoise)
    for one in (*plans, *plans):
        found, _ = run(Engine(denoise, model.roles, captured=taken), [[12, 13]], [one])
        assert found == run(Engine(PackedDenoiser(model.denoiser()), model.roles), [[12, 13]], [one])[0]
        assert len(taken._states) <= 2
        assert 0 < len(denoise.graphs.captured) <= 2  # graphs of forgotten states are forgotten, too


@BOTH
def test_which_passes_are_captured(family):
    """Plans with other numbers share a pass, other kinds do not, and a row that grows has to settle first."""
    model, prompts = tiny(family, 1), ragged(random.Random(2), 4)
    plans = [model.plan("void", canvas=12, block=4, threshold=t) for t in (0.2, 0.3, 0.4, 0.9)]
    grown = {"canvas": 4, "limit": 16, "window": 3, "tau_nonvoid": 0.3, "tau_gap": -0.3}
    assert len({kind_of(one) for one in plans}) == 1
    for mixed, least, most in (
        (plans, 1.0, 1.0),
        ([*plans[:3], model.plan("void", canvas=12, block=4)], 0.0, 0.9),
        ([model.plan("void-expansion", block=4, **grown)] * 4, 0.1, 0.9),
    ):
        watched, _ = both_ways(model, prompts, mixed)
        assert least <= watched.captured.taken / watched.passes <= most


@pytest.mark.parametrize("name", ["daedal", "rho-eos", "append-blocks", "eos-penalty"])
def test_rules_that_edit_the_canvas_or_the_logits_run_outside(name):
    assert kind_of(plan(name)) is None


def test_a_row_whose_every_token_is_banned_fails_alone():
    model = tiny("llada", 0)
    good, bad = (model.plan("void", canvas=8, block=4, ban=ban) for ban in ("void", tuple(range(16))))
    denoise = PackedDenoiser(model.denoiser())
    engine = Engine(denoise, model.roles, captured=CapturedPass(denoise))
    handles = [engine.submit([12, 13], one) for one in (good, bad, good)]
    events = list(engine.events())
    assert [event.handles for event in events if hasattr(event, "error")] == [(handles[1],)]
    assert sum(isinstance(event, Finished) for event in events) == 2


def test_a_captured_pass_that_fails_is_no_secret():
    model, prompts = tiny("llada", 0), ragged(random.Random(0), 2)
    chosen = model.plan("void", canvas=8, block=4)
    denoise = PackedDenoiser(model.denoiser())
    broken = CapturedPass(denoise, steer=lambda *given: [][0])
    with pytest.warns(UserWarning, match="captured pass failed") as said:
        found, _ = run(Engine(denoise, model.roles, captured=broken), prompts, [chosen] * 2)
    wanted, _ = run(Engine(denoise, model.roles), prompts, [chosen] * 2)
    assert found == wanted
    assert len(said) == 1  # not once a pass


@pytest.mark.parametrize("commit", [TopK(), Threshold(), Factor(), EntropyBound(), TopK(schedule="dream")])
def test_a_step_has_static_shapes_and_never_reads_the_device(commit):
    """Fake tensors have no values: whatever looked at one would fail."""
    rows, width, columns = 3, 4, 24
    with FakeTensorMode():
        size = torch.full((rows,), 5)
        state = Rows.of(torch.zeros(rows, columns, dtype=torch.long), size, size + 12, LOW, key=size)
        numbers = torch.rand(rows, width, dtype=torch.float64)
        entropy = numbers if commit.reads_entropy else None
        small, *_ = device_step(Plan(commit=commit, block=width), state, numbers.long(), numbers, entropy)
    assert small.shape == (rows, 3 * width + 2 + len(captured.COUNTERS))


def test_a_compiled_proposal_is_the_rules_own(monkeypatch):
    """One graph without a break, whether tokens are muted or not."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    propose = captured._compiled.__wrapped__(captured.propose_checked)
    noise, logits = Noise((torch.arange(6),) * 4, torch.device("cpu")), torch.randn(6, 14)
    for rule, mute in ((GumbelProposal(), ()), (TemperedProposal(score="margin"), (LOW.void,))):
        bans = Bans.of((LOW.eos,), mute, LOW.mask, 14, logits.device)
        found = propose_in_tiles(rule, logits, bans, noise, entropy=True, call=propose)
        assert torch.equal(found.stacked(), rule(logits, bans, noise, entropy=True).stacked())


@pytest.mark.parametrize("fields", [{"threshold": 0.3, "temperature": 0.7}, {"entropy_bound": 0.7}, {}])
def test_a_whole_pass_makes_every_tensor_on_its_device(monkeypatch, fields):
    """Tensors on `meta` have no values and mix with none of the host, as those on a GPU."""
    model, given = tiny("llada", 1), []
    chosen = model.plan("void", canvas=12, block=4, stop="eos", **fields)
    rows = begin([[12, 13], [12]], model.roles, chosen, keys=[0, 1], seeds=[3, 3])
    monkeypatch.setattr(captured, "run", lambda *call: given.append(call) or run_plainly(*call))
    assert CapturedPass(PackedDenoiser(model.denoiser()))([(chosen, rows)])
    [(call, inputs, _)] = given
    windows = torch.empty(2 * 4, 16, dtype=torch.bfloat16, device="meta")
    monkeypatch.setattr(captured, "forward", lambda *_: windows)
    flat, logits, bans = call(*(part.to("meta") for part in inputs))
    width = 3 * 4 + 2 + len(captured.COUNTERS)
    assert (flat.shape, flat.dtype, flat.device.type) == ((2, width), torch.long, "meta")
    assert logits is windows
    assert bans.ban.shape == (16,)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_graph_computes_what_the_same_code_computes_without_one(family):
    model = tiny(family, 1, dtype=torch.bfloat16, device="cuda")
    prompts, chosen = ragged(random.Random(1), 4), model.plan("void", canvas=64, block=16)

    def answers(up_to: int) -> list:
        denoise = CachedDenoiser(model.denoiser(), 16, CachePolicy(), bucket=64, graphs=Graphs(up_to))
        engine = Engine(denoise, model.roles, ended=denoise.forget, captured=CapturedPass(denoise))
        return run(engine, prompts, [chosen] * 4)[0]

    assert answers(4096) == answers(0)
