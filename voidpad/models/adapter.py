"""LoRA adapters: ours, or ones whose tensor names follow the original LLaDA code."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file
from torch import Tensor

from voidpad.errors import WeightsError
from voidpad.models.card import read_json
from voidpad.models.family import rename
from voidpad.models.locate import base_of, locate
from voidpad.models.weights import compare, read_headers, refuse_pickles
from voidpad.models.without_bitsandbytes import without_bitsandbytes

if TYPE_CHECKING:
    from voidpad.models.model import Model

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
ORIGINAL = f"{PREFIX}model.transformer."
# What peft puts behind the name of the module it changes; a plain weight belongs to modules_to_save.
CHANGE = re.compile(r"\.(lora_\w+|token_adapter|weight|bias)\b.*$")


def is_adapter(folder: Path) -> bool:
    """An adapter folder, as opposed to a whole checkpoint."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_folder(name: str | Path) -> Path:
    """The folder with the whole model: the base's, if the name leads to an adapter."""
    folder = locate(name)
    return locate(base_of(folder)) if is_adapter(folder) else folder


def attach(model: "Model", folder: Path) -> PeftModel:
    """The model's network with the adapter of this folder around it, not merged."""
    config = _read_config(folder, base=model.name)
    if not (folder / TENSORS).is_file():
        refuse_pickles(folder, TENSORS)
    read_headers(folder / TENSORS)
    tensors = load_file(folder / TENSORS)
    if any(name.startswith(ORIGINAL) for name in tensors):
        config, tensors = from_original(config, tensors)
    try:
        with nullcontext() if model.quantized else without_bitsandbytes():
            net = PeftModel(model.net, config)
    except ValueError as error:
        raise WeightsError(
            f"{folder}: does not fit {model.name} ({_line(error)}); use the adapter's own base."
        ) from None
    _check(net, tensors, where=f"{folder} on {model.name}")
    set_peft_model_state_dict(net, tensors)
    return net.eval()


def from_original(config: LoraConfig, tensors: Mapping[str, Tensor]) -> tuple[LoraConfig, dict[str, Tensor]]:
    """An adapter for the original LLaDA code as one for transformers' Llama.

    `ff_out` is a block's output there and the vocabulary head too, so modules are listed by their full path.
    """
    lora: set[str] = set()
    saved: set[str] = set()
    for name in tensors:
        module, kind = CHANGE.sub("", name.removeprefix(PREFIX)), CHANGE.search(name)
        (lora if kind and kind[1].startswith("lora_") else saved).add(module)
        if kind and kind[1] == "token_adapter":
            saved.discard(module)
    found = deepcopy(config)
    found.target_modules = sorted(map(_module, lora))
    found.modules_to_save = sorted(map(_module, saved)) or None
    found.rank_pattern = _patterns(config.rank_pattern or {}, lora)
    found.alpha_pattern = _patterns(config.alpha_pattern or {}, lora)
    found.layers_to_transform = found.layers_pattern = found.exclude_modules = None
    if isinstance(config.trainable_token_indices, dict):
        known = {"wte": "embed_tokens", "ff_out": "lm_head"}
        rows = config.trainable_token_indices.items()
        found.trainable_token_indices = {known.get(name.split(".")[-1], name): ids for name, ids in rows}
    return found, {PREFIX + rename(name.removeprefix(PREFIX)): tensor for name, tensor in tensors.items()}


def _module(name: str) -> str:
    return rename(f"{name}.").removesuffix(".")


def _patterns(patterns: Mapping[str, int], modules: set[str]) -> dict[str, int]:
    """Ranks or alphas by pattern of the original name, as ones by the full new name."""
    matched = {name: get_pattern_key(list(patterns), name) for name in modules}
    return {f"^{re.escape(_module(name))}": patterns[key] for name, key in matched.items() if key in patterns}


def _read_config(folder: Path, *, base: str) -> LoraConfig:
    kind = read_json(folder / CONFIG).get("peft_type")
    if kind != "LORA":
        raise WeightsError(f"{folder / CONFIG}: peft_type {kind!r} is not covered; use a LORA adapter.")
    try:
        config = LoraConfig.from_pretrained(str(folder))
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{folder / CONFIG}: damaged adapter config ({_line(error)}).") from None
    config.base_model_name_or_path = base
    config.inference_mode = True
    return config


def _check(net: PeftModel, tensors: Mapping[str, Tensor], *, where: str) -> None:
    """The file has every tensor the adapter needs, in its shape, and no other."""
    wanted = get_peft_model_state_dict(net, save_embedding_layers=False)
    # peft may have stored the untouched rows of a targeted embedding or head as well; the base has them.
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items() if ".base_layer." not in name}
    compare({name: tuple(tensor.shape) for name, tensor in wanted.items()}, given, where=where)


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
