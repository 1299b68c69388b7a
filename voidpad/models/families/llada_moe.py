"""LLaDA-MoE (inclusionAI): LLaDA-MoE-7B-A1B-Base and -Instruct. Transformers' Qwen3Moe with full attention.

Its config.json says `llada`, as the dense model's does; the experts tell them apart.
"""

from collections.abc import Mapping
from typing import Any

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from voidpad.errors import shown
from voidpad.models.families.family import Family, words
from voidpad.models.families.llada import LLADA

_SAME = words(  # fields that Qwen3Moe has under the same name
    "hidden_size num_hidden_layers num_attention_heads vocab_size max_position_embeddings rms_norm_eps "
    "tie_word_embeddings num_experts num_experts_per_tok"
)


def _translated(config: Mapping[str, Any]) -> dict[str, Any]:
    sparse = config["moe_layer_freq"]
    if not isinstance(sparse, list) or any(type(every) is not int or every != 1 for every in sparse):
        raise ValueError(f"moe_layer_freq={shown(sparse)} (covered: 1 for every layer)")
    size = config["expert_intermediate_size"]
    return {
        "num_key_value_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
        "moe_intermediate_size": size,
        "intermediate_size": config.get("dense_intermediate_size") or size,  # no layer is dense
        "norm_topk_prob": False,  # the released code never normalises, whatever the config says
    }


LLADA_MOE = Family(
    "llada_moe",
    shift=0,
    config_class=Qwen3MoeConfig,
    net_class=Qwen3MoeForCausalLM,
    experts=True,
    model_types=("llada", "lladamoe"),
    copied=_SAME,
    # The released class has no usable default for these fields, so an absent one is refused.
    fixed={
        "qk_layernorm": (True,),
        "shared_expert_intermediate_size": (None,),
        "partial_rotary_factor": (1,),
    },
    read=words("num_key_value_heads expert_intermediate_size dense_intermediate_size moe_layer_freq"),
    translated=_translated,
    decoding=LLADA.decoding,  # the same sampler; the thresholds of VoidExpansion are those of the dense model
    lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),  # the experts are fused tensors, not linear layers
)
