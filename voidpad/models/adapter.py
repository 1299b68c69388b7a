"""LoRA adapters: saved by voidpad, or by the original training code of a family, with other tensor names."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from voidpad.errors import ConfigError, WeightsError, first_line
from voidpad.files import read_json
from voidpad.models.card import Card, read_card
from voidpad.models.families import Family
from voidpad.models.locate import locate
from voidpad.models.weights import read_headers, refuse_nan, refuse_unplaced, required
from voidpad.models.without_bitsandbytes import without_bitsandbytes

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
# What peft puts behind the name of the module it changes; a plain weight belongs to modules_to_save.
CHANGE = re.compile(r"\.(lora_\w+|token_adapter|weight|bias)\b.*$")
# Settings of peft that the decoder cannot follow; target_parameters adapts the experts of a mixture.
_NOT_COVERED = ("target_parameters", "layer_replication", "alora_invocation_tokens")


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder as its small files describe it; its tensors have not been read."""

    folder: Path
    config: Mapping[str, Any]  # adapter_config.json as it stands
    card: Card | None
    tensors: tuple[str, ...]  # names in the file

    def original(self, family: Family) -> bool:
        """Whether the tensors have the names of the family's original training code."""
        return any(_module(name, family) != name.removeprefix(PREFIX) for name in self.tensors)

    @property
    def trained_tokens(self) -> frozenset[int]:
        """Ids whose rows of the embedding or of the head were trained."""
        indices = self.config.get("trainable_token_indices") or []
        lists = indices.values() if isinstance(indices, dict) else [indices]
        return frozenset(token for ids in lists for token in ids)


def is_adapter(folder: Path) -> bool:
    """An adapter folder, as opposed to a whole checkpoint."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path, config: Mapping[str, Any] | None = None) -> str:
    """The base model that an adapter folder names."""
    base = (config or read_json(folder / CONFIG)).get("base_model_name_or_path")
    if not base:
        raise WeightsError(f"{folder}: {CONFIG} names no base; load the base and pass adapter={folder}.")
    return str(base)


def base_folder(name: str | Path, *, download: bool = True) -> Path:
    """The folder with the whole model: the base's, if the name leads to an adapter."""
    folder = locate(name, download=download)
    return locate(base_of(folder), download=download) if is_adapter(folder) else folder


def refuse_adapter(name: str) -> None:
    """Refuse an adapter as the model of a new one, which would belong to weights that were saved nowhere."""
    folder = locate(name)
    if is_adapter(folder):
        raise ConfigError(
            f"{name}: is an adapter of {base_of(folder)}; fine-tune that, or make one model of both with "
            f"`voidpad merge {name} --out merged` and fine-tune the merged one."
        )


def open_adapter(folder: Path, name: str) -> Adapter:
    """The adapter of a folder; one that is no LoRA adapter, or that our base networks cannot carry, is refused."""
    if not (folder / CONFIG).is_file():
        whole = (folder / "config.json").is_file()
        hint = (
            "it is a whole model, give it as the model"
            if whole
            else "of a training run, use the folder model"
        )
        raise ConfigError(f"{name}: holds no {CONFIG}; {hint}.")
    config = read_json(folder / CONFIG)
    refused = next((field for field in _NOT_COVERED if config.get(field)), None)
    if refused or config.get("peft_type") != "LORA":
        raise WeightsError(
            f"{folder / CONFIG}: {refused or 'peft_type'} is not covered; use a plain LoRA adapter."
        )
    return Adapter(folder, config, read_card(folder), tuple(read_headers(required(folder / TENSORS))))


def attach(
    net: PreTrainedModel, adapter: Adapter, family: Family, base: str, *, quantized: bool
) -> PeftModel:
    """The network with the adapter around it, not merged. `base` is the name of the network's checkpoint."""
    where = f"{adapter.folder} on {base}"
    tensors = load_file(adapter.folder / TENSORS)
    refuse_nan(tensors.items(), where=where)
    try:  # peft checks its fields, and how they fit the network, with many exception types
        values = {name: value for name, value in adapter.config.items() if name != "runtime_config"}
        config: LoraConfig = LoraConfig.from_peft_type(**LoraConfig.check_kwargs(**values))
        config.base_model_name_or_path = base
        config.inference_mode = True
        config.init_lora_weights = True  # others decompose the base's weights
        if adapter.original(family):
            config, tensors = _from_original(config, tensors, family)
        with nullcontext() if quantized else without_bitsandbytes():
            adapted = PeftModel(net, config)
        if config.target_parameters:  # peft turns targets inside a mixture of experts into these
            raise ValueError("it adapts the experts, which is not covered")
        expected = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
        # peft may have stored the untouched rows of a targeted embedding or head as well; the base has them.
        given = {name for name in tensors if ".base_layer." not in name}
        refuse_unplaced(expected - given, given - expected, where=where)
        set_peft_model_state_dict(adapted, tensors)
    except WeightsError:
        raise
    except Exception as error:
        raise WeightsError(
            f"{where}: does not fit ({first_line(error)}); use the adapter's own base."
        ) from error
    return adapted.eval()


def _from_original(
    config: LoraConfig, tensors: Mapping[str, Tensor], family: Family
) -> tuple[LoraConfig, dict[str, Tensor]]:
    """An adapter made with a family's original code as one for the stock class.

    Modules are listed by their full path, because a short name may mean two of them: LLaDA's `ff_out` is the output
    of a block and the vocabulary head too.
    """
    lora: set[str] = set()
    saved: set[str] = set()
    for name in tensors:
        module, kind = CHANGE.sub("", name.removeprefix(PREFIX)), CHANGE.search(name)
        if kind is None or kind[1] != "token_adapter":
            (lora if kind and kind[1].startswith("lora_") else saved).add(module)

    def by_module(patterns: Mapping[str, int] | None) -> dict[str, int]:
        """Ranks or alphas by pattern of the original name, as ones by the full new name."""
        found = {name: get_pattern_key(list(patterns or {}), name) for name in lora}
        return {
            f"^{re.escape(_module(name, family))}": patterns[key]
            for name, key in found.items()
            if patterns and key in patterns
        }

    renamed = copy(config)
    renamed.target_modules = sorted(_module(name, family) for name in lora)
    renamed.modules_to_save = sorted(_module(name, family) for name in saved) or None
    renamed.rank_pattern, renamed.alpha_pattern = map(by_module, (config.rank_pattern, config.alpha_pattern))
    renamed.layers_to_transform = renamed.layers_pattern = renamed.exclude_modules = None
    if isinstance(config.trainable_token_indices, dict):
        rows = {name.split(".")[-1]: ids for name, ids in config.trainable_token_indices.items()}
        renamed.trainable_token_indices = {
            family.adapter_modules.get(name, name): ids for name, ids in rows.items()
        }
    return renamed, {PREFIX + _module(name, family): tensor for name, tensor in tensors.items()}


def _module(name: str, family: Family) -> str:
    """A tensor or module of an adapter by its name in transformers' own class, without peft's prefix."""
    return family.adapter_name(f"{name.removeprefix(PREFIX)}.").removesuffix(".")
