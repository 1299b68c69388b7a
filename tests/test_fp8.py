"""Weights and activations in float8 (`quantize="fp8"`): the arithmetic on a CPU, the same and the kernels on a GPU."""

import copy
import random
from dataclasses import replace
from types import SimpleNamespace
from weakref import ref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from networks import BOTH, SHAPE, half_filled, results
from originals import adapted
from voidpad.decode import plan
from voidpad.engine.cache import CachedDenoiser
from voidpad.engine.cache_policy import CachePolicy
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import Joined, JoinedLayer, PackedDenoiser
from voidpad.errors import ConfigError
from voidpad.models import DeviceConfig, Model, fp8, load, merge, random_model, save
from voidpad.models.device import SCHEMES
from voidpad.models.fp8 import Fp8Linear, quantize_rows

gpu = pytest.mark.gpu
NEAR = 0.25  # relative norm: random weights of four layers carry an error of 4 % a product on to 18 %


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The norm of the difference, relative to the second."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def linear(inputs: int, outputs: int, *, bias: bool = True, seed: int = 0, **place) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False).to(**place)


def activations(rows: int, size: int, *, seed: int = 0) -> torch.Tensor:
    """Rows of very different sizes."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=draw) * 10.0 ** torch.randint(-3, 4, (rows, 1), generator=draw)


def restored(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return numbers.float() * scale


def in_float8(model: Model) -> Model:
    """A copy of the model, quantized where it is: `load` would refuse a CPU."""
    other = copy.deepcopy(model)
    fp8.quantize_layers(other.base)
    return replace(other, scheme=SCHEMES["fp8"])


# ------------------------------------------------------------------------------------- the arithmetic
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_layer_is_the_product_of_what_its_numbers_stand_for(bias):
    plain = linear(96, 48, bias=bias)
    layer, x = Fp8Linear(plain), activations(33, 96)
    weight = restored(layer.weight, layer.scale.t())
    wanted = restored(*quantize_rows(x)) @ weight.t() + (plain.bias if bias else 0)
    torch.testing.assert_close(layer(x), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
    assert layer(x.view(3, 11, 96)).equal(layer(x).view(3, 11, 48))
    for one, other in ((weight, plain.weight), (restored(*quantize_rows(x)), x)):
        assert 0.005 < apart(one, other) < 0.04


def test_every_row_has_its_own_scale():
    x = activations(20, 64)
    numbers, scale = quantize_rows(x)
    assert scale.shape == (20, 1)
    assert (numbers.float().abs().amax(1) == 448).all()
    torch.testing.assert_close(scale[:, 0] * 448, x.abs().amax(1))
    x[3] *= 2**20
    again, other = quantize_rows(x)
    assert again.float().equal(numbers.float())
    assert (other != scale)[:, 0].nonzero().tolist() == [[3]]
    plain = linear(64, 32)
    plain.weight[5] *= 2**10
    layer, before = Fp8Linear(plain), Fp8Linear(linear(64, 32))
    assert layer.scale.shape == (1, 32)
    assert (layer.scale / before.scale)[0].tolist() == [2.0**10 if row == 5 else 1.0 for row in range(32)]


def test_rows_of_zeros_and_of_very_small_numbers():
    x = activations(6, 32)
    x[1], x[2], x[4] = 0.0, 1e-38, 1e30
    numbers, scale = quantize_rows(x)
    assert numbers.float().isfinite().all()
    assert scale.isfinite().all()
    y = Fp8Linear(linear(32, 16, bias=False))(x)
    assert y.isfinite().all()
    assert (y[1] == 0).all()
    assert (Fp8Linear(linear(32, 16))(x)[1] == linear(32, 16).bias).all()


# --------------------------------------------------------------------------------------- the network
@BOTH
def test_layers_are_changed_and_nothing_else(family):
    model = random_model(family, hidden=48, heads=3, intermediate=40, vocab=64)
    other = in_float8(model)
    kinds = {name: type(part) for name, part in other.net.named_modules()}
    for layer in range(2):
        for name in "qkvo":
            assert kinds[f"model.layers.{layer}.self_attn.{name}_proj"] is Fp8Linear
        for name in ("gate", "up", "down"):  # 40 is no multiple of 16
            assert kinds[f"model.layers.{layer}.mlp.{name}_proj"] is nn.Linear
    assert kinds["lm_head"] is nn.Linear
    assert kinds["model.embed_tokens"] is nn.Embedding
    assert (model.scheme, other.scheme) == (None, SCHEMES["fp8"])
    assert other.parameters == model.parameters
    assert "fp8 weights" in other.summary
    assert other.net.dtype == model.net.dtype
    sizes = [sum(p.nbytes for p in one.net.model.layers[0].self_attn.parameters()) for one in (model, other)]
    assert sizes[1] < sizes[0] / 3


def test_replaced_layers_are_freed_before_the_next_ones(monkeypatch):
    """Memory on a GPU: the network is never there in both formats."""
    net = random_model("llada", hidden=48, heads=3, intermediate=48, vocab=64).net
    kept = [ref(part) for part in net.model.modules() if type(part) is nn.Linear]
    left = []

    class Counted(Fp8Linear):
        def __init__(self, linear):
            left.append(sum(part() is not None for part in kept))
            super().__init__(linear)

    monkeypatch.setattr(fp8, "Fp8Linear", Counted)
    fp8.quantize_layers(net)
    assert all(alive <= len(kept) - number + 3 for number, alive in enumerate(left))  # 4 of an attention


def check_denoisers_agree(family: str, *, device: str, dtype: torch.dtype) -> None:
    """Plain, packed and cached passes in float8 against the plain pass without, on a half filled canvas."""
    model = random_model(family, **SHAPE, seed=2, dtype=dtype, device=device)
    other, rng = in_float8(model), random.Random(3)
    canvas = half_filled(model, [[40 + n for n in range(size)] for size in (5, 31, 90)], 96, rng)
    first = canvas.prompt + torch.tensor([0, 32, 64])
    where = canvas.masked & (canvas.offset >= first[:, None]) & (canvas.offset < first[:, None] + 32)
    wanted, alone = model.denoiser()(canvas, where), other.denoiser()(canvas, where)
    assert 0.02 < apart(alone, wanted) < NEAR
    # Each way rounds a little otherwise, so that some activations become another float8 number: few in float32, in
    # bfloat16 enough for a difference of 13 % (computed with such noise on a CPU).
    slack = 0.05 if dtype == torch.float32 else NEAR
    for graphs in (0, 4096):
        ways = [PackedDenoiser(other.denoiser(), bucket=64, graphs=Graphs(graphs))]
        for keep in (True, False):
            policy = CachePolicy(keep)
            ways.append(CachedDenoiser(other.denoiser(), 32, policy, bucket=64, graphs=Graphs(graphs)))
        for denoise in ways:
            for number in range(3):  # a cache: a refresh, then block passes
                logits = denoise(replace(canvas, decoded=canvas.decoded + number), where).clone()
                assert apart(logits, alone) < slack
                assert apart(logits, wanted) < NEAR
            assert bool(denoise.graphs.captured) == (device == "cuda" and graphs > 0)


@BOTH
def test_denoisers_agree(family):
    check_denoisers_agree(family, device="cpu", dtype=torch.float32)


def test_layers_are_compiled_whole():
    """No graph break: quantizing is part of the layer's graph, so that it fuses with what comes before it."""
    model = in_float8(random_model("dream", **SHAPE))
    layer, body = model.net.model.layers[0], model.net.model
    hidden = torch.randn(1, 24, 256, generator=torch.Generator().manual_seed(0))
    places = body.rotary_emb(hidden, torch.arange(24)[None])
    with torch.inference_mode():
        wanted = layer(hidden, position_embeddings=places)
        graph = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
        torch.testing.assert_close(graph(hidden, position_embeddings=places), wanted)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_shapes_and_strides_are_those_of_a_gpus_kernel(monkeypatch, rows):
    """Tensors without numbers go through torch's own check of what the CUDA kernel takes."""
    monkeypatch.setattr(fp8, "_compiled", lambda: quantize_rows)
    place = {"device": "cuda", "dtype": torch.bfloat16}
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(1, rows, 64, **place)
        for outputs in (48, 40):
            plain = nn.Linear(64, outputs, device="meta")
            plain.weight, plain.bias = (
                nn.Parameter(torch.empty(size, **place)) for size in ((outputs, 64), (outputs,))
            )
            if outputs % 16 == 0:
                y = Fp8Linear(plain)(x)
                assert (y.shape, y.dtype, y.device.type) == ((1, rows, outputs), torch.bfloat16, "cuda")
            else:
                with pytest.raises(RuntimeError, match="divisible by 16"):
                    Fp8Linear(plain)(x)


# ------------------------------------------------------------------------------------------ adapters
def with_adapter(family: str, **config) -> Model:
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = random_model(family, **{**SHAPE, "layers": 2})
    return adapted(model, **{"r": 16, "target_modules": targets} | config)


@BOTH
def test_an_adapter_goes_around_float8_weights(family, tmp_path):
    model, ids = with_adapter(family), torch.arange(40, 80)[None]
    other = in_float8(model)
    layer = other.base.model.layers[0].self_attn.q_proj
    assert type(layer.base_layer) is Fp8Linear
    assert type(layer.lora_A["default"]) is nn.Linear
    with torch.inference_mode():
        wanted, found = model.net(ids).logits, other.net(ids).logits
        with other.net.disable_adapter():
            assert apart(other.net(ids).logits, wanted) > 2 * NEAR  # the adapter does something
    assert 0.02 < apart(found, wanted) < NEAR
    with pytest.raises(ConfigError, match="load it without quantize"):
        merge(other)
    save(other, tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    merged = in_float8(merge(model))
    with pytest.raises(ConfigError, match="load it without quantize"):
        save(merged, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(ConfigError, match="cannot go under an adapter that reads the weights it changes"):
        in_float8(with_adapter(family, use_dora=True))


# ------------------------------------------------------------------------------------------ refusals
NEEDED = (
    r"^quantize='fp8' needs an NVIDIA GPU of compute capability 8.9 or later \(Ada, Hopper, Blackwell\); "
)


def a_gpu(monkeypatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)


def test_devices_without_float8_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=NEEDED + r"this is 'cpu'\.$"):
        load("nowhere", quantize="fp8")
    a_gpu(monkeypatch, (8, 0))
    with pytest.raises(ConfigError, match=NEEDED + r"'cuda:1' has 8\.0\.$"):
        DeviceConfig("cuda:1", quantize="fp8")
    a_gpu(monkeypatch, (8, 9))
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu128")
    with pytest.raises(
        ConfigError, match=r"needs torch 2\.12 on a GPU of compute capability 8\.9; this is 2\.11\.0"
    ):
        DeviceConfig("cuda", quantize="fp8")
    a_gpu(monkeypatch, (9, 0))
    DeviceConfig("cuda", quantize="fp8")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(ConfigError, match=NEEDED + r"this is 'cuda'\.$"):
        DeviceConfig("cuda", quantize="fp8")


def test_a_place_for_float8_is_one_gpu_in_bfloat16(monkeypatch):
    a_gpu(monkeypatch, (9, 0))
    for dtype in ("auto", "bfloat16"):
        assert DeviceConfig("cuda", dtype, "fp8").options(torch.float32) == {"dtype": torch.bfloat16}
    with pytest.raises(ConfigError, match="quantize='fp8' computes in bfloat16; drop dtype='float32'"):
        DeviceConfig("cuda", "float32", "fp8")
    with pytest.raises(
        ConfigError, match="quantize='fp8' needs the network on one device; drop device=spread"
    ):
        DeviceConfig("spread", quantize="fp8")


# ------------------------------------------------------------------------------------------------ GPU
@gpu
@pytest.mark.parametrize("inputs", [4096, 12288])
def test_the_kernel_multiplies_what_the_numbers_stand_for(inputs):
    """Also where there are few tokens, and with sums of many products in the tensor cores."""
    plain = linear(inputs, 512, device="cuda", dtype=torch.bfloat16)
    layer = Fp8Linear(plain)
    weight = restored(layer.weight, layer.scale.t())
    for rows in (1, 7, 32, 300, 1024):
        x = activations(rows, inputs, seed=rows).to("cuda", torch.bfloat16)
        wanted = restored(*quantize_rows(x)) @ weight.t() + plain.bias.float()
        exact = x.float() @ plain.weight.float().t() + plain.bias.float()
        with torch.inference_mode():
            y = layer(x)
        assert (y.shape, y.dtype) == ((rows, 512), torch.bfloat16)
        for one, reference, right in zip(y, wanted, exact, strict=True):
            assert apart(one, reference) < 0.02
            assert apart(one, right) < 0.05


@gpu
@BOTH
def test_denoisers_agree_on_a_gpu(family):
    check_denoisers_agree(family, device="cuda", dtype=torch.bfloat16)


@gpu
@BOTH
def test_graphs_change_no_token(family):
    model = in_float8(random_model(family, **SHAPE, seed=1, dtype=torch.bfloat16, device="cuda"))
    prompts, chosen = (
        [[40 + n for n in range(size)] for size in (5, 31, 64)],
        plan("void", canvas=64, block=32),
    )
    inner = model.denoiser()
    makers = [
        lambda graphs: PackedDenoiser(inner, bucket=64, graphs=graphs),
        lambda graphs: CachedDenoiser(inner, 32, CachePolicy(True), graphs=graphs),
        lambda graphs: CachedDenoiser(inner, 32, CachePolicy(False), graphs=graphs),
    ]
    for make in makers:
        eager, fast = make(Graphs()), make(Graphs(4096))
        rows = [
            results(one, model, prompts, chosen, ended=getattr(one, "forget", lambda key: None))
            for one in (eager, fast)
        ]
        assert rows[0] == rows[1]
        assert fast.graphs.captured


@gpu
@BOTH
def test_compiled_layers_are_near_on_a_gpu(family):
    torch._dynamo.reset()  # torch counts compilations of all networks of a process together
    model = random_model(family, **SHAPE, seed=3, dtype=torch.bfloat16, device="cuda")
    other, rng = in_float8(model), random.Random(1)
    canvas = half_filled(model, [[40 + n for n in range(size)] for size in (5, 31, 90)], 64, rng)
    wanted = model.denoiser()(canvas, canvas.slots)
    for cache in (None, "dual"):
        engine = other.compiled().engine(cache=cache, block=64)
        for _ in range(3):
            assert 0.02 < apart(engine.denoise(canvas, canvas.slots), wanted) < NEAR
        assert engine.denoise.graphs.captured


@gpu
@BOTH
def test_a_folder_is_loaded_in_float8(family, tmp_path):
    """Stored in float32, with and without an adapter; packed and with a cache."""
    save(with_adapter(family), tmp_path / "adapter")
    save(random_model(family, **{**SHAPE, "layers": 2}), tmp_path / "base")
    for adapter in (None, tmp_path / "adapter"):
        loaded = load(tmp_path / "base", adapter, device="cuda", quantize="fp8")
        assert (loaded.scheme, loaded.net.dtype) == (SCHEMES["fp8"], torch.bfloat16)
        assert isinstance(loaded.default_denoiser(), PackedDenoiser)
        assert bool(loaded.default_denoiser().graphs.up_to) == (adapter is None)
        for cache in (None, "dual"):
            [answer] = loaded.generate("hi", "void", canvas=32, block=32, cache=cache)
            assert answer.approximations[0] == "fp8 weights and activations"
            assert len(answer.ids) == 32


def test_a_float8_layer_does_not_join_a_plain_one():
    """Where only some sizes are multiples of 16."""
    layers = SimpleNamespace(gate_proj=Fp8Linear(linear(32, 16)), up_proj=linear(32, 8))
    assert JoinedLayer._join(layers, ("gate_proj", "up_proj")) is None


@pytest.mark.parametrize("bias", [False, True])
def test_float8_layers_join_to_one_product(bias):
    layers = [Fp8Linear(linear(32, size, bias=bias, seed=size)) for size in (32, 16)]
    x = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(1))
    wanted = [layer(x) for layer in layers]
    joined = Joined(layers)
    for one, other in zip(joined(x), wanted, strict=True):
        assert torch.equal(one, other)
    for layer, other in zip(layers, wanted, strict=True):  # the layers read the joined memory
        assert torch.equal(layer(x), other)
    assert layers[0].weight.data_ptr() == joined.inner.weight.data_ptr()
