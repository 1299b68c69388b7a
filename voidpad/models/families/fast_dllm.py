"""Fast-dLLM v2 (1.5B and 7B): transformers' Qwen2 with block-causal attention in blocks of 32, logits shifted by one.

The first slot of a block is never denoised: it is the token that the last position of the block before it predicts.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from voidpad.decode.causal_preset import CausalPreset
from voidpad.decode.commit import HighConfidence
from voidpad.decode.plan import FamilyDefaults
from voidpad.decode.propose import SampledProposal
from voidpad.models.families.family import NEUTRAL, STOCK, Covered, Family, shown, stock_values
from voidpad.roles import RoleNames


def _translated(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds = config.get("layer_types") or []
    if any(kind != "full_attention" for kind in kinds):
        raise ValueError(f"layer_types={shown(kinds)} (covered: full_attention in every layer)")
    return stock_values(config)


def _released(config: PretrainedConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in sorted(STOCK)} | {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration.Fast_dLLM_QwenConfig",
            "AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM",
        },
        "model_type": "Fast_dLLM_Qwen",
        "hidden_act": "silu",
        "rope_theta": config.rope_parameters["rope_theta"],
        "rope_scaling": None,
        "use_sliding_window": False,
    }


FAST_DLLM = Family(
    "fast_dllm",
    shift=1,
    config_class=Qwen2Config,
    net_class=Qwen2ForCausalLM,
    model_types=("fast_dllm_qwen",),
    covered=Covered(
        fixed={},
        optional={
            "hidden_act": ("silu",),
            "use_sliding_window": (False,),
            "rope_scaling": (None,),
            "attention_dropout": (0.0,),
        },
        read=STOCK | {"rope_theta", "bd_size", "layer_types"},
        ignored=NEUTRAL | {"max_window_layers", "sliding_window"},  # used with a sliding window only
    ),
    translated=_translated,
    released=_released,
    tokenizer_class=Qwen2Tokenizer,
    role_names=RoleNames(ends=(*RoleNames.ends, "<|endoftext|>")),
    block_field="bd_size",
    decoding=FamilyDefaults(
        score="confidence",
        proposal=SampledProposal,
        authors={},
        presets={
            "small-blocks": CausalPreset(
                "Fast-dLLM v2: small blocks inside a block, every slot above a threshold",
                commit=HighConfidence,
                small=8,
                lead=True,
                finish=False,
            ),
        },
        causal_block=32,
    ),
    narrow=True,
)
