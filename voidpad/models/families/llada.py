"""LLaDA (GSAI-ML): LLaDA-8B-Base and -Instruct, LLaDA-1.5, d3LLM-LLaDA. Transformers' Llama with full attention."""

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from voidpad.decode.presets import FamilyDefaults
from voidpad.decode.propose import GumbelProposal
from voidpad.models.families.family import Family, words

# Released module -> transformers' module. `ff_out` inside a block is its output; at the top level it is the head.
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
_NAMES = {
    "model.transformer.wte.": "model.embed_tokens.",
    "model.transformer.ln_f.": "model.norm.",
    "model.transformer.ff_out.": "lm_head.",
    **{f"model.transformer.blocks.#.{old}.": f"model.layers.#.{new}." for old, new in _BLOCK.items()},
}


# Released field -> transformers' field.
_FIELDS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "mlp_hidden_size": "intermediate_size",
    "rms_norm_eps": "rms_norm_eps",
    "embedding_size": "vocab_size",
    "max_sequence_length": "max_position_embeddings",
    "weight_tying": "tie_word_embeddings",
}


def _translated(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = 1 if config.get("multi_query_attention") else config["n_heads"]
    filled = {
        **config,
        "n_kv_heads": config.get("n_kv_heads") or heads,
        "mlp_hidden_size": config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
        "embedding_size": config.get("embedding_size") or config["vocab_size"],
    }
    return {new: filled[old] for old, new in _FIELDS.items()}


LLADA = Family(
    "llada",
    shift=0,
    config_class=LlamaConfig,
    net_class=LlamaForCausalLM,
    model_types=("llada",),
    copied=frozenset(),
    # LLaDA's own code has other defaults for most of these fields, so an absent one is refused.
    fixed={
        "activation_type": ("silu",),
        "alibi": (False,),
        "attention_dropout": (0.0,),
        "attention_layer_norm": (False,),
        "bias_for_layer_norm": (False, None),
        "block_group_size": (1,),
        "block_type": ("llama",),
        "embedding_dropout": (0.0,),
        "include_bias": (False,),
        "include_qkv_bias": (False,),
        "input_emb_norm": (False,),
        "layer_norm_type": ("rms",),
        "layer_norm_with_affine": (True,),
        "residual_dropout": (0.0,),
        "rope": (True,),
        "rope_full_precision": (True,),
        "scale_logits": (False,),
    },
    read=words("multi_query_attention mlp_ratio vocab_size") | _FIELDS.keys(),
    translated=_translated,
    tensor_names=_NAMES,
    decoding=FamilyDefaults(
        score="confidence",
        schedule="even",
        scores="unbanned",
        proposal=GumbelProposal,
        authors={"cut": False},
        fields={
            "void-expansion": {"tau_nonvoid": 0.09, "tau_gap": -0.45},
        },
    ),
    lora_targets=("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "lm_head"),
)
