"""voidpad.json: what a checkpoint or an adapter says about itself beside its weights."""

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from voidpad.errors import WeightsError
from voidpad.files import readable, store
from voidpad.models.families import FAMILIES
from voidpad.roles import Roles

CARD = "voidpad.json"
# The plan that fits each padding policy; `original` decodes the canvas to its end and bans nothing.
PLANS = {"void": "void", "rainbow": "original", "eos": "original"}
# The role whose tokens a padding policy teaches a model; none for one that pads with EOS.
TAUGHT_ROLES = {"void": "void", "rainbow": "rainbow"}


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Card:
    """What voidpad.json beside the weights says: family, roles, how the checkpoint was made, its calibration."""

    family: str
    roles: Roles
    # The padding policy it was trained with; None for an untouched release.
    padding: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)  # plan -> field -> value
    causal_block: int = 0  # size of the blocks of block-causal attention; 0 for full attention
    version: Literal[1] = 1  # of the file

    def write(self, folder: Path) -> None:
        """A reader never sees half a card."""
        values = {"version": self.version} | asdict(self) | {"roles": self.roles.stored()}
        if not self.causal_block:
            del values["causal_block"]
        store(folder / CARD, [json.dumps(values, indent=2) + "\n"])


def read_card(folder: Path) -> Card | None:
    """The folder's card, or None where there is none."""
    path = folder / CARD
    if not path.is_file():
        return None
    with readable(path, "card"):
        card: Card = TypeAdapter(Card).validate_json(path.read_bytes())
    if card.family not in FAMILIES or card.padding not in (None, *PLANS):
        raise WeightsError(f"{path}: family {card.family!r} or padding {card.padding!r} is unknown.")
    return card
