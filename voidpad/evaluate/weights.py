"""Which weights a run uses: their fingerprint, where they are on this machine."""

from dataclasses import replace
from pathlib import Path

from huggingface_hub import snapshot_download

from voidpad.errors import VoidpadError
from voidpad.evaluate.settings import Settings
from voidpad.models.adapter import is_adapter
from voidpad.models.fingerprint import fingerprint
from voidpad.models.locate import BUILT_IN, PATTERNS, base_of


def with_weights(settings: Settings, *, download: bool = False) -> Settings:
    """The settings with the fingerprint of their weights, which stays None where these are not there.

    Without `download` nothing is fetched from the hub.
    """
    names = [settings.model, *([settings.adapter] if settings.adapter else [])]
    try:
        here = download or all(map(_is_here, names))
        return replace(settings, weights=fingerprint(*names) if here else None)
    except (VoidpadError, OSError):  # loading the model says what is wrong with it
        return replace(settings, weights=None)


def _is_here(name: str) -> bool:
    folder = Path(name).expanduser()
    if name in BUILT_IN:
        return True
    if folder.is_dir():
        return not is_adapter(folder) or _is_here(base_of(folder))
    try:
        snapshot_download(name, allow_patterns=PATTERNS, local_files_only=True)
    except (OSError, ValueError):  # not downloaded, or no name of the hub
        return False
    return True
