"""LoRA adapters: saved by voidpad, or by the original training code of a family, with other tensor names."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from voidpad.errors import ConfigError, WeightsError, first_line, shown
from voidpad.files import read_json
from voidpad.models.card import Card, read_card
from voidpad.models.families import Family
from voidpad.models.locate import locate
from voidpad.models.weights import compare, read_headers, refuse_nan, refuse_pickles
from voidpad.models.without_bitsandbytes import without_bitsandbytes

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
# What peft puts behind the name of the module it changes; a plain weight belongs to modules_to_save.
CHANGE = re.compile(r"\.(lora_\w+|token_adapter|weight|bias)\b.*$")
# Settings that rebuild the base network or start a computation of their own; none belongs to a trained adapter.
_REFUSED = (
    "layer_replication",
    "megatron_config",
    "loftq_config",
    "eva_config",
    "corda_config",
    "arrow_config",
    "alora_invocation_tokens",
    "target_parameters",
)


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder as its small files describe it; its tensors have not been read."""

    folder: Path
    name: str  # as the user typed it
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
    if not isinstance(base, str) or not base:
        raise WeightsError(f"{folder}: {CONFIG} names no base; load the base and pass adapter={folder}.")
    return base


def base_folder(name: str | Path, *, download: bool = True) -> Path:
    """The folder with the whole model: the base's, if the name leads to an adapter."""
    folder = locate(name, download=download)
    return locate(base_of(folder), download=download) if is_adapter(folder) else folder


def refuse_adapter(name: str) -> None:
    """Refuse an adapter as the model of a new one, which would belong to weights that were saved nowhere."""
    folder = locate(name)
    if not is_adapter(folder):
        return
    base = base_of(folder)
    raise ConfigError(
        f"{name}: is an adapter of {base}; fine-tune that (model.name, --model {base}), or make one model of both with "
        f"`voidpad merge {name} --out merged` and fine-tune the merged one."
    )


def open_adapter(folder: Path, name: str) -> Adapter:
    """The adapter of a folder; one that is no LoRA adapter, or that our base networks cannot carry, is refused."""
    if not (folder / CONFIG).is_file() and (folder / "config.json").is_file():
        raise ConfigError(f"{name}: is a whole model, not an adapter; give it as the model.")
    if not (folder / CONFIG).is_file() and (folder / "model" / CONFIG).is_file():
        raise ConfigError(f"{name}: holds no adapter itself; use {Path(name) / 'model'}.")
    config = read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        kind = shown(config.get("peft_type"))
        raise WeightsError(f"{folder / CONFIG}: peft_type {kind} is not covered; use a LORA adapter.")
    refused = next((name for name in _REFUSED if config.get(name)), None)
    if refused:
        raise WeightsError(
            f"{folder / CONFIG}: {refused}={shown(config[refused])} is not covered; use a plain LoRA adapter."
        )
    if not (folder / TENSORS).is_file():
        refuse_pickles(folder, TENSORS)
    return Adapter(folder, name, config, read_card(folder), tuple(read_headers(folder / TENSORS)))


def attach(
    net: PreTrainedModel, adapter: Adapter, family: Family, base: str, *, quantized: bool
) -> PeftModel:
    """The network with the adapter around it, not merged. `base` is the name of the network's checkpoint."""
    folder = adapter.folder
    config = _peft_config(adapter, base)
    tensors = load_file(folder / TENSORS)
    refuse_nan(tensors.items(), where=str(folder / TENSORS))
    if adapter.original(family):
        config, tensors = _from_original(config, tensors, family)
    rows = net.config.vocab_size
    if any(not 0 <= token < rows for token in adapter.trained_tokens):
        raise WeightsError(
            f"{folder / CONFIG}: trainable_token_indices has an id outside the embedding (0 to {rows - 1})."
        )
    try:
        with nullcontext() if quantized else without_bitsandbytes():
            adapted = PeftModel(net, config)
    except Exception as error:  # peft checks how a config fits with many exception types
        raise WeightsError(
            f"{folder}: does not fit {base} ({first_line(error)}); use the adapter's own base."
        ) from None
    if config.target_parameters:  # peft turns targets inside a mixture of experts into these
        raise WeightsError(
            f"{folder / CONFIG}: adapts the experts, which is not covered; use an adapter of the attention."
        )
    expected = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    # peft may have stored the untouched rows of a targeted embedding or head as well; the base has them.
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items() if ".base_layer." not in name}
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    compare(shapes, given, where=f"{folder} on {base}")
    set_peft_model_state_dict(adapted, tensors)
    return adapted.eval()


def _peft_config(adapter: Adapter, base: str) -> LoraConfig:
    try:
        values = {name: value for name, value in adapter.config.items() if name != "runtime_config"}
        config: LoraConfig = LoraConfig.from_peft_type(**LoraConfig.check_kwargs(**values))
    except Exception as error:  # peft checks its fields with many exception types
        raise WeightsError(
            f"{adapter.folder / CONFIG}: damaged adapter config ({first_line(error)})."
        ) from None
    config.base_model_name_or_path = base
    config.inference_mode = True
    config.init_lora_weights = (
        True  # others decompose the base's weights; the file's tensors replace these anyway
    )
    return config


# Adapters of a family's original code


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
        (lora if kind and kind[1].startswith("lora_") else saved).add(module)
        if kind and kind[1] == "token_adapter":
            saved.discard(module)
    renamed = deepcopy(config)
    renamed.target_modules = sorted(_module(name, family) for name in lora)
    renamed.modules_to_save = sorted(_module(name, family) for name in saved) or None
    renamed.rank_pattern = _patterns(config.rank_pattern or {}, lora, family)
    renamed.alpha_pattern = _patterns(config.alpha_pattern or {}, lora, family)
    renamed.layers_to_transform = renamed.layers_pattern = renamed.exclude_modules = None
    if isinstance(config.trainable_token_indices, dict):
        rows = {name.split(".")[-1]: ids for name, ids in config.trainable_token_indices.items()}
        renamed.trainable_token_indices = {
            family.adapter_modules.get(name, name): ids for name, ids in rows.items()
        }
    return renamed, {PREFIX + _module(name, family): tensor for name, tensor in tensors.items()}


def _module(name: str, family: Family) -> str:
    """A tensor or module of an adapter by its name in transformers' own class, without peft's prefix."""
    bare = name.removeprefix(PREFIX)
    return family.adapter_name(f"{bare}.").removesuffix(".")


def _patterns(patterns: Mapping[str, int], modules: set[str], family: Family) -> dict[str, int]:
    """Ranks or alphas by pattern of the original name, as ones by the full new name."""
    matched = {name: get_pattern_key(list(patterns), name) for name in modules}
    return {
        f"^{re.escape(_module(name, family))}": patterns[key]
        for name, key in matched.items()
        if key in patterns
    }
