"""From the name that a user types to the folders of a model and its adapter, and the fingerprint of their weights."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import safe_open

from voidpad.errors import ConfigError, ModelNotFoundError, WeightsError, first_line, printable
from voidpad.files import read_json, readable
from voidpad.models.card import Card, read_card
from voidpad.models.weights import weight_files

ASSETS = Path(str(files("voidpad"))) / "builtin" / "assets"
# What the names of a family's built-in models begin with.
BUILT_IN_FAMILIES = {"llada": "tiny", "dream": "tiny-dream"}
ARMS = ("instruct", "eos", "rainbow", "void", "void-gap")
BUILT_IN = tuple(f"{name}-{arm}" for name in BUILT_IN_FAMILIES.values() for arm in ARMS)
PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.jinja"]  # never code, never pickles
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_TENSORS = "adapter_model.safetensors"
# Settings of peft that the decoder cannot follow; target_parameters adapts the experts of a mixture.
_NOT_COVERED = ("target_parameters", "layer_replication", "alora_invocation_tokens")
# Fields of config.json and adapter_config.json that say where a model came from, not what it computes.
_ORIGINS = (
    "_name_or_path",
    "base_model_name_or_path",
    "revision",
    "auto_map",
    "transformers_version",
    "peft_version",
)


def locate(name: str | Path, *, download: bool = True) -> Path:
    """The folder of a model or adapter. A hub id is downloaded; without `download` it must have been before."""
    folder = ASSETS / str(name) if name in BUILT_IN else Path(os.path.expanduser(name))
    if os.path.isdir(folder):
        return folder
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(name)) or os.path.exists(folder):
        raise ModelNotFoundError(
            f"{printable(str(name))}: no such folder; use {', '.join(BUILT_IN)}, a folder, or a hub id (owner/name)."
        )
    try:
        return Path(snapshot_download(str(name), allow_patterns=PATTERNS, local_files_only=not download))
    except (OSError, ValueError) as error:  # those of the hub are kinds of these
        raise ModelNotFoundError(f"{name}: no such folder, and the hub: {first_line(error)}") from error


def is_adapter(folder: Path) -> bool:
    """An adapter folder, as opposed to a whole checkpoint."""
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def refuse_adapter(name: str) -> None:
    """Refuse an adapter as the model of a new one, which would belong to weights that were saved nowhere."""
    if is_adapter(locate(name)):
        raise ConfigError(
            f"{name}: is an adapter; fine-tune its base, or make one model of both with `voidpad merge {name} "
            "--out merged` and fine-tune that."
        )


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder as its small files describe it; its tensors have not been read."""

    folder: Path
    config: Mapping[str, Any]  # adapter_config.json as it stands
    card: Card | None
    tensors: tuple[str, ...]  # names in the file

    @property
    def trained_tokens(self) -> frozenset[int]:
        """Ids whose rows of the embedding or of the head were trained."""
        indices = self.config.get("trainable_token_indices") or []
        lists = indices.values() if isinstance(indices, dict) else [indices]
        return frozenset(token for ids in lists for token in ids)


@dataclass(frozen=True)
class Source:
    """The folders that the weights of a checkpoint come from."""

    name: str  # of the whole model, as the user or the adapter wrote it
    folder: Path  # of the whole model
    adapter: Adapter | None = None

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The config.json of the whole model as it stands."""
        return read_json(self.folder / "config.json")

    @property
    def fingerprint(self) -> str:
        """The identity of the weights: a digest of the tensors and the settings of the network.

        It does not depend on names, so a renamed or copied folder has the same one; a retrained adapter in the same
        folder does not.
        """
        parts = [_settings(self.config), *map(_digest, weight_files(self.folder))]
        if self.adapter is not None:
            tensors = _digest(self.adapter.folder / ADAPTER_TENSORS)
            parts += ["adapter", _settings(self.adapter.config), tensors]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def find_source(name: str | Path, adapter: str | Path | None = None, *, download: bool = True) -> Source:
    """What a model's name and its adapter's lead to. The name of an adapter alone leads to its base too."""
    folder = locate(name, download=download)
    if not is_adapter(folder):
        tuned = None if adapter is None else _open_adapter(locate(adapter, download=download))
        return Source(str(name), folder, tuned)
    if adapter is not None:
        raise ConfigError(f"{name}: is an adapter itself; name its base as the model.")
    tuned = _open_adapter(folder)
    base = tuned.config.get("base_model_name_or_path")
    if not base:
        raise WeightsError(
            f"{folder}: {ADAPTER_CONFIG} names no base; give the base and this as its adapter."
        )
    return Source(base, locate(base, download=download), tuned)


def _open_adapter(folder: Path) -> Adapter:
    """The adapter of a folder; one that is no LoRA adapter, or that our base networks cannot carry, is refused."""
    config = read_json(folder / ADAPTER_CONFIG)
    refused = [field for field in _NOT_COVERED if config.get(field)]
    if refused or config.get("peft_type") != "LORA":
        raise WeightsError(
            f"{folder / ADAPTER_CONFIG}: {', '.join(refused) or 'peft_type'} is not covered; use a plain LoRA adapter."
        )
    path = folder / ADAPTER_TENSORS
    with readable(path, "safetensors"), safe_open(path, framework="pt") as file:
        tensors = tuple(file.keys())
    return Adapter(folder, config, read_card(folder), tensors)


def _settings(config: Mapping[str, Any]) -> str:
    """A config file without its origins; lists of names are sorted, because peft writes sets in any order."""
    kept = {name: value for name, value in config.items() if name not in _ORIGINS}
    for name, value in kept.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            kept[name] = sorted(value)
    return json.dumps(kept, sort_keys=True)


def _digest(path: Path) -> str:
    """SHA-256 of one file. A sweep asks for the same files in every cell: an unchanged file is read once."""
    with readable(path, "safetensors"):
        state = path.stat()
        return _file_digest(path.resolve(), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1024)
def _file_digest(path: Path, *state: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
