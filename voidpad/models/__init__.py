"""Checkpoints as Models: load, save, merge, adapters, random weights, and the families they belong to.

`checkpoint` opens and loads one, with the help of `locate` (from a name to folders), `card` (voidpad.json), `families`
(what each family's release looks like), `text` (tokenizer and chat template), `weights`, `adapter` and `device`.
`model` answers prompts, `fill` and `decide` are its other two ways to answer, and `save` writes it to a folder again.
"""

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
