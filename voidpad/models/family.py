"""The two families: what their released configs and tensor names mean in transformers' own classes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from voidpad.errors import WeightsError


@dataclass(frozen=True)
class Family:
    """How a family differs once loaded: row j of the logits predicts token j + shift."""

    name: str
    shift: int
    config_class: type[PretrainedConfig]
    net_class: type[PreTrainedModel]

    @property
    def model_type(self) -> str:
        """What config.json says in our saved form."""
        return self.config_class.model_type

    def config(self, values: Mapping[str, Any]) -> PretrainedConfig:
        """A bidirectional config of this family.

        No pad_token_id: transformers would make it the embedding's padding_idx, and where it is EOS, as in
        both releases, that row would start at zero and never learn.
        """
        fixed = {"is_causal": False, "use_cache": False, "pad_token_id": None}
        return self.config_class(**{**values, **fixed})


LLADA = Family("llada", shift=0, config_class=LlamaConfig, net_class=LlamaForCausalLM)
DREAM = Family("dream", shift=1, config_class=Qwen2Config, net_class=Qwen2ForCausalLM)
FAMILIES = {family.name: family for family in (LLADA, DREAM)}

_BLOCK = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",  # inside a block; at the top level ff_out is the head
}
_TOP = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
# Pattern -> replacement, in the form from_pretrained(key_mapping=...) takes.
LLADA_NAMES = {rf"^model\.transformer\.{old}\.": f"{new}." for old, new in _TOP.items()} | {
    rf"^model\.transformer\.blocks\.(\d+)\.{old}\.": rf"model.layers.\1.{new}." for old, new in _BLOCK.items()
}


def rename(tensor: str) -> str:
    """A released LLaDA tensor name as transformers' Llama has it; any other name unchanged."""
    for pattern, replacement in LLADA_NAMES.items():
        renamed, hits = re.subn(pattern, replacement, tensor)
        if hits:
            return renamed
    return tensor


@dataclass(frozen=True)
class Covered:
    """The config fields we know. Any other might change the function, so it is refused by name."""

    fixed: Mapping[str, tuple[Any, ...]]  # must be there, with one of these values
    optional: Mapping[str, tuple[Any, ...]]  # one of these values if there
    read: frozenset[str]
    ignored: frozenset[str]

    def check(self, config: Mapping[str, Any], *, where: str) -> None:
        faults = [f"{name} is missing" for name in sorted(self.fixed.keys() - config.keys())]
        limits = {**self.fixed, **self.optional}
        for name in sorted(config):
            if name in limits and config[name] not in limits[name]:
                faults.append(f"{name}={config[name]!r} (covered: {limits[name][0]!r})")
            elif name not in limits and name not in self.read | self.ignored:
                faults.append(f"{name}={config[name]!r} is unknown")
        if faults:
            raise WeightsError(
                f"{where}: config.json is not covered: {'; '.join(faults)}. Use a released layout."
            )


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


_NEUTRAL = _words(
    "architectures auto_map model_type transformers_version use_cache torch_dtype dtype _name_or_path "
    "bos_token_id eos_token_id pad_token_id mask_token_id initializer_range"
)
# LLaDA's own code has other defaults for most of the fixed fields, hence absent means refused.
LLADA_COVERED = Covered(
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
    optional={"clip_qkv": (None,)},
    read=_words(
        "d_model n_layers n_heads n_kv_heads multi_query_attention mlp_hidden_size mlp_ratio rms_norm_eps "
        "rope_theta embedding_size vocab_size max_sequence_length weight_tying"
    ),
    ignored=_NEUTRAL
    | _words(  # initialisation, training and kernels: none reaches a trained forward
        "alibi_bias_max attention_layer_norm_with_affine flash_attention init_cutoff_factor init_device "
        "init_fn init_std precision"
    ),
)
_DREAM_SAME = _words(  # fields Qwen2 has under the same name
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size "
    "max_position_embeddings rms_norm_eps tie_word_embeddings"
)
DREAM_COVERED = Covered(
    fixed={"hidden_act": ("silu",), "use_mrope": (False,), "use_sliding_window": (False,)},
    optional={"rope_scaling": (None,), "attention_dropout": (0.0,)},
    read=_DREAM_SAME | {"rope_theta"},
    ignored=_NEUTRAL | {"max_window_layers", "sliding_window"},  # used only with a sliding window
)


def translate(config: Mapping[str, Any], *, where: str) -> tuple[Family, dict[str, Any]]:
    """(family, values for its config class) of a released config.json."""
    kind = str(config.get("model_type")).lower()
    if kind not in ("llada", "dream"):
        raise WeightsError(
            f"{where}: model_type {config.get('model_type')!r} is not covered; use a LLaDA or Dream "
            "checkpoint, or a folder saved by voidpad (with its voidpad.json)."
        )
    covered, read = (LLADA_COVERED, _llada) if kind == "llada" else (DREAM_COVERED, _dream)
    covered.check(config, where=where)
    try:
        return FAMILIES[kind], read(config)
    except KeyError as missing:
        raise WeightsError(
            f"{where}: config.json has no field {missing}; use the released config.json."
        ) from None


def _llada(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["n_heads"]
    shared = 1 if config.get("multi_query_attention") else heads
    return {
        "hidden_size": config["d_model"],
        "num_hidden_layers": config["n_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("n_kv_heads") or shared,
        "intermediate_size": config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
        "rms_norm_eps": config["rms_norm_eps"],
        "vocab_size": config.get("embedding_size") or config["vocab_size"],
        "max_position_embeddings": config["max_sequence_length"],
        "tie_word_embeddings": config["weight_tying"],
        **_shared(config),
    }


def _dream(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in sorted(_DREAM_SAME)} | _shared(config)


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: config.get(name) for name in ("bos_token_id", "eos_token_id")}
    return ids | {"rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]}}
