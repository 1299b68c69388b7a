"""Fast-dLLM v2 (1.5B and 7B): transformers' Qwen2 with block-causal attention in blocks of 32, logits shifted by one.

The first slot of a block is never denoised: it is the token that the last position of the block before it predicts.
"""

from collections.abc import Mapping
from typing import Any

from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from voidpad.decode.commit import HighConfidence
from voidpad.decode.presets import FamilyDefaults, Preset
from voidpad.decode.propose import SampledProposal
from voidpad.errors import shown
from voidpad.models.families.family import Family, words
from voidpad.roles import RoleNames


def _translated(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds = config.get("layer_types") or []
    if any(kind != "full_attention" for kind in kinds):
        raise ValueError(f"layer_types={shown(kinds)} (covered: full_attention in every layer)")
    return {}


FAST_DLLM = Family(
    "fast_dllm",
    shift=1,
    config_class=Qwen2Config,
    net_class=Qwen2ForCausalLM,
    model_types=("fast_dllm_qwen",),
    read=words("layer_types"),
    translated=_translated,
    tokenizer_class=Qwen2Tokenizer,
    role_names=RoleNames(ends=(*RoleNames.ends, "<|endoftext|>")),
    block_field="bd_size",
    decoding=FamilyDefaults(
        score="confidence",
        proposal=SampledProposal,
        authors={},
        presets={
            "small-blocks": Preset(
                "Fast-dLLM v2: small blocks inside a block, every slot above a threshold",
                commit=HighConfidence,
                small=8,
                lead=True,
                finish=False,
            ),
        },
        causal_block=32,
    ),
)
