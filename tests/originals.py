"""Random checkpoints written the way the releases are written."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from voidpad.models import Model
from voidpad.models.families import LLADA

original_name = LLADA.released_name
FIXED = {name: values[0] for name, values in LLADA.covered.fixed.items()}


def llada_config(model: Model) -> dict:
    config = model.net.config
    return FIXED | {
        "model_type": "llada",
        "d_model": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "mlp_hidden_size": config.intermediate_size,
        "mlp_ratio": 4,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_parameters["rope_theta"],
        "embedding_size": config.vocab_size,
        "vocab_size": config.vocab_size,
        "max_sequence_length": config.max_position_embeddings,
        "weight_tying": False,
        "mask_token_id": model.roles.mask,
        "eos_token_id": model.roles.eos,
        "pad_token_id": model.roles.eos,
    }


def dream_config(model: Model) -> dict:
    config = model.net.config
    same = (
        "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size "
        "max_position_embeddings rms_norm_eps tie_word_embeddings"
    )
    return {name: getattr(config, name) for name in same.split(" ")} | {
        "model_type": "Dream",
        "hidden_act": "silu",
        "use_mrope": False,
        "use_sliding_window": False,
        "rope_scaling": None,
        "rope_theta": config.rope_parameters["rope_theta"],
        "mask_token_id": model.roles.mask,
        "eos_token_id": model.roles.eos,
    }


def llada_moe_config(model: Model) -> dict:
    config = model.net.config
    same = (
        "hidden_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size num_experts "
        "num_experts_per_tok max_position_embeddings rms_norm_eps tie_word_embeddings"
    )
    return {name: getattr(config, name) for name in same.split(" ")} | {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        "expert_intermediate_size": config.moe_intermediate_size,
        "dense_intermediate_size": 5 * config.moe_intermediate_size,
        "shared_expert_intermediate_size": None,
        "moe_layer_freq": [1] * config.num_hidden_layers,
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "norm_topk_prob": None,
        "partial_rotary_factor": 1.0,
        "qk_layernorm": True,
        "rope_theta": config.rope_parameters["rope_theta"],
        "eos_token_id": model.roles.eos,
        "pad_token_id": model.roles.eos,
    }


def llada_tensors(state: dict) -> dict:
    return {original_name(name): tensor.clone() for name, tensor in state.items()}


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


CONFIGS = {"llada": llada_config, "dream": dream_config, "llada_moe": llada_moe_config}
TENSORS = {"llada": llada_tensors}


def write_original(model: Model, folder: Path, *, shards: int = 1, **changes) -> Path:
    """A released-style folder; `changes` go into config.json."""
    folder.mkdir(parents=True)
    name = model.family.name
    (folder / "config.json").write_text(json.dumps(CONFIGS[name](model) | changes))
    model.tokenizer.save_pretrained(str(folder))
    write_tensors(folder, TENSORS.get(name, stored_tensors)(model.net.state_dict()), shards)
    return folder


def write_tensors(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = sorted(tensors)
    files = {
        name: f"model-{1 + place % shards:05d}-of-{shards:05d}.safetensors"
        for place, name in enumerate(names)
    }
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
