"""LoRA adapters: loaded beside the weights, merged into them, and translated from LLaDA's original names."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from originals import adapted, logits, original_name, write_dream, write_original
from voidpad.errors import AssumedWarning, ConfigError, WeightsError
from voidpad.files import read_json
from voidpad.models import Card, Model, load, merge, random_model, save
from voidpad.models.families.dream import AUTHORS_RAINBOW
from voidpad.roles import Roles

BLOCKS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
VOID = 4


def plain(family: str) -> Model:
    return random_model(family, kv_heads=2, hidden=64, intermediate=128)  # 4-bit blocks want multiples of 64


def tuned(family: str, **config) -> Model:
    """A base with a trained-looking adapter, as training leaves it."""
    return adapted(plain(family), **{"target_modules": BLOCKS} | config)


@pytest.fixture
def bases(tmp_path):
    folders = {}
    for family in ("llada", "dream"):
        save(plain(family), tmp_path / family)
        folders[family] = tmp_path / family
    return folders


TOKENS = {"embed_tokens": [VOID, 5], "lm_head": [VOID]}
KINDS = {
    "blocks": {},
    "head": {"target_modules": [*BLOCKS, "lm_head"]},
    "void rows": {"trainable_token_indices": TOKENS},
    "saved head": {"modules_to_save": ["lm_head"]},
    "ranks": {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"down_proj": 16}},
    "rslora, dora": {"use_rslora": True, "use_dora": True},
}


@pytest.mark.parametrize(("family", "kind"), [*(("llada", kind) for kind in KINDS), ("dream", "head")])
def test_an_adapter_loads_and_merges(bases, tmp_path, family, kind):
    trained = tuned(family, **KINDS[kind])
    wanted = logits(trained)
    save(trained, tmp_path / "adapter")
    loaded = load(bases[family], tmp_path / "adapter")
    base = logits(load(bases[family]))
    assert (base - wanted).abs().max() > 0.01  # the adapter does something
    assert (logits(loaded) - wanted).abs().max() == 0.0
    assert not loaded.net.training
    merged = merge(loaded)
    assert (logits(merged) - wanted).abs().max() <= 1e-5
    save(merged, tmp_path / "whole")
    assert (logits(load(tmp_path / "whole")) - logits(merged)).abs().max() == 0.0


def set_config(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(read_json(path) | changes))


def test_an_adapter_folder_names_its_base(bases, tmp_path):
    trained, folder = tuned("llada"), tmp_path / "adapter"
    save(trained, folder)
    front = (folder / "README.md").read_text().split("---\n")[1]
    assert {"library_name: peft", "pipeline_tag: text-generation"} <= set(front.splitlines())
    set_config(folder, base_model_name_or_path=str(bases["llada"]))
    loaded = load(folder)
    assert (logits(loaded) - logits(trained)).abs().max() == 0.0
    assert loaded.name == str(folder)
    with pytest.raises(ConfigError, match="is an adapter itself"):
        load(folder, folder)
    save(loaded, tmp_path / "again")
    again = read_json(tmp_path / "again" / "adapter_config.json")
    assert again["base_model_name_or_path"] == str(bases["llada"])
    set_config(folder, base_model_name_or_path=None)
    with pytest.raises(WeightsError, match="names no base"):
        load(folder)


def test_the_adapters_card_wins(bases, tmp_path):
    trained = tuned("llada")
    base_roles, roles = trained.roles, Roles(mask=0, eos=1, void=30, rainbow=(30, 31))
    trained.card = Card("llada", roles, padding="void", calibration={"void": {"block": 8}})
    save(trained, tmp_path / "adapter")
    loaded = load(bases["llada"], tmp_path / "adapter")
    assert loaded.roles == trained.roles
    assert loaded.card == trained.card
    assert loaded.plan("void", canvas=16).block == 8
    assert load(bases["llada"], tmp_path / "adapter", roles={"void": 32}).roles.void == 32
    (tmp_path / "adapter" / "voidpad.json").unlink()
    assert load(bases["llada"], tmp_path / "adapter").roles == base_roles


def test_what_an_adapter_does_not_say_about_canvases_its_base_does(bases, tmp_path):
    base = load(bases["llada"])
    said = {"original": {"canvas": 24, "block": 8}, "void": {"canvas": 40, "block": 8},
            "void-expansion": {"canvas": 16, "tau_gap": 0.5}}  # fmt: skip
    save(replace(base, card=replace(base.card, calibration=said)), tmp_path / "base")
    trained = tuned("llada")
    trained.card = Card(
        "llada", trained.roles, padding="void", calibration={"void": {"canvas": 16, "block": 8}}
    )
    save(trained, tmp_path / "adapter")
    loaded = load(tmp_path / "base", tmp_path / "adapter")
    assert [loaded.plan(name).length.canvas for name in ("original", "void")] == [24, 16]
    assert "tau_gap" not in loaded.card.calibration["void-expansion"]


def write_original_adapter(trained: Model, folder, **config) -> None:
    """The adapter as one trained with the original LLaDA code would have been saved."""
    save(trained, folder)
    (folder / "voidpad.json").unlink()
    prefix = "base_model.model."
    tensors = load_file(folder / "adapter_model.safetensors")
    named = {prefix + original_name(name.removeprefix(prefix)): tensor for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    old = read_json(folder / "adapter_config.json") | config
    (folder / "adapter_config.json").write_text(json.dumps(old))


PAPER = {  # the targets of the authors' LLaDA runs; ff_out is a block's output and the head
    "target_modules": ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
}
PAPER_NAMES = ["q_proj", "k_proj", "v_proj", "ff_proj", "up_proj", "ff_out"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (PAPER, {"target_modules": PAPER_NAMES}),
        ({"target_modules": ["o_proj", "down_proj"]}, {"target_modules": r".*blocks.*(attn_out|ff_out)"}),
        (
            {"target_modules": ["q_proj"], "trainable_token_indices": TOKENS},
            {"target_modules": ["q_proj"], "trainable_token_indices": {"wte": [VOID, 5], "ff_out": [VOID]}},
        ),
        (
            {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
            {"target_modules": ["q_proj"], "modules_to_save": ["wte"]},
        ),
    ],
    ids=["paper", "regex", "token rows", "saved module"],
)
def test_original_names_are_translated(tmp_path, ours, theirs):
    trained = tuned("llada", **ours)
    write_original_adapter(trained, tmp_path / "adapter", **theirs)
    base = write_original(plain("llada"), tmp_path / "base")
    loaded = load(base, tmp_path / "adapter")
    assert (logits(loaded) - logits(trained)).abs().max() == 0.0
    save(loaded, tmp_path / "resaved")
    assert (logits(load(base, tmp_path / "resaved")) - logits(trained)).abs().max() == 0.0


def test_translation_equals_a_merge_by_hand(tmp_path):
    """W + (alpha / r) B A, tensor by tensor under the original names."""
    base = plain("llada")
    write_original_adapter(tuned("llada", **PAPER), tmp_path / "adapter", target_modules=PAPER_NAMES)
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    state = {original_name(name): tensor.clone() for name, tensor in base.net.state_dict().items()}
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            b = tensors[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            state[f"{module}.weight"] += 8 / 4 * b @ a
    folder = write_original(base, tmp_path / "base")
    merged = merge(load(folder, tmp_path / "adapter"))
    save_file(state, folder / "model.safetensors")
    assert (logits(merged) - logits(load(folder))).abs().max() <= 1e-6
    assert any("transformer.ff_out" in name for name in tensors)


def test_adapters_that_do_not_fit(bases, tmp_path):
    folder, path = tmp_path / "adapter", tmp_path / "adapter" / "adapter_model.safetensors"
    save(tuned("llada"), folder)
    with pytest.raises(WeightsError, match=r"'llada', but .* 'dream'"):
        load(bases["dream"], folder)
    whole = load_file(path)
    first = sorted(whole)[0]
    for tensors, message in (
        ({name: tensor for name, tensor in whole.items() if name != first}, f"missing: {first}"),
        (whole | {"base_model.model.other.lora_A.weight": torch.zeros(4, 4)}, "surplus: .*other.lora_A"),
        (whole | {first: torch.zeros(4, 7)}, "does not fit"),
    ):
        save_file(tensors, path)
        with pytest.raises(WeightsError, match=message):
            load(bases["llada"], folder)
    path.rename(folder / "adapter_model.bin")
    with pytest.raises(WeightsError, match=r"adapter_model.safetensors: no such file"):
        load(bases["llada"], folder)
    set_config(folder, layer_replication=[[0, 1]])
    with pytest.raises(WeightsError, match="layer_replication"):
        load(bases["llada"], folder)
    with pytest.raises(WeightsError, match=r"adapter_config.json: no such file"):
        load(bases["llada"], bases["llada"])
    with pytest.raises(ConfigError, match="no adapter to merge"):
        merge(random_model())


@pytest.mark.parametrize(("family", "bits"), [("llada", "8bit"), ("dream", "4bit")])
def test_quantized_weights_carry_an_adapter(tmp_path, family, bits):
    trained = tuned(family)
    base = write_original(plain(family), tmp_path / "base")
    save(trained, tmp_path / "adapter")
    loaded = load(base, tmp_path / "adapter", quantize=bits)
    pair = torch.stack([logits(loaded).flatten(), logits(trained).flatten()])
    assert pair.corrcoef()[0, 1] > 0.9
    [answer] = loaded.generate("hi", "void", canvas=8, block=4, threshold=0.9)
    assert answer.approximations == (f"{bits} weights", "threshold")
    with pytest.raises(ConfigError, match="quantize"):
        merge(loaded)


# Adapters of the paper's authors


def wrapped_adapter(trained: Model, folder) -> None:
    """As the authors' training wrapper saves it: one `model.` more in every name, and no card."""
    if trained.family.name == "llada":
        write_original_adapter(trained, folder, target_modules=PAPER_NAMES)
    else:
        save(trained, folder)
        (folder / "voidpad.json").unlink()
    prefix = "base_model.model."
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file(
        {f"{prefix}model.{name.removeprefix(prefix)}": tensor for name, tensor in tensors.items()}, path
    )


@pytest.mark.parametrize(
    ("family", "settings"),
    [("llada", PAPER), *(("dream", KINDS[kind]) for kind in ("blocks", "head", "void rows"))],
)
def test_adapters_of_a_training_wrapper(tmp_path, family, settings):
    trained = tuned(family, **settings)
    wrapped_adapter(trained, tmp_path / "adapter")
    base = write_original(plain(family), tmp_path / "base")
    loaded = load(base, tmp_path / "adapter", roles={"void": VOID})
    assert (logits(loaded) - logits(trained)).abs().max() == 0.0
    save(loaded, tmp_path / "again")
    again = load(base, tmp_path / "again")
    assert (logits(again) - logits(trained)).abs().max() == 0.0


def test_ranks_by_module_are_refused_under_released_names(tmp_path):
    """Their patterns name modules that are called otherwise in the stock class."""
    trained = tuned("llada", **PAPER, alpha_pattern={"lm_head": 32})
    write_original_adapter(trained, tmp_path / "adapter", target_modules=PAPER_NAMES)
    base = write_original(plain("llada"), tmp_path / "base")
    with pytest.raises(WeightsError, match="alpha_pattern"):
        load(base, tmp_path / "adapter")


def test_a_wrapped_dream_adapter_asks_for_its_void_id(tmp_path):
    wrapped_adapter(tuned("dream"), tmp_path / "adapter")
    base = write_original(plain("dream"), tmp_path / "base")
    with pytest.raises(ConfigError, match="--roles void=<id>"):
        load(base, tmp_path / "adapter")
    assert load(base, tmp_path / "adapter", roles={"void": 30}).roles.void == 30


def test_an_adapter_without_a_card_gets_the_plan_void_or_a_hint(tmp_path):
    base = write_original(plain("llada"), tmp_path / "base")
    for kind, settings in (
        ("attention", {}),
        ("void", {"trainable_token_indices": {"embed_tokens": [VOID]}}),
    ):
        trained = tuned("llada", **settings)
        save(trained, tmp_path / kind)
        (tmp_path / kind / "voidpad.json").unlink()
    with pytest.warns(AssumedWarning, match="use --plan void"):
        loaded = load(base, tmp_path / "attention")
    assert (loaded.card.padding, loaded.default_plan) == (None, "original")
    with pytest.warns(AssumedWarning, match="chooses the plan void"):
        loaded = load(base, tmp_path / "void")
    assert (loaded.card.padding, loaded.default_plan) == ("void", "void")
    with pytest.warns(AssumedWarning, match="chooses the plan void"):
        loaded = load(base, tmp_path / "attention", roles={"void": VOID})
    assert (loaded.default_plan, loaded.roles.void) == ("void", VOID)


def test_the_authors_void_id_of_dream_is_recognised(data_dir, tmp_path):
    model = write_dream(data_dir, tmp_path / "base")
    wrapped_adapter(adapted(model), tmp_path / "adapter")
    assert load(tmp_path / "base").roles.void == 151667
    loaded = load(tmp_path / "base", tmp_path / "adapter")
    assert (loaded.roles.void, loaded.roles.rainbow) == (56940, AUTHORS_RAINBOW)
    assert loaded.card.roles == loaded.roles  # a later save keeps them
    assert 56940 not in loaded.encode("x" + " " * 300)


def test_the_authors_tokenizer_folder_is_explained(data_dir, tmp_path):
    write_dream(data_dir, tmp_path / "base")
    path = tmp_path / "base" / "vocab.json"
    vocab = json.loads(path.read_text(encoding="utf-8"))
    names = {token: name for name, token in vocab.items()}
    for place, token in enumerate(AUTHORS_RAINBOW):
        del vocab[names[token]]
        vocab[f"<pad_{place}>"] = token
    path.write_text(json.dumps(vocab), encoding="utf-8")
    with pytest.raises(WeightsError, match="--roles void=56940"):
        load(tmp_path / "base")
