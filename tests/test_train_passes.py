"""An update's gradients do not depend on the passes that compute it; passes are full and fit into memory."""

import json
from argparse import Namespace

import pytest
import torch
from safetensors.torch import load_file

from studies.benchmarks import train as benchmarks
from training_runs import gradients, materials, recipe
from voidpad.engine import packed
from voidpad.errors import ConfigError
from voidpad.training import setup
from voidpad.training.batches import BatchShare, PassLimit, plan
from voidpad.training.losses import SlotLoss
from voidpad.training.setup import pass_limit, should_compile
from voidpad.training.train import Run, train

LORA = {"r": 4, "dropout": 0.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: materials(tmp_path_factory.mktemp(name), name) for name in ("llada", "dream")}


@pytest.fixture
def folder(folders):
    return folders["llada"]


def plain_loss(run, passes, position):
    """The loss of one mini-batch, padded and computed by itself, times its rows."""
    batch, origin = passes.rows.batch(0, position, passes.rows.lengths(0, position, len(position))[0])
    noised = passes.objective.noise(batch, origin)
    slots = passes.objective.loss_slots(batch, noised)
    run.module.net.set_attn_implementation("sdpa")
    entropy = SlotLoss(run.module.net)(noised.ids, slots.where, slots.label, batch.inside)
    return (entropy * slots.weight).sum() * len(position)


def one_mini_batch_at_a_time(run):
    """Gradients and loss of the first update in plain code."""
    share, total = run.passes.share, 0.0
    run.module.train()
    for position in torch.arange(share.global_batch).split(share.micro_batch):
        loss = plain_loss(run, run.passes, position) / share.global_batch
        loss.backward()
        total += float(loss.detach())
    found = {name: p.grad.clone() for name, p in run.module.named_parameters() if p.grad is not None}
    run.module.zero_grad()
    return found, total


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("width", ["batch", "window"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_gradients_and_loss_do_not_depend_on_passes(folders, family, width, lora):
    run = Run(
        recipe(
            folders[family], padding={"width": width, "window": [2, 24]}, **({"lora": lora} if lora else {})
        )
    )
    run.passes.rows.host.complete[::5] = False  # some answers were cut: rows of a mini-batch differ in length
    run.passes.rows.pairs.complete[::5] = False
    wanted, loss = one_mini_batch_at_a_time(run)
    assert any(gradient.abs().max() > 1e-3 for gradient in wanted.values())
    counts = set()
    limits = [PassLimit(1), PassLimit(40), PassLimit(100, multiple=8), PassLimit(200, small=100)]
    limits += [PassLimit(tokens, end_to_end=True, multiple=k) for tokens, k in ((40, 1), (4096, 1), (64, 16))]
    for limit in limits:
        run.passes.limit = limit
        run.module.net.set_attn_implementation(packed.NAME if limit.end_to_end else "sdpa")
        counts.add(len(run.passes[0]))
        found, total = gradients(run)
        assert total == pytest.approx(loss, rel=1e-5)
        for name, gradient in found.items():
            assert torch.allclose(gradient, wanted[name], atol=1e-5), (limit, name)
    assert {1, 8} <= counts


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_held_out_loss_is_that_of_its_mini_batches_whatever_the_passes(folders, family):
    """The mean over the examples, counted by rows, with the same noise every time."""
    run = Run(recipe(folders[family], data={"held_out": 6}))
    found = []
    for tokens in (1, 30, 4096, 4096):
        run.passes.limit.tokens = tokens
        found.append(run.evaluate())
    assert found[-1] == found[-2]
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-5)
    assert run.held_out.objective.stratified
    total = sum(plain_loss(run, run.held_out, torch.arange(6)[part]) for part in (slice(4), slice(4, 6)))
    assert found[0]["eval_loss"] == pytest.approx(float(total.detach()) / 6, rel=1e-5)


def test_a_run_in_other_passes_ends_with_the_same_weights(folder):
    """Checkpointed or not; and a restart may choose other passes."""
    ends = {}
    for name, runs in {
        "wide": [{"pass_tokens": 4096, "steps": 3}],
        "narrow": [{"pass_tokens": 20, "steps": 1}, {"pass_tokens": 30, "steps": 3, "checkpointing": True}],
    }.items():
        for run in runs:
            done = train(recipe(folder, name, run={**run, "save_every": 10}), resume=True)
        assert done.finished
        ends[name] = load_file(done.folder / "model.safetensors")
    assert max((ends["wide"][key] - ends["narrow"][key]).abs().max() for key in ends["wide"]) < 1e-5


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({"run": {"steps": 7000}}, True),
        ({"run": {"steps": 100}}, False),  # over before compilation has paid for itself
        ({"run": {"steps": None, "seconds": 1200.0}}, True),
        ({"run": {"steps": 7000, "compile": False}}, False),
        ({"run": {"steps": 7000, "fsdp": True}}, False),
        ({"run": {"steps": 7000}, "model": {"quantize": "4bit"}, "lora": {}}, False),
    ],
)
def test_long_runs_on_a_gpu_are_compiled(folder, monkeypatch, parts, wanted):
    asked = recipe(folder, **parts)
    assert not should_compile(asked, examples=40)  # this machine has no GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(setup, "find_spec", lambda name: name == "triton")
    monkeypatch.setenv("CC", "cc")
    assert should_compile(asked, examples=40) == wanted
    monkeypatch.delenv("CC")
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    assert not should_compile(asked, examples=40)  # triton could not build anything


@pytest.mark.parametrize(
    ("parts", "parameters", "wanted"),
    [
        ({}, 7_600_000_000, PassLimit(end_to_end=True, multiple=128)),
        ({}, 2_500_000, PassLimit(multiple=32, small=400_000)),
        # The kernel computes in half precision.
        ({"run": {"bf16": "off"}}, 8_000_000_000, PassLimit(multiple=32, small=125)),
        ({"padding": {"width": 64}}, 8_000_000_000, PassLimit(small=125)),  # rows of one length
        ({"model": {"attention": "eager"}}, 8_000_000_000, PassLimit(multiple=32, small=125)),
    ],
)
def test_how_rows_lie_on_a_gpu(folder, monkeypatch, parts, parameters, wanted):
    asked = recipe(folder, **parts)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(packed, "kernel_exists", lambda: True)
    given = {"compiled": True, "parameters": parameters, "tokens": 4096}
    assert pass_limit(asked, **given) == wanted
    monkeypatch.setattr(packed, "kernel_exists", lambda: False)  # an older GPU
    assert not pass_limit(asked, **given).end_to_end


@pytest.mark.parametrize("tokens", [1, 600, 4096, 10**6])
@pytest.mark.parametrize("end_to_end", [False, True])
@pytest.mark.parametrize("multiple", [1, 64])
def test_a_plan_holds_every_row_once_within_the_limit(tokens, end_to_end, multiple):
    lengths = torch.randint(20, 500, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    limit = PassLimit(tokens, end_to_end, multiple)
    found = plan(lengths, limit)
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    chosen = [[lengths[row] for row in rows] for rows in found]
    sizes = [limit.size(len(one), max(one), sum(one)) for one in chosen]
    assert all(size <= tokens or len(rows) == 1 for rows, size in zip(found, sizes, strict=True))
    if end_to_end and tokens > max(lengths):
        assert len(found) <= 1 + sum(lengths) // (tokens - max(lengths) - multiple)
    if tokens == 4096:
        assert sum(lengths) <= sum(sizes) < 1.2 * sum(lengths)
    shared = plan(lengths, PassLimit(tokens, end_to_end, multiple, small=10**6))  # uneven rows in one pass
    assert len(shared) < len(found) or end_to_end or tokens < 10**6
    most = plan(lengths, limit, least=150)
    assert len(most) == max(150, len(found))
    assert all(most)


def test_processes_of_a_sharded_run_make_as_many_passes(folder):
    run = Run(recipe(folder, padding={"width": "window", "window": [2, 24]}))
    run.passes.limit.tokens = 24
    counts = []
    for rank in range(2):
        run.passes.share = BatchShare(8, 2, rank, 2, even=True)
        counts.append([len(run.passes[update]) for update in range(20)])
        assert all(sum(one.tokens for one in run.passes[update]) for update in range(20))
    assert counts[0] == counts[1]
    assert len(set(counts[0])) > 1


class Full:
    """A device that has no room for passes of more than so many tokens."""

    def __init__(self, run, tokens, where="forward"):
        self.tokens, self.failures = tokens, 0
        module = run.module if where == "forward" else run.module.net.get_decoder().layers[0]
        if where == "forward":
            module.register_forward_pre_hook(lambda _, args: self.check(args[0].numel()))
        else:  # late in the backward pass, when other gradients have been added up already
            module.register_full_backward_hook(lambda _, grads, out: self.check(out[0].shape[:2].numel()))

    def check(self, tokens):
        if tokens > self.tokens:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_pass_that_does_not_fit_is_halved_and_the_gradients_stay(folder, where):
    run = Run(recipe(folder))
    wanted, loss = one_mini_batch_at_a_time(run)
    run = Run(recipe(folder))
    device = Full(run, 30, where)
    found, total = gradients(run)
    assert device.failures >= 1
    assert run.passes.limit.tokens <= 60
    assert total == pytest.approx(loss, rel=1e-5)
    for name, gradient in found.items():
        assert torch.allclose(gradient, wanted[name], atol=1e-5), name
    assert run._sums[0, 1] == sum(one.tokens for one in run.passes[0])


def test_a_row_that_does_not_fit_is_checkpointed_and_then_refused(folder):
    run = Run(recipe(folder))
    Full(run, 2)
    with pytest.raises(ConfigError, match="out of memory in a pass"):
        gradients(run)
    assert run.recomputing


def test_large_passes_are_halved_before_layers_are_recomputed(folder, monkeypatch):
    """A pass below what a GPU computes at full speed is not halved again while recomputing can make room."""
    monkeypatch.setattr("voidpad.training.setup.LEAST_GPU_TOKENS", 60)
    run = Run(recipe(folder))
    whole = sum(one.ids.numel() for one in run.passes[0])
    seen = []
    for _ in range(3):
        run._make_room(run.passes[0], torch.OutOfMemoryError())
        seen.append((run.passes.limit.tokens, run.recomputing))
    assert seen[:2] == [(whole // 2, False), (whole // 2, True)]
    assert seen[2][0] < seen[1][0]


@pytest.mark.slow
def test_the_benchmarks_run_on_tiny_shapes(capsys):
    """On a GPU they are run by hand, and seldom. The plain loop that they compare with has the same loss."""
    options = Namespace(rehearse=True, device="cpu", changes=[], variants=[], updates=3)
    threads = torch.get_num_threads()
    for run in (benchmarks.large, benchmarks.rows):
        run(options)
    torch.set_num_threads(threads)
    large, rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert max(large["loss_differences"].values()) < 1e-3
    assert 1 <= rows["computed_per_real_token"] < 1.01  # rows lie end to end on a CPU
