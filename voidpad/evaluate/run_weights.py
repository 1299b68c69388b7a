"""Which weights a run uses: their fingerprint, where they are on this machine."""

from dataclasses import replace

from voidpad.errors import VoidpadError
from voidpad.evaluate.settings import Settings
from voidpad.models.adapter import base_folder
from voidpad.models.fingerprint import fingerprint
from voidpad.models.locate import NotHereError, locate


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
    try:
        base_folder(model, download=False)
        if adapter is not None:
            locate(adapter, download=False)
    except NotHereError:
        return False
    return True
