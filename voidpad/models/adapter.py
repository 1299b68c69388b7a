"""LoRA adapters: saved by voidpad, or by the original training code of a family, with other tensor names."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file
from torch import Tensor

from voidpad.errors import ConfigError, WeightsError, reason
from voidpad.models.card import read_json
from voidpad.models.families import Family
from voidpad.models.families.family import shown
from voidpad.models.locate import base_of, locate
from voidpad.models.weights import TensorHeader, compare, read_headers, refuse_nan, refuse_pickles
from voidpad.models.without_bitsandbytes import without_bitsandbytes
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.models.model import Model

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
# What peft puts behind the name of the module it changes; a plain weight belongs to modules_to_save.
CHANGE = re.compile(r"\.(lora_\w+|token_adapter|weight|bias)\b.*$")


def is_adapter(folder: Path) -> bool:
    """An adapter folder, as opposed to a whole checkpoint."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def two_adapters(name: str | Path, folder: Path) -> str:
    """Why no adapter can be added to a model that is an adapter itself, and what to give instead."""
    return f"{name}: is an adapter itself, of {base_of(folder)}; for another adapter give that base as the model."


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


def check_adapter_folder(folder: Path, name: str) -> None:
    """Refuse a folder without an adapter, with a word on what it is."""
    if (folder / CONFIG).is_file():
        return
    if (folder / "config.json").is_file():
        raise ConfigError(f"{name}: is a whole model, not an adapter; give it as the model.")
    if (folder / "model" / CONFIG).is_file():
        raise ConfigError(f"{name}: holds no adapter itself; use {Path(name) / 'model'}.")


def base_folder(name: str | Path, *, download: bool = True) -> Path:
    """The folder with the whole model: the base's, if the name leads to an adapter."""
    folder = locate(name, download=download)
    return locate(base_of(folder), download=download) if is_adapter(folder) else folder


def attach(model: "Model", folder: Path) -> tuple[PeftModel, bool]:
    """The model's network with the adapter of this folder around it, not merged.

    Also whether the adapter's names were those of the family's original training code.
    """
    config = _read_config(folder, base=model.name)
    if not (folder / TENSORS).is_file():
        refuse_pickles(folder, TENSORS)
    _check_adapter_sizes(config, read_headers(folder / TENSORS), where=str(folder))
    tensors = load_file(folder / TENSORS)
    refuse_nan(tensors.items(), where=str(folder / TENSORS))
    original = any(_module(name, model.family) != name.removeprefix(PREFIX) for name in tensors)
    if original:
        config, tensors = _from_original(config, tensors, model.family)
    try:
        with nullcontext() if model.quantized else without_bitsandbytes():
            net = PeftModel(model.net, config)
    except Exception as error:  # peft checks how a config fits with many exception types
        raise WeightsError(
            f"{folder}: does not fit {model.name} ({reason(error)}); use the adapter's own base."
        ) from None
    if config.target_parameters:  # peft turns targets inside a mixture of experts into these
        raise WeightsError(
            f"{folder / CONFIG}: adapts the experts, which is not covered; use an adapter of the attention."
        )
    _check(net, tensors, where=f"{folder} on {model.name}")
    rows = model.net.config.vocab_size
    trained = config.trainable_token_indices or []
    for ids in trained.values() if isinstance(trained, dict) else [trained]:
        if not all(type(token) is int and 0 <= token < rows for token in ids):
            raise WeightsError(
                f"{folder / CONFIG}: trainable_token_indices has an id outside the embedding (0 to {rows - 1})."
            )
    set_peft_model_state_dict(net, tensors)
    return net.eval(), original


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


def original_roles(model: "Model", *, where: str) -> Roles:
    """Roles of an adapter that the paper's authors' code trained: its folder has no card to read them from.

    `where` names the adapter in errors.
    """
    find = model.family.adapter_roles
    if find is None:
        return model.roles
    ids = find(model.tokenizer)
    if not ids:
        raise ConfigError(
            f"{where}: was trained by the original {model.family.name} code, and its VOID id cannot be recognised with "
            'this tokenizer; give it: roles={"void": <id>} (--roles void=<id>).'
        )
    return replace(model.roles, **ids)


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


# A pattern as peft's users write them: names, alternatives and `.*`. A repeated group can take exponential time, so
# it is refused: `re` has no time limit.
_SAFE_PATTERN = re.compile(r"(?:[\w.^$|()\\-]|\.\*|\.\+|\\d\+|\[[\w-]{1,20}\]\+?|\?:)*")
_LARGEST_RANK = 65_536


def _check_adapter_sizes(config: LoraConfig, tensors: Mapping[str, TensorHeader], *, where: str) -> None:
    """Refuse ranks and patterns that would take memory or time out of proportion to the adapter's file."""
    ranks = {
        "r": config.r,
        **{f"rank_pattern[{key}]": value for key, value in (config.rank_pattern or {}).items()},
    }
    stored = {size for name, header in tensors.items() if ".lora_" in name for size in header.shape}
    for field, value in ranks.items():
        if type(value) is not int or not 1 <= value <= _LARGEST_RANK:
            raise WeightsError(
                f"{where}: {CONFIG} gives {field}={shown(value)}; a rank is a whole number from 1 to {_LARGEST_RANK}."
            )
    if stored and config.r not in stored and not config.rank_pattern:
        raise WeightsError(
            f"{where}: {CONFIG} gives r={config.r}, but no tensor of {TENSORS} has that size; use its own config."
        )
    alphas = {"lora_alpha": config.lora_alpha, **dict(config.alpha_pattern or {})}
    for field, alpha in alphas.items():
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e9:
            raise WeightsError(f"{where}: {CONFIG} gives {field}={shown(alpha)}; use a number.")


def _check_patterns(values: Mapping[str, Any], *, where: str) -> None:
    """Every regular expression of an adapter_config.json is one that runs in linear time."""
    patterns: list[Any] = [
        values.get(name) for name in ("target_modules", "exclude_modules", "layers_pattern")
    ]
    for name in ("rank_pattern", "alpha_pattern"):
        if not isinstance(values.get(name) or {}, dict):
            raise WeightsError(f"{where}: {name}={shown(values[name])} must map patterns to numbers.")
        patterns += list(values.get(name) or {})
    for pattern in patterns:
        for text in pattern if isinstance(pattern, list) else [pattern]:
            if not isinstance(text, str):
                continue
            if (
                len(text) > 2_000
                or text.count("*") + text.count("+") > 3
                or not _SAFE_PATTERN.fullmatch(text)
            ):
                raise WeightsError(
                    f"{where}: the pattern {shown(text)} is not covered; list the module names instead."
                )


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


def _read_config(folder: Path, *, base: str) -> LoraConfig:
    values = read_json(folder / CONFIG)
    kind = values.get("peft_type")
    if kind != "LORA":
        raise WeightsError(f"{folder / CONFIG}: peft_type {shown(kind)} is not covered; use a LORA adapter.")
    _check_patterns(values, where=str(folder / CONFIG))
    refused = [name for name in _REFUSED if values.get(name)]
    if refused:
        raise WeightsError(
            f"{folder / CONFIG}: {refused[0]}={shown(values[refused[0]])} is not covered; use a plain LoRA adapter."
        )
    try:
        config: LoraConfig = LoraConfig.from_pretrained(str(folder))
    except Exception as error:  # peft checks its fields with many exception types
        raise WeightsError(f"{folder / CONFIG}: damaged adapter config ({reason(error)}).") from None
    config.base_model_name_or_path = base
    config.inference_mode = True
    # Others decompose the base's weights; the file's tensors replace these anyway.
    config.init_lora_weights = True
    return config


def _check(net: PeftModel, tensors: Mapping[str, Tensor], *, where: str) -> None:
    """The file has every tensor the adapter needs, in its shape, and no other."""
    expected = get_peft_model_state_dict(net, save_embedding_layers=False)
    # peft may have stored the untouched rows of a targeted embedding or head as well; the base has them.
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items() if ".base_layer." not in name}
    compare({name: tuple(tensor.shape) for name, tensor in expected.items()}, given, where=where)
