"""iLLaDA-8B (GSAI-ML): transformers' Llama under Llama's own tensor names, with full attention.

Its sampler writes one block of 32 at a time and has no masks after it: the plan `append-blocks`. The names of its sizes
are taken to be Llama's; its config.json was not seen, and one without them is refused. An option of its sampler that
raises the logit of `</think>` is not here.
"""

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from voidpad.decode.presets import FamilyDefaults
from voidpad.decode.propose import GumbelProposal
from voidpad.models.families.family import Family, words


def _translated(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"head_dim": config["head_dim"]} if config.get("head_dim") else {}


ILLADA = Family(
    "illada",
    shift=0,
    config_class=LlamaConfig,
    net_class=LlamaForCausalLM,
    model_types=("illada",),
    read=words("head_dim"),
    translated=_translated,
    role_ids={"mask": 5, "eos": 2},  # the tokenizer declares no mask token
    decoding=FamilyDefaults(
        score="confidence",
        schedule="even",
        scores="unbanned",
        proposal=GumbelProposal,
        authors={"cut": False},
        fields={"append-blocks": {"block": 32, "canvas": 32, "limit": 2048}},
    ),
    default_plan="append-blocks",
    lora_targets=("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "lm_head"),
)
