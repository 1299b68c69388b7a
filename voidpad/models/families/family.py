"""The `Family` type: everything in which one family of masked diffusion models differs from another.

A family's file (llada.py, dream.py) makes one `Family`; the table in `voidpad.models.families` lists them. The rest of
the package asks the family and never compares its name.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from voidpad.decode.plan import FamilyDefaults
from voidpad.errors import WeightsError, reason
from voidpad.roles import RoleNames

# The largest sizes that config.json may ask for. Larger values come from damaged or hostile files: building such a
# network, even without memory for its weights, would take minutes.
LARGEST = {
    "vocab_size": 4_000_000,
    "hidden_size": 100_000,
    "intermediate_size": 1_000_000,
    "num_hidden_layers": 1_000,
    "num_attention_heads": 2_000,
    "num_key_value_heads": 2_000,
    "max_position_embeddings": 100_000_000,
}
# Those of mixtures of experts; `num_local_experts` is how transformers stores their number.
LARGEST_EXPERTS = {
    "num_experts": 100_000,
    "num_local_experts": 100_000,
    "num_experts_per_tok": 100_000,
    "moe_intermediate_size": 1_000_000,
}


def words(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Fields that Llama, Qwen2 and Qwen3 have under the same name.
STOCK = words(
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size "
    "max_position_embeddings rms_norm_eps tie_word_embeddings"
)
# Fields that reach no forward pass: origins, initialisation, ids that the roles resolve.
NEUTRAL = words(
    "architectures auto_map model_type transformers_version use_cache torch_dtype dtype _name_or_path "
    "bos_token_id eos_token_id pad_token_id mask_token_id initializer_range"
)


@dataclass(frozen=True)
class Covered:
    """The fields of a released config.json that we know. Any other might change the function, so it is refused."""

    fixed: Mapping[str, tuple[Any, ...]]  # must be there, with one of these values
    optional: Mapping[str, tuple[Any, ...]]  # one of these values if there
    read: frozenset[str]
    ignored: frozenset[str]

    def check(self, config: Mapping[str, Any], *, where: str) -> None:
        faults = [f"{name} is missing" for name in sorted(self.fixed.keys() - config.keys())]
        limits = {**self.fixed, **self.optional}
        for name in sorted(config):
            value = config[name]
            if name in limits and not any(_same(value, ok) for ok in limits[name]):
                faults.append(f"{name}={shown(value)} (covered: {limits[name][0]!r})")
            elif name not in limits and name not in self.read | self.ignored:
                faults.append(f"{name}={shown(value)} is unknown")
        if faults:
            listed = "; ".join(faults[:6]) + ("; ..." if len(faults) > 6 else "")
            raise WeightsError(f"{where}: config.json is not covered: {listed}. Use a released layout.")


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
    covered: Covered
    translated: Callable[[Mapping[str, Any]], dict[str, Any]]  # released fields -> fields of config_class
    # The way back: a config of config_class as released fields, those that are always the same left out. None: `export`
    # needs the config.json of a release.
    released: Callable[[PretrainedConfig], dict[str, Any]] | None = None
    unmarked_types: tuple[str, ...] = ()  # model types that count only when the user names the family
    hub_ids: tuple[str, ...] = ()  # hub checkpoints whose config.json does not name the family
    tensor_names: Mapping[str, str] = field(default_factory=dict)  # pattern -> replacement, as in key_mapping
    # The class of the tokenizer where there is no tokenizer.json.
    tokenizer_class: type[PreTrainedTokenizerBase] = PreTrainedTokenizerFast
    role_names: RoleNames = RoleNames()
    # Where the size of the blocks of block-causal attention may be found: a field of config.json, and a pattern for
    # the name of the checkpoint.
    block_field: str | None = None
    block_name: str | None = None

    # Adapters trained outside voidpad
    # Pattern -> replacement, after peft's prefix.
    adapter_names: Mapping[str, str] = field(default_factory=dict)
    # Last part of a module's name: old -> new.
    adapter_modules: Mapping[str, str] = field(default_factory=dict)
    # Roles of an adapter that carries no card and has names of `adapter_names`. None: the base's own roles are
    # right. A function returns the ids by role, or an empty mapping where the tokenizer does not fit them.
    adapter_roles: Callable[[PreTrainedTokenizerBase], Mapping[str, Any]] | None = None

    # Training
    loss: str = "per_row"  # how the sum of the loss is normalised: a name in training/losses.py
    lora_targets: tuple[str, ...] = ()  # modules of the paper's LoRA runs

    # Decoding
    decoding: FamilyDefaults = field(kw_only=True)  # score, schedule, scores, proposal, thresholds
    narrow: bool = False  # whether engine/narrow.py may compute the last layer for the requested tokens only

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

    @property
    def model_type(self) -> str:
        """The model_type of config.json in a folder saved by voidpad."""
        return self.config_class.model_type

    def config(self, values: Mapping[str, Any]) -> PretrainedConfig:
        """A bidirectional config of this family.

        No pad_token_id: transformers would make it the embedding's padding_idx, and where it is EOS, as in
        both releases, that row would start at zero and never learn.
        """
        fixed = {"is_causal": False, "use_cache": False, "pad_token_id": None}
        return self.config_class(**{**values, **fixed})

    def read_config(self, config: Mapping[str, Any], *, where: str) -> PretrainedConfig:
        """The config of a released config.json; fields that are unknown, absent or absurd are refused by name."""
        self.covered.check(config, where=where)
        try:
            values = self.translated(config)
        except KeyError as missing:
            raise WeightsError(
                f"{where}: config.json has no field {missing}; use the released config.json."
            ) from None
        except TypeError as error:
            raise WeightsError(
                f"{where}: config.json has a field of the wrong type ({reason(error)}); use the released config.json."
            ) from None
        except ValueError as error:
            raise WeightsError(
                f"{where}: config.json is not covered: {reason(error)}. Use a released layout."
            ) from None
        check_sizes(values, where=where)
        return self.checked_config(values, where=where)

    def checked_config(self, values: Mapping[str, Any], *, where: str) -> PretrainedConfig:
        """`config` with values from a file: what transformers refuses becomes one line."""
        try:
            return self.config(values)
        except Exception as error:  # transformers validates fields with many exception types
            raise WeightsError(
                f"{where}: damaged config.json ({reason(error)}); copy the file again."
            ) from None

    def tensor_name(self, name: str) -> str:
        """A released tensor name as the stock class spells it; any other name is returned unchanged."""
        return _renamed(name, self.tensor_names)

    def released_name(self, name: str) -> str:
        """A tensor name of the stock class as the release spells it: the inverse of `tensor_name`."""
        return _renamed(name, self._released_names)

    @cached_property
    def _released_names(self) -> dict[str, str]:
        r"""`tensor_names` the other way round. Its patterns hold plain text and numbers `(\d+)` only."""
        return {
            "^" + re.escape(new).replace(r"\\1", r"(\d+)"): old[1:]
            .replace(r"(\d+)", r"\1")
            .replace(r"\.", ".")
            for old, new in self.tensor_names.items()
        }

    def released_config(self, config: PretrainedConfig) -> dict[str, Any]:
        """The fields of a released config.json for a config of this family's class."""
        assert self.released is not None
        return {name: values[0] for name, values in self.covered.fixed.items()} | self.released(config)

    def adapter_name(self, name: str) -> str:
        """A module or tensor name of an adapter, without peft's prefix, as the stock class spells it."""
        return _renamed(name, self.adapter_names)


def _renamed(name: str, patterns: Mapping[str, str]) -> str:
    for pattern, replacement in patterns.items():
        renamed, hits = re.subn(pattern, replacement, name)
        if hits:
            return renamed
    return name


def check_sizes(values: Mapping[str, Any], *, where: str) -> None:
    """Refuse sizes that no real network has, before anything is built from them."""
    limits = LARGEST | {name: largest for name, largest in LARGEST_EXPERTS.items() if name in values}
    for name, largest in limits.items():
        size = values.get(name)
        if type(size) is not int or not 1 <= size <= largest:
            raise WeightsError(
                f"{where}: config.json gives {name}={shown(size)}; it must be a whole number from 1 to {largest}."
            )
    hidden, heads, keys = (
        values[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    if hidden % heads or heads % keys:
        raise WeightsError(
            f"{where}: config.json gives {hidden} hidden units, {heads} heads and {keys} key heads; "
            "each must be a multiple of the next."
        )
    chosen, experts = (values.get(name) for name in ("num_experts_per_tok", "num_experts"))
    if chosen is not None and chosen > (experts or values.get("num_local_experts") or 0):
        raise WeightsError(
            f"{where}: config.json gives num_experts_per_tok={chosen}, more than there are experts."
        )
    epsilon = values.get("rms_norm_eps")
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise WeightsError(
            f"{where}: config.json gives rms_norm_eps={shown(epsilon)}; it must lie between 0 and 1."
        )


def stock_values(config: Mapping[str, Any], same: Collection[str] = STOCK) -> dict[str, Any]:
    """Fields of a stock class from released ones: those in `same` as they are, and what every class reads alike."""
    copied = {name: config[name] for name in sorted(same)}
    theta = config["rope_theta"]
    if isinstance(theta, bool) or not isinstance(theta, int | float) or not 0 < theta < 1e12:
        raise TypeError(f"rope_theta={shown(theta)} must be a positive number")
    ids = {name: config.get(name) for name in ("bos_token_id", "eos_token_id")}
    return copied | ids | {"rope_parameters": {"rope_type": "default", "rope_theta": float(theta)}}


def shown(value: Any) -> str:
    """A value for an error message: short and printable."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
