"""SDAR and TraDo: transformers' Qwen3 and Qwen3Moe with block-causal attention, in blocks of 4 unless stated otherwise.

SDAR-1.7B, -4B and -8B-Chat, TraDo-8B-Instruct; SDAR-30B-A3B-Chat is a mixture of experts. Checkpoints whose name ends
in -b8, -b16, ... were trained with blocks of that size. Logits are not shifted, although the models grew from
autoregressive ones.
"""

from collections.abc import Mapping
from typing import Any

from transformers import (
    PretrainedConfig,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from voidpad.decode.causal_preset import CausalPreset
from voidpad.decode.commit import Dynamic, Sequential, Static
from voidpad.decode.plan import FamilyDefaults
from voidpad.decode.propose import GumbelProposal
from voidpad.models.families.family import NEUTRAL, STOCK, Covered, Family, stock_values, words
from voidpad.roles import RoleNames

_READ = STOCK | {"head_dim"}
_AUTO = ("AutoConfig", "AutoModel", "AutoModelForCausalLM")
_EXPERTS = words("num_experts num_experts_per_tok moe_intermediate_size")
_OPTIONAL: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "attention_dropout": (0.0,),
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False,),
}
_IGNORED = NEUTRAL | words(
    "attn_implementation debug ep_size fuse_cross_entropy max_window_layers micro_forward skip_checkpoint use_deepep"
)


def _translated(config: Mapping[str, Any]) -> dict[str, Any]:
    return stock_values(config, _READ)


def _released(config: PretrainedConfig) -> dict[str, Any]:
    code = "configuration_sdar.SDARConfig", "modeling_sdar.SDARModel", "modeling_sdar.SDARForCausalLM"
    return {name: getattr(config, name) for name in sorted(_READ)} | {
        "architectures": ["SDARForCausalLM"],
        "auto_map": dict(zip(_AUTO, code, strict=True)),
        "model_type": "sdar",
        "rope_theta": config.rope_parameters["rope_theta"],
        **{name: values[0] for name, values in _OPTIONAL.items()},
    }


def _released_mixture(config: PretrainedConfig) -> dict[str, Any]:
    code = (
        "configuration_sdar_moe.SDARMoeConfig",
        "modeling_sdar_moe.SDARMoeModel",
        "modeling_sdar_moe.SDARMoeForCausalLM",
    )
    return _released(config) | {
        "architectures": ["SDARMoeForCausalLM"],
        "auto_map": dict(zip(_AUTO, code, strict=True)),
        "model_type": "sdar_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        **{name: getattr(config, name) for name in (*sorted(_EXPERTS), "norm_topk_prob")},
    }


def _translated_mixture(config: Mapping[str, Any]) -> dict[str, Any]:
    return stock_values(config, _READ | _EXPERTS | {"norm_topk_prob"})


_DECODING = FamilyDefaults(
    proposal=GumbelProposal,
    authors={},
    presets={
        "static": CausalPreset("SDAR: the surest slots of a block, evenly over its passes", commit=Static),
        "dynamic": CausalPreset("SDAR: every slot of a block above a threshold", commit=Dynamic),
        "sequential": CausalPreset("SDAR: a block from left to right", commit=Sequential),
    },
    causal_block=4,
)

SDAR = Family(
    "sdar",
    shift=0,
    config_class=Qwen3Config,
    net_class=Qwen3ForCausalLM,
    model_types=("sdar",),
    covered=Covered(
        fixed={}, optional=_OPTIONAL, read=_READ | {"rope_theta", "block_size"}, ignored=_IGNORED
    ),
    translated=_translated,
    released=_released,
    tokenizer_class=Qwen2Tokenizer,
    role_names=RoleNames(mask=(*RoleNames.mask, "<MASK>")),
    block_field="block_size",
    block_name=r"-b(\d{1,4})$",
    decoding=_DECODING,
    narrow=True,
)

SDAR_MOE = Family(
    "sdar_moe",
    shift=0,
    config_class=Qwen3MoeConfig,
    net_class=Qwen3MoeForCausalLM,
    experts=True,
    model_types=("sdar_moe",),
    covered=Covered(
        fixed={"norm_topk_prob": (True, False)},  # the stock class follows it, too
        optional=_OPTIONAL | {"decoder_sparse_step": (1,), "mlp_only_layers": ([],)},
        read=_READ | _EXPERTS | {"rope_theta", "block_size"},
        ignored=_IGNORED | {"output_router_logits", "router_aux_loss_coef"},  # for training
    ),
    translated=_translated_mixture,
    released=_released_mixture,
    tokenizer_class=Qwen2Tokenizer,
    role_names=SDAR.role_names,
    block_field=SDAR.block_field,
    block_name=SDAR.block_name,
    decoding=_DECODING,
    narrow=True,
)
