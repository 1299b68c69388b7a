"""Checkpoints as Models: load, save, merge, adapters, random weights, and the families they belong to."""

from voidpad.models import without_bitsandbytes  # isort: skip  # noqa: F401  before anything imports peft
from voidpad.decode.outcome import Result
from voidpad.models.card import Card, read_card
from voidpad.models.checkpoint import Checkpoint, PreparedPrompt, load, open_checkpoint
from voidpad.models.device import DeviceConfig
from voidpad.models.families import DREAM, FAMILIES, LLADA, Family
from voidpad.models.fresh import character_tokenizer, random_model
from voidpad.models.model import Model
from voidpad.models.save import export, merge, save

__all__ = [
    "DREAM",
    "FAMILIES",
    "LLADA",
    "Card",
    "Checkpoint",
    "DeviceConfig",
    "Family",
    "Model",
    "PreparedPrompt",
    "Result",
    "character_tokenizer",
    "export",
    "load",
    "merge",
    "open_checkpoint",
    "random_model",
    "read_card",
    "save",
]
