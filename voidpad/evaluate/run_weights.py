"""Which weights a run uses: their fingerprint, where they are on this machine."""

from dataclasses import replace
from pathlib import Path

from huggingface_hub import snapshot_download

from voidpad.errors import VoidpadError
from voidpad.evaluate.settings import Settings
from voidpad.models.adapter import is_adapter
from voidpad.models.fingerprint import fingerprint
from voidpad.models.locate import ASSETS, BUILT_IN, PATTERNS, base_of


def with_weights(settings: Settings, *, download: bool = False) -> Settings:
    """The settings with the fingerprint of their weights, which stays None where these are not there.

    Without `download` nothing is fetched from the hub.
    """
    model, adapter = settings.model, settings.adapter
    try:
        here = download or on_this_machine(model, adapter)
        return replace(settings, weights=fingerprint(model, adapter) if here else None)
    except (VoidpadError, OSError):  # loading the model says what is wrong with it
        return replace(settings, weights=None)


def on_this_machine(model: str, adapter: str | None = None) -> bool:
    """Whether the files of a model, its base and its adapter can be read without a download."""
    return base_folder(model) is not None and (adapter is None or _folder(adapter) is not None)


def base_folder(name: str) -> Path | None:
    """The folder of a model, or of an adapter's base; None where it is not on this machine."""
    folder = _folder(name)
    return base_folder(base_of(folder)) if folder and is_adapter(folder) else folder


def _folder(name: str) -> Path | None:
    if name in BUILT_IN:
        return ASSETS / name
    try:
        if Path(name).expanduser().is_dir():
            return Path(name).expanduser()
        return Path(snapshot_download(name, allow_patterns=PATTERNS, local_files_only=True))
    except (OSError, ValueError, RuntimeError):  # not downloaded, or no name of a folder or of the hub
        return None
