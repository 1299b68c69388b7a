"""LLaDA2.0-mini and LLaDA2.1-mini (inclusionAI): transformers' Glm4Moe with block-causal attention in blocks of 32.

Two things differ from the released code, each on purpose. At temperature 0 that code still samples; the plans here take
the likeliest token. LLaDA2.1's code passes a mask of zeros and ones where an additive one is needed, so that its
attention is not block-causal; here it is, as in other engines. The configs of 2.0 and 2.1 are the same, so the plan
`editing`, LLaDA2.1's loop, is chosen by the user.
"""

import re
from collections.abc import Mapping
from typing import Any

from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from voidpad.decode.commit import Dynamic, Editing, Static
from voidpad.decode.presets import CausalPreset, FamilyDefaults
from voidpad.decode.propose import TemperedProposal
from voidpad.models.families.family import STOCK, Covered, Family, stock_values, words

# Fields that Glm4Moe has under the same name.
_SAME = STOCK | words(
    "head_dim first_k_dense_replace moe_intermediate_size num_experts_per_tok n_group topk_group norm_topk_prob "
    "routed_scaling_factor"
)
_FIXED: dict[str, tuple[Any, ...]] = {
    "moe_router_enable_expert_bias": (True,),
    "partial_rotary_factor": (0.5,),
    "score_function": ("sigmoid",),
    "use_qk_norm": (True,),
}
_OPTIONAL: dict[str, tuple[Any, ...]] = {
    "embedding_dropout": (0.0,),
    "norm_head": (False,),
    "norm_softmax": (False,),
    "output_dropout": (0.0,),
    "router_dtype": ("fp32",),
    "use_bias": (False,),
    "use_qkv_bias": (False,),
    "use_rmsnorm": (True,),
    "using_split_qkv_in_self_attention": (False,),
}
# Released tensors -> Glm4Moe's. `query_key_value` holds the rows of three tensors: see `joined`.
_LAYER = {
    "attention.query_key_value": "self_attn.qkv_proj",
    "attention.dense": "self_attn.o_proj",
    "attention.query_layernorm": "self_attn.q_norm",
    "attention.key_layernorm": "self_attn.k_norm",
    "mlp.gate.expert_bias": "mlp.gate.e_score_correction_bias",
}


def _names() -> dict[str, str]:
    layers = {
        rf"^model\.layers\.(\d+)\.{re.escape(old)}": rf"model.layers.\1.{new}" for old, new in _LAYER.items()
    }
    return {r"^model\.word_embeddings": "model.embed_tokens", **layers}


def _translated(config: Mapping[str, Any]) -> dict[str, Any]:
    values = stock_values(config, _SAME)
    values["rope_parameters"] |= {"partial_rotary_factor": config["partial_rotary_factor"]}
    rotated = config.get("rotary_dim", config["head_dim"] // 2)
    if rotated != config["head_dim"] // 2:
        raise ValueError(f"rotary_dim={rotated} is not half of head_dim={config['head_dim']}")
    return values | {
        "n_routed_experts": config["num_experts"],
        "n_shared_experts": config["num_shared_experts"],
    }


LLADA2 = Family(
    "llada2",
    shift=0,
    config_class=Glm4MoeConfig,
    net_class=Glm4MoeForCausalLM,
    experts=True,
    model_types=("llada2_moe",),
    covered=Covered(
        fixed=_FIXED,
        optional=_OPTIONAL,
        read=_SAME | words("num_experts num_shared_experts rope_theta rotary_dim"),
    ),
    translated=_translated,
    constants={"use_qk_norm": True, "num_mtp_layers": 0},
    tensor_names=_names(),
    joined={"qkv_proj": ("q_proj", "k_proj", "v_proj")},
    block_assumed=False,
    name_notes={
        r"(?i)llada2\.1": "LLaDA2.1 was trained to edit what it wrote; --plan editing is its loop, dynamic LLaDA2.0's."
    },
    decoding=FamilyDefaults(
        proposal=TemperedProposal,
        authors={},
        presets={
            "dynamic": CausalPreset("LLaDA2.0: every slot of a block above a threshold", commit=Dynamic),
            "static": CausalPreset("the surest slots of a block, evenly over its passes", commit=Static),
            "editing": CausalPreset(
                "LLaDA2.1: masks above a threshold, and written tokens of the block replaced", commit=Editing
            ),
        },
        causal_block=32,
    ),
    lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),  # the experts are fused tensors, not linear layers
)
