"""SDAR and TraDo: transformers' Qwen3 and Qwen3Moe with block-causal attention, in blocks of 4 unless stated otherwise.

SDAR-1.7B, -4B and -8B-Chat, TraDo-8B-Instruct; SDAR-30B-A3B-Chat is a mixture of experts. Checkpoints whose name ends
in -b8, -b16, ... were trained with blocks of that size. Logits are not shifted, although the models grew from
autoregressive ones.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import (
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from voidpad.decode.commit import Dynamic, Sequential, Static
from voidpad.decode.presets import CausalPreset, FamilyDefaults
from voidpad.decode.propose import TemperedProposal
from voidpad.models.families.family import STOCK, Covered, Family, stock_values, words
from voidpad.roles import RoleNames

_READ = STOCK | {"head_dim"}
_EXPERTS = words("num_experts num_experts_per_tok moe_intermediate_size")
_IGNORED = words("debug ep_size fuse_cross_entropy micro_forward skip_checkpoint use_deepep")


def _stock_values(config: Mapping[str, Any]) -> dict[str, Any]:
    experts = _EXPERTS | {"norm_topk_prob"} if "num_experts" in config else frozenset()
    return stock_values(config, _READ | experts)


_DECODING = FamilyDefaults(
    proposal=TemperedProposal,
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
    covered=Covered(read=_READ | {"rope_theta", "block_size"}, ignored=_IGNORED),
    translated=_stock_values,
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
    covered=Covered(
        fixed={"norm_topk_prob": (True, False)},  # the stock class follows it, too
        optional={"decoder_sparse_step": (1,), "mlp_only_layers": ([],)},
        read=SDAR.covered.read | _EXPERTS,
        ignored=_IGNORED,
    ),
)
