"""The identity of weights: a digest of what a model name (and an adapter) leads to on disk.

Two runs with equal fingerprints used the same tensors and the same settings of the network. The digest does not
depend on the name, so a renamed or copied folder has the same one; a retrained adapter in the same folder does not.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from voidpad.files import read_json, readable
from voidpad.models.adapter import CONFIG, TENSORS, base_of, is_adapter
from voidpad.models.locate import locate
from voidpad.models.weights import weight_files

# Fields of config.json and adapter_config.json that say where a model came from, not what it computes.
_ORIGINS = (
    "_name_or_path",
    "base_model_name_or_path",
    "revision",
    "auto_map",
    "transformers_version",
    "peft_version",
)


def fingerprint(name: str | Path, adapter: str | Path | None = None) -> str:
    """The hex digest of the weights that `load(name, adapter)` would read: every safetensors file is read once."""
    folder, tuned = locate(name), None if adapter is None else locate(adapter)
    if is_adapter(folder):
        folder, tuned = locate(base_of(folder)), folder
    parts = [_settings(read_json(folder / "config.json")), *map(_file_digest, weight_files(folder))]
    if tuned is not None:
        parts += ["adapter", _settings(read_json(tuned / CONFIG)), _file_digest(tuned / TENSORS)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def tensors_fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """The hex digest of named tensors in memory, for models that were never on disk."""
    return hashlib.sha256(save({name: tensor.clone() for name, tensor in tensors.items()})).hexdigest()


def _settings(config: Mapping[str, Any]) -> str:
    """A config file without its origins; lists of names are sorted, because peft writes sets in any order."""
    kept = {name: value for name, value in config.items() if name not in _ORIGINS}
    for name, value in kept.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            kept[name] = sorted(value)
    return json.dumps(kept, sort_keys=True)


def _file_digest(path: Path) -> str:
    """SHA-256 of one file. A sweep asks for the same files in every cell: an unchanged file is read once."""
    with readable(path, "safetensors"):
        state = path.stat()
        return _read_digest(path.resolve(), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1024)
def _read_digest(path: Path, *state: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
