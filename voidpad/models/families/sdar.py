"""SDAR and TraDo: transformers' Qwen3 and Qwen3Moe with block-causal attention, in blocks of 4 unless stated otherwise.

SDAR-1.7B, -4B and -8B-Chat, TraDo-8B-Instruct; SDAR-30B-A3B-Chat is a mixture of experts. Checkpoints whose name ends
in -b8, -b16, ... were trained with blocks of that size. Logits are not shifted, although the models grew from
autoregressive ones.
"""

from dataclasses import replace

from transformers import (
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from voidpad.decode.commit import Dynamic, Sequential, Static
from voidpad.decode.presets import FamilyDefaults, Preset
from voidpad.decode.propose import TemperedProposal
from voidpad.models.families.family import STOCK, Family, words
from voidpad.roles import RoleNames

_DECODING = FamilyDefaults(
    proposal=TemperedProposal,
    authors={},
    presets={
        "static": Preset("SDAR: the surest slots of a block, evenly over its passes", commit=Static),
        "dynamic": Preset("SDAR: every slot of a block above a threshold", commit=Dynamic),
        "sequential": Preset("SDAR: a block from left to right", commit=Sequential),
    },
    causal_block=4,
)

SDAR = Family(
    "sdar",
    shift=0,
    config_class=Qwen3Config,
    net_class=Qwen3ForCausalLM,
    model_types=("sdar",),
    copied=STOCK | {"head_dim"},
    tokenizer_class=Qwen2Tokenizer,
    role_names=RoleNames(mask=(*RoleNames.mask, "<MASK>")),
    block_field="block_size",
    block_name=r"-b(\d{1,4})$",
    decoding=_DECODING,
)

SDAR_MOE = replace(
    SDAR,
    name="sdar_moe",
    config_class=Qwen3MoeConfig,
    net_class=Qwen3MoeForCausalLM,
    experts=True,
    model_types=("sdar_moe",),
    copied=SDAR.copied | words("num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob"),
)
