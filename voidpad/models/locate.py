"""Names users type: built in, a folder, or a hub id, each as a folder on disk."""

from importlib.resources import files
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from voidpad.errors import ModelNotFoundError, WeightsError, first_line

ASSETS = Path(str(files("voidpad"))) / "builtin" / "assets"
BUILT_IN_FAMILIES = {
    "llada": "tiny",
    "dream": "tiny-dream",
}  # what the names of a family's built-in models begin with
ARMS = ("instruct", "eos", "rainbow", "void", "void-gap")
BUILT_IN = tuple(f"{name}-{arm}" for name in BUILT_IN_FAMILIES.values() for arm in ARMS)
PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.jinja"]  # never code, never pickles


def locate(name: str | Path, *, download: bool = True) -> Path:
    """The folder of a model or adapter. A hub id is downloaded; without `download` it must have been before."""
    if name in BUILT_IN:
        folder = ASSETS / str(name)
        if not folder.is_dir():
            raise WeightsError(
                f"{name}: the built-in weights are not in this installation; install the full package."
            )
        return folder
    try:
        folder = Path(name).expanduser()
        there, is_folder = folder.exists(), folder.is_dir()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL inside, a home that is unknown
        raise ModelNotFoundError(
            f"{ascii(name)[:80]}: is no name of a folder ({first_line(error)})."
        ) from None
    if is_folder:
        return folder
    if there:
        raise ModelNotFoundError(
            f"{name}: is a file; give the folder that holds config.json and the weights."
        )
    return _snapshot(str(name), download=download)


def _snapshot(name: str, *, download: bool) -> Path:
    known = ", ".join(BUILT_IN)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ModelNotFoundError(f"{name}: no such folder; use {known}, a folder, or a hub id (owner/name).")
    try:
        return Path(snapshot_download(name, allow_patterns=PATTERNS, local_files_only=not download))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        if download and constants.HF_HUB_OFFLINE:
            raise ModelNotFoundError(
                f"{name}: no such folder, and not in the hub's cache; HF_HUB_OFFLINE is set, so nothing is downloaded."
            ) from error
        raise ModelNotFoundError(
            f"{name}: no such folder, and the hub gave nothing ({first_line(error)}); check the name and the network."
        ) from error
