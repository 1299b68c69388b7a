"""The `Family` type: everything in which one family of masked diffusion models differs from another.

A family's file (llada.py, dream.py) makes one `Family`; the table in `voidpad.models.families` lists them. The rest of
the package asks the family and never compares its name.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from voidpad.decode.presets import FamilyDefaults
from voidpad.errors import WeightsError, first_line, shown, warn_assumed
from voidpad.roles import RoleNames


def words(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Fields that Llama, Qwen2 and Qwen3 have under the same name.
STOCK = words(
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size "
    "max_position_embeddings rms_norm_eps tie_word_embeddings"
)
# Fields that reach no forward pass: origins, training, initialisation, kernels, ids that the roles resolve. The size of
# a sliding window counts only with `use_sliding_window`, which is refused.
NEUTRAL = words(
    "architectures auto_map model_type transformers_version use_cache torch_dtype dtype _name_or_path "
    "bos_token_id eos_token_id pad_token_id mask_token_id initializer_range train_max_sequence_length "
    "output_router_logits router_aux_loss_coef max_window_layers attn_implementation sliding_window"
)
# Fields that change the function, and the values with which they do not.
FUNCTION_FIELDS: dict[str, tuple[Any, ...]] = {
    "alibi": (False, None),
    "attention_bias": (False, None),
    "attention_dropout": (0.0, None),
    "attention_multiplier": (None, 1.0),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "decoder_sparse_step": (1,),
    "embedding_dropout": (0.0,),
    "embedding_multiplier": (None, 1.0),
    "final_logit_softcapping": (None,),
    "hidden_act": ("silu",),
    "layer_norm_eps": (None,),  # with a number there, iLLaDA's code uses LayerNorm
    "logit_scale": (None, 1.0),
    "logits_scaling": (None, 1.0),
    "mlp_bias": (False, None),
    "mlp_only_layers": ([],),
    "moe_router_enable_expert_bias": (False, None),
    "norm_head": (False,),
    "norm_softmax": (False,),
    "output_dropout": (0.0,),
    "partial_rotary_factor": (1.0, None),
    "quantization_config": (None,),
    "query_pre_attn_scalar": (None,),
    "residual_multiplier": (None, 1.0),
    "rope_scaling": (None,),
    "router_dtype": ("fp32",),
    "scale_logits": (False, None),
    "use_bias": (False,),
    "use_mrope": (False,),
    "use_qkv_bias": (False,),
    "use_rmsnorm": (True,),
    "use_sliding_window": (False, None),
    "using_split_qkv_in_self_attention": (False,),
}


def _same(value: Any, allowed: Any) -> bool:
    """Equal, where 0 and False are two values: JSON has both."""
    return isinstance(value, bool) == isinstance(allowed, bool) and value == allowed


@dataclass(frozen=True, eq=False)
class Family:
    """One family: how its released files are read, and how its network is trained and decoded."""

    name: str
    shift: int  # row j of the logits predicts token j + shift
    config_class: type[PretrainedConfig]
    net_class: type[PreTrainedModel]
    experts: bool = field(default=False, kw_only=True)  # whether every layer is a mixture of experts

    # Released files
    model_types: tuple[str, ...]  # model_type in a released config.json, lower case
    # Fields of a released config.json: those that config_class has under the same name, those that must be there with
    # one of these values, others that `translated` reads, and those that no forward pass reads.
    copied: frozenset[str] = STOCK
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    # Released fields -> fields of config_class, beside those that are copied.
    translated: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    # Fields of config_class that are always the same.
    constants: Mapping[str, Any] = field(default_factory=dict)
    # The way back, for models that were trained from scratch: a config of config_class as released fields, those that
    # are always the same left out. None: `export` needs the config.json of a release.
    released: Callable[[PretrainedConfig], dict[str, Any]] | None = None
    unmarked_types: tuple[str, ...] = ()  # model types that count only when the user names the family
    hub_ids: tuple[str, ...] = ()  # hub checkpoints whose config.json does not name the family
    # How released tensor names begin -> how those of the stock class do. # stands for the number of a layer.
    tensor_names: Mapping[str, str] = field(default_factory=dict)
    # A module whose released tensor holds the rows of several tensors of the stock class: its name after renaming, how
    # to take the tensor apart by name in the stock class, and how to join the tensors of a network again.
    joined: str | None = None
    split: Callable[[str, Tensor, PretrainedConfig], dict[str, Tensor]] | None = None
    join: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None
    # The class of the tokenizer where there is no tokenizer.json.
    tokenizer_class: type[PreTrainedTokenizerBase] = PreTrainedTokenizerFast
    role_names: RoleNames = RoleNames()
    # Ids of mask and eos where neither config nor tokenizer name them.
    role_ids: Mapping[str, int] = field(default_factory=dict)
    # Pattern of a checkpoint's name -> a line to say when it is opened.
    name_notes: Mapping[str, str] = field(default_factory=dict)
    # Where the size of the blocks of block-causal attention may be found: a field of config.json, and a pattern for
    # the name of the checkpoint.
    block_field: str | None = None
    block_name: str | None = None
    block_assumed: bool = True  # whether a size that nobody states is a guess, because others are about

    # Roles of an adapter that carries no card and has original names. None: the base's own roles are right. A
    # function returns the ids by role, or an empty mapping where the tokenizer does not fit them.
    adapter_roles: Callable[[PreTrainedTokenizerBase], Mapping[str, Any]] | None = None

    # Training
    loss: str = "per_row"  # how the sum of the loss is normalised: a name in training/losses.py
    lora_targets: tuple[str, ...] = ()  # modules of the paper's LoRA runs

    # Decoding
    decoding: FamilyDefaults = field(kw_only=True)  # score, schedule, scores, proposal, thresholds
    default_plan: str = "original"  # of a release with full attention

    @property
    def causal_block(self) -> int:
        """The usual size of the blocks of block-causal attention; 0 for families with full attention."""
        return self.decoding.causal_block

    def stated_block(self, config: Mapping[str, Any], name: str) -> Any:
        """The size of the blocks that config.json or the checkpoint's name states; None if neither does."""
        if self.block_field is not None and self.block_field in config:
            return config[self.block_field]
        found = re.search(self.block_name, name) if self.block_name else None
        return int(found[1]) if found else None

    def check_causal_block(self, size: int, *, where: str) -> None:
        """Refuse a size of blocks that the family's attention cannot have."""
        if bool(self.causal_block) != (size > 0):
            attention = "block-causal" if self.causal_block else "full"
            raise WeightsError(
                f"{where}: causal_block={shown(size)}, but family {self.name!r} has {attention} attention."
            )

    def config(self, values: Mapping[str, Any]) -> PretrainedConfig:
        """A bidirectional config of this family.

        No pad_token_id: transformers would make it the embedding's padding_idx, and where it is EOS, as in
        both releases, that row would start at zero and never learn.
        """
        fixed = {"is_causal": False, "use_cache": False, "pad_token_id": None}
        return self.config_class(**{**self.constants, **values, **fixed})

    def read_config(
        self, values: Mapping[str, Any], *, where: str, released: bool = True
    ) -> PretrainedConfig:
        """The config of a config.json, released or saved by voidpad."""
        if released:
            self._check_fields(values, where)
        try:
            return self.config(
                self.stock_fields(values) if released else self.config_class.from_dict(dict(values)).to_dict()
            )
        except KeyError as missing:
            raise WeightsError(f"{where}: config.json has no field {missing}.") from None
        except Exception as error:  # transformers validates fields with many exception types
            raise WeightsError(f"{where}: config.json is not covered ({first_line(error)}).") from None

    def _check_fields(self, config: Mapping[str, Any], where: str) -> None:
        """Refuse a released field that changes the function in a way that the stock class cannot follow.

        Others that we do not know give one warning.
        """
        faults = [f"{name} is missing" for name in sorted(self.fixed.keys() - config.keys())]
        limits = {**FUNCTION_FIELDS, **self.fixed}
        known = {"rope_theta", self.block_field, *self.copied, *self.read, *self.ignored, *NEUTRAL}
        given = sorted(config.keys() - known)
        for name in given:
            if name in limits and not any(_same(config[name], ok) for ok in limits[name]):
                faults.append(f"{name}={shown(config[name])} (covered: {limits[name][0]!r})")
        if faults:
            raise WeightsError(f"{where}: config.json is not covered: {'; '.join(faults)}.")
        unknown = [name for name in given if name not in limits]
        if unknown:
            warn_assumed(
                f"{where}: config.json has fields that voidpad does not know ({', '.join(unknown)}); they are taken "
                "to change nothing in the network."
            )

    def stock_fields(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of config_class from those of a released config.json."""
        return {
            **{name: config[name] for name in sorted(self.copied)},
            **{name: config.get(name) for name in ("bos_token_id", "eos_token_id")},
            "rope_parameters": {"rope_type": "default", "rope_theta": float(config["rope_theta"])},
            **self.translated(config),
        }

    def tensor_name(self, name: str) -> str:
        """A released tensor name as the stock class spells it; any other name is returned unchanged."""
        return _renamed(name, self.tensor_names)

    def released_name(self, name: str) -> str:
        """A tensor name of the stock class as the release spells it: the inverse of `tensor_name`."""
        return _renamed(name, {new: old for old, new in self.tensor_names.items()})

    def adapter_name(self, name: str) -> str:
        """A tensor name of an adapter, without peft's prefix, as the stock class spells it.

        The authors' training wrapper puts one `model.` more before every name.
        """
        return self.tensor_name(re.sub(r"^(?:model\.)+(?=model\.|lm_head\b)", "", name))


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        found = re.match(re.escape(old).replace(r"\#", r"(\d+)"), name)
        if found:
            return new.replace("#", "".join(found.groups())) + name[found.end() :]
    return name
