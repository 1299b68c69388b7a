"""Names users type: built in, a folder, or a hub id, each as a folder on disk."""

import re
from importlib.resources import files
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from voidpad.errors import ModelNotFoundError, WeightsError, first_line, shown

ASSETS = Path(str(files("voidpad"))) / "builtin" / "assets"
# What the names of a family's built-in models begin with.
BUILT_IN_FAMILIES = {"llada": "tiny", "dream": "tiny-dream"}
ARMS = ("instruct", "eos", "rainbow", "void", "void-gap")
BUILT_IN = tuple(f"{name}-{arm}" for name in BUILT_IN_FAMILIES.values() for arm in ARMS)
PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.jinja"]  # never code, never pickles


def locate(name: str | Path, *, download: bool = True) -> Path:
    """The folder of a model or adapter. A hub id is downloaded; without `download` it must have been before."""
    if name in BUILT_IN:
        if not (ASSETS / str(name)).is_dir():
            raise WeightsError(f"{name}: the built-in weights are not in this installation.")
        return ASSETS / str(name)
    try:
        folder = Path(name).expanduser()
        if folder.is_dir():
            return folder
        if folder.exists():
            raise ModelNotFoundError(f"{name}: is a file; give the folder with config.json and the weights.")
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL inside, a home that is unknown
        raise ModelNotFoundError(
            f"{shown(str(name))}: is no name of a folder ({first_line(error)})."
        ) from None
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(name)):
        raise ModelNotFoundError(
            f"{name}: no such folder; use {', '.join(BUILT_IN)}, a folder, or a hub id (owner/name)."
        )
    try:
        return Path(snapshot_download(str(name), allow_patterns=PATTERNS, local_files_only=not download))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else first_line(error)
        raise ModelNotFoundError(f"{name}: no such folder, and the hub gave nothing ({why}).") from error
