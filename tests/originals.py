"""Random checkpoints of every family, written the way the releases are written."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from voidpad.models import FAMILIES, Model, random_model
from voidpad.models.families import LLADA
from voidpad.models.fresh import random_net

original_name = LLADA.released_name
# What makes the random network of a family as odd as its releases are.
SPECIAL = {
    "illada": {"tie_word_embeddings": True},
    "fast_dllm": {"tie_word_embeddings": True},
    "sdar": {"head_dim": 12},  # of its own, as in SDAR-4B: 2560 / 32 is not 128
    "sdar_moe": {"head_dim": 12, "norm_topk_prob": True},
    "llada2": {
        "num_hidden_layers": 3, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "head_dim": 12,
        "routed_scaling_factor": 2.5, "num_mtp_layers": 0,
    },
}  # fmt: skip
SIZES = {"llada2": {"experts": 16, "intermediate": 24}, "llada_moe": {"experts": 5}}


def odd_model(name: str, **sizes) -> Model:
    """A random model whose norms and biases are not ones and zeros, which would hide where they are applied."""
    model = random_model(name, **{"kv_heads": 2, "seed": 3} | SIZES.get(name, {}) | sizes)
    model.config = FAMILIES[name].config(model.config.to_dict() | SPECIAL.get(name, {}))
    model.net = random_net(model.config, seed=3)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for part, tensor in model.net.state_dict().items():
            if tensor.dim() == 1:
                tensor += 0.3 * torch.randn(tensor.shape, generator=draw)
            elif part.endswith("gate.weight"):  # the router of a mixture
                tensor.copy_(torch.randn(tensor.shape, generator=draw))
    return model


def adapted(model: Model, *, seed: int = 0, **config) -> Model:
    """The model with a LoRA adapter that looks trained; a fresh one changes nothing. Its network is changed."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    net = get_peft_model(model.net, LoraConfig(**settings | config))
    draw = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=draw)
    return replace(model, net=net.eval(), source=None)


ROWS = [[7, 20, 33, 12, 4, 0, 0, 1], [9, 40, 0, 4, 5, 0, 0, 0]]  # 4 is VOID


def logits(model: Model, rows: list[list[int]] = ROWS) -> torch.Tensor:
    """Raw logits of whole rows under full attention."""
    with torch.inference_mode():
        return model.net(torch.tensor(rows, device=model.device)).logits.cpu()


# config.json


def _same(model: Model, names: str) -> dict:
    return {name: getattr(model.net.config, name) for name in names.split()}


def llada_config(model: Model) -> dict:
    config = model.net.config
    return {name: values[0] for name, values in LLADA.fixed.items()} | {
        "model_type": "llada",
        "d_model": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "mlp_hidden_size": config.intermediate_size,
        "mlp_ratio": 4,
        "rms_norm_eps": config.rms_norm_eps,
        "embedding_size": config.vocab_size,
        "vocab_size": config.vocab_size,
        "max_sequence_length": config.max_position_embeddings,
        "weight_tying": False,
        "mask_token_id": model.roles.mask,
        "pad_token_id": model.roles.eos,
    }


STOCK = (
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size max_position_embeddings "
    "rms_norm_eps tie_word_embeddings "
)


def stock_config(model: Model) -> dict:
    plain = {"hidden_act": "silu", "use_sliding_window": False, "rope_scaling": None}
    return _same(model, STOCK + "intermediate_size") | plain


def dream_config(model: Model) -> dict:
    ids = {"mask_token_id": model.roles.mask}
    return stock_config(model) | {"model_type": "Dream", "use_mrope": False} | ids


def illada_config(model: Model) -> dict:
    named = {"model_type": "illada", "architectures": ["ILLaDAForCausalLM"], "layer_norm_eps": None}
    return stock_config(model) | named | {"pad_token_id": model.roles.eos}


def llada_moe_config(model: Model) -> dict:
    size = model.net.config.moe_intermediate_size
    return _same(model, STOCK + "num_experts num_experts_per_tok") | {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        "expert_intermediate_size": size,
        "dense_intermediate_size": 5 * size,
        "shared_expert_intermediate_size": None,
        "moe_layer_freq": [1] * model.net.config.num_hidden_layers,
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "norm_topk_prob": None,
        "partial_rotary_factor": 1.0,
        "qk_layernorm": True,
        "pad_token_id": model.roles.eos,
    }


def fast_dllm_config(model: Model) -> dict:
    layers = {"layer_types": ["full_attention"] * model.net.config.num_hidden_layers}
    named = {"model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"]}
    return stock_config(model) | named | layers


def sdar_config(model: Model) -> dict:
    config = stock_config(model) | _same(model, "head_dim")
    config |= {"attention_bias": False, "attention_dropout": 0.0, "debug": False}
    config |= {"sliding_window": None, "max_window_layers": 2, "fuse_cross_entropy": True, "ep_size": 1}
    return config | {"model_type": "sdar", "architectures": ["SDARForCausalLM"]}


def sdar_moe_config(model: Model) -> dict:
    experts = _same(model, "num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob")
    dense = {"decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001}
    named = {"model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"]}
    return sdar_config(model) | experts | dense | named


def llada2_config(model: Model) -> dict:
    """The fields of the released config.json of LLaDA2.0-mini, with the sizes of a small model."""
    config = model.net.config
    experts = (
        "first_k_dense_replace moe_intermediate_size num_experts_per_tok n_group topk_group norm_topk_prob"
    )
    return (
        _same(model, f"{STOCK} intermediate_size head_dim {experts} routed_scaling_factor")
        | {
            "architectures": ["LLaDA2MoeModelLM"],
            "model_type": "llada2_moe",
            "hidden_act": "silu",
            "num_experts": config.n_routed_experts,
            "num_shared_experts": config.n_shared_experts,
            "rotary_dim": config.head_dim // 2,
            "pad_token_id": model.roles.eos,
        }
        | {name: values[0] for name, values in model.family.fixed.items()}
    )


CONFIGS = {
    "llada": llada_config,
    "dream": dream_config,
    "illada": illada_config,
    "llada_moe": llada_moe_config,
    "fast_dllm": fast_dllm_config,
    "sdar": sdar_config,
    "sdar_moe": sdar_moe_config,
    "llada2": llada2_config,
}


# Tensors


def stored_tensors(state: dict) -> dict:
    """Under the names of transformers; the matrices of experts apart, as every release stores them."""
    tensors = {}
    for name, tensor in state.items():
        layer, dot, kind = name.partition(".experts.")
        if not dot:
            tensors[name] = tensor.clone()
        elif kind == "down_proj":
            tensors |= {f"{layer}.experts.{e}.down_proj.weight": w.clone() for e, w in enumerate(tensor)}
        else:
            for e, (gate, up) in enumerate(zip(*tensor.chunk(2, dim=1), strict=True)):
                tensors[f"{layer}.experts.{e}.gate_proj.weight"] = gate.clone()
                tensors[f"{layer}.experts.{e}.up_proj.weight"] = up.clone()
    return tensors


def llada_tensors(state: dict) -> dict:
    return {original_name(name): tensor.clone() for name, tensor in state.items()}


def llada2_tensors(state: dict) -> dict:
    """The tensors as the release of LLaDA2 names and joins them, written out by hand."""
    tensors = {}
    for name, tensor in stored_tensors(state).items():
        if ".q_proj." in name:
            tensor = torch.cat([state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
            tensors[name.replace("self_attn.q_proj", "attention.query_key_value")] = tensor
        elif ".k_proj." not in name and ".v_proj." not in name:
            new = name.replace("model.embed_tokens", "model.word_embeddings")
            new = new.replace("self_attn.o_proj", "attention.dense")
            new = new.replace("self_attn.q_norm", "attention.query_layernorm")
            new = new.replace("self_attn.k_norm", "attention.key_layernorm")
            tensors[new.replace("e_score_correction_bias", "expert_bias")] = tensor
    return tensors


TENSORS = {"llada": llada_tensors, "llada2": llada2_tensors}


def write_original(model: Model, folder: Path, *, shards: int = 1, **changes) -> Path:
    """A folder as the family releases it; `changes` go into config.json. It does not state a causal block."""
    folder.mkdir(parents=True)
    name, config, state = model.family.name, model.net.config, model.net.state_dict()
    values = CONFIGS[name](model) | {"eos_token_id": model.roles.eos}
    values["rope_theta"] = config.rope_parameters["rope_theta"]
    (folder / "config.json").write_text(json.dumps(values | changes))
    model.tokenizer.save_pretrained(str(folder))
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    tensors = TENSORS.get(name, stored_tensors)(state)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    files = {
        tensor: f"model-{1 + place % shards:05d}-of-{shards:05d}.safetensors"
        for place, tensor in enumerate(sorted(tensors))
    }
    for file in set(files.values()):
        save_file({name: tensors[name] for name in files if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def write_dream(data_dir: Path, folder: Path) -> Model:
    """A tiny Dream network with the released tokenizer."""
    model = random_model("dream", vocab=152064, hidden=8, heads=1, layers=1, intermediate=8)
    write_original(model, folder, mask_token_id=151666, eos_token_id=151643)
    for path in [*folder.glob("*token*"), *folder.glob("*.jinja")]:
        path.unlink()
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json"):
        shutil.copy(data_dir / "hub" / "dream-7b-instruct" / name, folder)
    return model


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a folder by name, from all of its files."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
