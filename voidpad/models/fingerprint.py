"""The identity of weights: a digest of what a model name (and an adapter) leads to on disk.

Two runs with equal fingerprints used the same tensors and the same settings of the network. The digest does not
depend on the name, so a renamed or copied folder has the same one; a retrained adapter in the same folder does not.
"""

import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, WeightsError
from voidpad.models.adapter import CONFIG as ADAPTER_CONFIG
from voidpad.models.adapter import TENSORS as ADAPTER_TENSORS
from voidpad.models.adapter import is_adapter, two_adapters
from voidpad.models.card import read_json
from voidpad.models.locate import base_of, locate
from voidpad.models.weights import weight_files

# Fields of config.json and adapter_config.json that say where a model came from, not what it computes.
_ORIGINS = frozenset(
    [
        "_name_or_path",
        "base_model_name_or_path",
        "revision",
        "auto_map",
        "transformers_version",
        "peft_version",
    ]
)
# A file changed more recently than this is not cached: it may change again within one tick of the clock.
_SETTLED_S = 2.0


def fingerprint(name: str | Path, adapter: str | Path | None = None) -> str:
    """The hex digest of the weights that `load(name, adapter)` would read.

    The first call reads every safetensors file once (seconds for 8B parameters); later calls take the digests of
    unchanged files from the user's cache folder.
    """
    folder = locate(name)
    if is_adapter(folder):
        if adapter is not None:
            raise ConfigError(two_adapters(name, folder))
        folder, adapter = locate(base_of(folder)), folder
    parts = [_settings(folder / "config.json"), *map(_file_digest, weight_files(folder))]
    if adapter is not None:
        tuned = locate(adapter)
        parts += ["adapter", _settings(tuned / ADAPTER_CONFIG), _file_digest(tuned / ADAPTER_TENSORS)]
    return _digest(parts)


def tensors_fingerprint(tensors: Iterable[tuple[str, Any]]) -> str:
    """The hex digest of named tensors in memory, for models that were never on disk."""
    import torch

    parts: list[str] = []
    for name, tensor in sorted(tensors):
        plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        content = hashlib.sha256(plain.numpy()).hexdigest()
        parts += [name, str(tensor.dtype), str(list(tensor.shape)), content]
    return _digest(parts)


def _digest(parts: list[str]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _settings(path: Path) -> str:
    """A config file without its origins; lists of names are sorted, because peft writes sets."""
    kept = {name: value for name, value in read_json(path).items() if name not in _ORIGINS}
    for name, value in kept.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            kept[name] = sorted(value)
    return json.dumps(kept, sort_keys=True)


def _file_digest(path: Path) -> str:
    """SHA-256 of one file, from the cache while path, size, times and inode are those of the last reading."""
    try:
        resolved = path.resolve(strict=True)
        before = resolved.stat()
        if not stat.S_ISREG(before.st_mode):
            raise WeightsError(f"{path}: is not a plain file; copy the checkpoint again.")
        state = [str(resolved), before.st_size, before.st_mtime_ns, before.st_ctime_ns, before.st_ino]
        entry = cache_folder() / f"{hashlib.sha256(str(resolved).encode()).hexdigest()[:32]}.json"
        digest = _cached(entry, state)
        if digest is None:
            with resolved.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if time.time() - before.st_mtime > _SETTLED_S:
                _remember(entry, state, digest)
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file; the checkpoint is incomplete, copy it again.") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise WeightsError(f"{path}: cannot be read ({error}); check its permissions.") from None
    return digest


def cache_folder() -> Path:
    """Where digests of unchanged files are kept: one small JSON file for each weights file."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(home) / "voidpad" / "fingerprints"


def _cached(entry: Path, state: list[Any]) -> str | None:
    """The digest stored for a file in exactly this state; None when there is none or the entry is damaged."""
    try:
        stored = json.loads(entry.read_bytes())
        digest = stored["sha256"]
        known = stored["state"] == state and isinstance(digest, str) and len(bytes.fromhex(digest)) == 32
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return digest if known else None


def _remember(entry: Path, state: list[Any], digest: str) -> None:
    """Store a file's digest beside the state (size, times) for which it holds.

    A cache folder that cannot be written only costs time at the next call.
    """
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may write at once.
        handle, draft = tempfile.mkstemp(dir=entry.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"state": state, "sha256": digest}, file)
            os.replace(draft, entry)
        except OSError:
            os.unlink(draft)
    except OSError:
        return
