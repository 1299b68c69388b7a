"""LLaDA2.0-mini and LLaDA2.1-mini (inclusionAI): transformers' Glm4Moe with block-causal attention in blocks of 32.

Two things differ from the released code, each on purpose. At temperature 0 that code still samples; the plans here take
the likeliest token. LLaDA2.1's code passes a mask of zeros and ones where an additive one is needed, so that its
attention is not block-causal; here it is, as in other engines. The configs of 2.0 and 2.1 are the same, so the plan
`editing`, LLaDA2.1's loop, is chosen by the user.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from voidpad.decode.commit import Dynamic, Editing, Static
from voidpad.decode.presets import FamilyDefaults, Preset
from voidpad.decode.propose import TemperedProposal
from voidpad.models.families.family import STOCK, Family, words

# Fields that Glm4Moe has under the same name.
_SAME = STOCK | words(
    "head_dim first_k_dense_replace moe_intermediate_size num_experts_per_tok n_group topk_group norm_topk_prob "
    "routed_scaling_factor"
)
# Released tensors -> Glm4Moe's. `query_key_value` holds the rows of three tensors: see `_split`.
_NAMES = {
    "model.word_embeddings.": "model.embed_tokens.",
    "model.layers.#.attention.query_key_value.": "model.layers.#.self_attn.qkv_proj.",
    "model.layers.#.attention.dense.": "model.layers.#.self_attn.o_proj.",
    "model.layers.#.attention.query_layernorm.": "model.layers.#.self_attn.q_norm.",
    "model.layers.#.attention.key_layernorm.": "model.layers.#.self_attn.k_norm.",
    "model.layers.#.mlp.gate.expert_bias": "model.layers.#.mlp.gate.e_score_correction_bias",
}


def _translated(config: Mapping[str, Any]) -> dict[str, Any]:
    rotated = config.get("rotary_dim", config["head_dim"] // 2)
    if rotated != config["head_dim"] // 2:
        raise ValueError(f"rotary_dim={rotated} is not half of head_dim={config['head_dim']}")
    rope = {"rope_type": "default", "rope_theta": float(config["rope_theta"])}
    return {
        "rope_parameters": rope | {"partial_rotary_factor": config["partial_rotary_factor"]},
        "n_routed_experts": config["num_experts"],
        "n_shared_experts": config["num_shared_experts"],
    }


def _split(name: str, tensor: Any, config: Any) -> dict[str, Any]:
    """Queries, keys and values of the rows of `query_key_value`; any other tensor as it is."""
    if "qkv_proj" not in name:
        return {name: tensor}
    heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
    parts = tensor[:].split([config.head_dim * count for count in heads])
    return {name.replace("qkv_proj", f"{kind}_proj"): part for kind, part in zip("qkv", parts, strict=True)}


def _join(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a network with `query_key_value` in place of queries, keys and values."""
    joined: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", f"{kind}_proj")] for kind in "qkv"]
            joined[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            joined[name] = tensor
    return joined


LLADA2 = Family(
    "llada2",
    shift=0,
    config_class=Glm4MoeConfig,
    net_class=Glm4MoeForCausalLM,
    experts=True,
    model_types=("llada2_moe",),
    copied=_SAME,
    fixed={
        "moe_router_enable_expert_bias": (True,),
        "partial_rotary_factor": (0.5,),
        "score_function": ("sigmoid",),
        "use_qk_norm": (True,),
    },
    read=words("num_experts num_shared_experts rotary_dim"),
    translated=_translated,
    constants={"use_qk_norm": True, "num_mtp_layers": 0},
    tensor_names=_NAMES,
    split=_split,
    join=_join,
    decoding=FamilyDefaults(
        proposal=TemperedProposal,
        authors={},
        presets={
            "dynamic": Preset("LLaDA2.0: every slot of a block above a threshold", commit=Dynamic),
            "static": Preset("the surest slots of a block, evenly over its passes", commit=Static),
            "editing": Preset(
                "LLaDA2.1: masks above a threshold, and written tokens of the block replaced", commit=Editing
            ),
        },
        causal_block=32,
    ),
    lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),  # the experts are fused tensors, not linear layers
)
