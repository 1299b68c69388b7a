"""Checkpoints of both families as Models: load, save, merge, random weights."""

from voidpad.models import without_bitsandbytes  # isort: skip  # noqa: F401  before anything imports peft
from voidpad.models.card import Card, read_card
from voidpad.models.family import DREAM, FAMILIES, LLADA, Family
from voidpad.models.fresh import character_tokenizer, random_model
from voidpad.models.load import load, merge, save
from voidpad.models.model import Model, Result

__all__ = [
    "DREAM",
    "FAMILIES",
    "LLADA",
    "Card",
    "Family",
    "Model",
    "Result",
    "character_tokenizer",
    "load",
    "merge",
    "random_model",
    "read_card",
    "save",
]
