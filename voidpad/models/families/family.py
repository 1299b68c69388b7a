"""The `Family` type: everything in which one family of masked diffusion models differs from another.

A family's file (llada.py, dream.py) makes one `Family`; the table in `voidpad.models.families` lists them. The rest of
the package asks the family and never compares its name.

Two sets of names meet here. The *released* ones are those of the authors' config.json and tensors; the *stock* ones are
those of the class of transformers that computes the same network.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from voidpad.decode.presets import FamilyDefaults
from voidpad.errors import WeightsError, shown, warn_assumed
from voidpad.files import readable
from voidpad.roles import RoleNames


def words(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Fields that Llama, Qwen2 and Qwen3 have under the same name.
STOCK = words(
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size "
    "max_position_embeddings rms_norm_eps tie_word_embeddings"
)
# Fields that no forward pass reads: origins, training, initialisation, kernels, ids that the roles resolve. The size of
# a sliding window counts only with `use_sliding_window`, which is refused. A family that copies one of them reads it.
NEUTRAL = words(
    "architectures auto_map model_type transformers_version use_cache torch_dtype dtype _name_or_path "
    "bos_token_id eos_token_id pad_token_id mask_token_id initializer_range train_max_sequence_length "
    "output_router_logits router_aux_loss_coef max_window_layers attn_implementation sliding_window rope_theta "
    # of LLaDA
    "alibi_bias_max attention_layer_norm_with_affine flash_attention flash_attn_varlen init_cutoff_factor init_device "
    "init_fn init_std precision "
    # of LLaDA-MoE
    "moe_router_score_function routed_scaling_factor router_num_group router_topk_group norm_topk_prob "
    # of SDAR
    "debug ep_size fuse_cross_entropy micro_forward skip_checkpoint use_deepep"
)
# Fields that change what a network computes, unless they are off.
_OFF: tuple[Any, ...] = (None, False, 0, [])
_SWITCHES = words(
    "alibi attention_bias attention_dropout attn_logit_softcapping clip_qkv embedding_dropout final_logit_softcapping "
    "layer_norm_eps mlp_bias mlp_only_layers moe_router_enable_expert_bias norm_head norm_softmax output_dropout "
    "quantization_config query_pre_attn_scalar rope_scaling scale_logits use_bias use_mrope use_qkv_bias "
    "use_sliding_window using_split_qkv_in_self_attention"
)
_FACTORS = words(
    "attention_multiplier embedding_multiplier logit_scale logits_scaling partial_rotary_factor residual_multiplier"
)
# All fields that change what a network computes, and the values with which they do not.
FUNCTION_FIELDS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_SWITCHES, _OFF),
    **dict.fromkeys(_FACTORS, (None, 1)),
    "decoder_sparse_step": (1,),
    "hidden_act": ("silu",),
    "router_dtype": ("fp32",),
    "use_rmsnorm": (True,),
}


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
    unmarked_types: tuple[str, ...] = ()  # model types that count only when the user names the family
    hub_ids: tuple[str, ...] = ()  # hub checkpoints whose config.json does not name the family
    # Fields of a released config.json: those that the stock class has under the same name, those that must be there
    # with one of these values, and others that `translated` reads.
    copied: frozenset[str] = STOCK
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    # A released config.json -> stock fields, beside those that are copied.
    translated: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    # Stock fields that are always the same.
    constants: Mapping[str, Any] = field(default_factory=dict)
    # How released tensor names begin -> how stock names do. # stands for the number of a layer.
    tensor_names: Mapping[str, str] = field(default_factory=dict)
    # For a release that stores several stock tensors in one: the stock tensors in one of its tensors, by name, and all
    # tensors of a network with those joined again.
    split: Callable[[str, Any, PretrainedConfig], dict[str, Any]] = lambda name, tensor, config: {
        name: tensor
    }
    join: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict
    # The class of the tokenizer where there is no tokenizer.json.
    tokenizer_class: type[PreTrainedTokenizerBase] = PreTrainedTokenizerFast
    role_names: RoleNames = RoleNames()
    role_ids: Mapping[str, int] = field(default_factory=dict)  # mask and eos, where nothing else names them
    # Where a release states the size of the blocks of block-causal attention: a field of config.json, and a pattern for
    # the name of the checkpoint.
    block_field: str | None = None
    block_name: str | None = None
    # Ids by role of an adapter of the authors' training code, which carries no card; none where the tokenizer does not
    # fit them. None: the base's own roles are right.
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
        """A bidirectional stock config.

        No pad_token_id: transformers would make it the embedding's padding_idx, and where it is EOS, as in
        both releases, that row would start at zero and never learn.
        """
        fixed = {"is_causal": False, "use_cache": False, "pad_token_id": None}
        return self.config_class(**{**self.constants, **values, **fixed})

    def read_config(
        self, values: Mapping[str, Any], *, where: str, released: bool = True
    ) -> PretrainedConfig:
        """The stock config of a config.json, released or saved by voidpad.

        A released field that changes the function in a way that the stock class cannot follow is refused. Fields that
        voidpad does not know give one warning.
        """
        with readable(Path(where) / "config.json", "configuration"):
            if not released:
                return self.config(self.config_class.from_dict(dict(values)).to_dict())
            limits = {**FUNCTION_FIELDS, **self.fixed}
            known = {self.block_field, *self.copied, *self.read, *NEUTRAL}
            faults = [
                f"{name}={shown(values.get(name))} (covered: {' or '.join(map(str, limits[name]))})"
                for name in sorted((values.keys() - known) & limits.keys() | self.fixed.keys())
                if values.get(name) not in limits[name]
            ]
            if faults:
                raise WeightsError(f"{where}: config.json is not covered: {'; '.join(faults)}.")
            unknown = sorted(values.keys() - known - limits.keys())
            if unknown:
                warn_assumed(
                    f"{where}: config.json has fields that voidpad does not know ({', '.join(unknown)}); they are "
                    "taken to change nothing in the network."
                )
            try:
                fields = self.stock_fields(values)
            except ValueError as error:  # of `translated`
                raise WeightsError(f"{where}: config.json is not covered: {error}.") from None
            return self.config(fields)

    def stock_fields(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Stock fields from those of a released config.json."""
        return {
            **{name: config[name] for name in sorted(self.copied)},
            **{name: config.get(name) for name in ("bos_token_id", "eos_token_id")},
            "rope_parameters": {"rope_type": "default", "rope_theta": float(config["rope_theta"])},
            **self.translated(config),
        }

    def stock_name(self, name: str) -> str:
        """The stock name of a released tensor; any other name is returned unchanged."""
        return _renamed(name, self.tensor_names)

    def released_name(self, name: str) -> str:
        """The released name of a stock tensor: the inverse of `stock_name`."""
        return _renamed(name, {new: old for old, new in self.tensor_names.items()})


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        found = re.match(re.escape(old).replace(r"\#", r"(\d+)"), name)
        if found:
            return new.replace("#", "".join(found.groups())) + name[found.end() :]
    return name
