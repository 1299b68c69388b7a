"""voidpad.json and README.md: what a checkpoint or an adapter says about itself beside its weights."""

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from voidpad.errors import RoleError, WeightsError, format_validation_error
from voidpad.files import read_json, store
from voidpad.models.families import FAMILIES
from voidpad.roles import Roles

CARD = "voidpad.json"
README = "README.md"
VERSION = 1
# The plan that fits each padding policy; `original` decodes the canvas to its end and bans nothing.
PLANS = {"void": "void", "rainbow": "original", "eos": "original"}
_ADVICE = {
    "void": "Trained with void padding: decode with plan `void`, or `void-expansion` to let it choose its canvas.",
    "rainbow": "Trained with rainbow padding: decode with plan `original`.",
    "eos": "Trained with eos padding: decode with plan `original` and small blocks, against EOS overflow.",
}


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

    def write(self, folder: Path) -> None:
        """A reader never sees half a card."""
        values = asdict(self) | {"roles": self.roles.stored()}
        if not self.causal_block:
            del values["causal_block"]
        store(folder / CARD, [json.dumps({"version": VERSION, **values}, indent=2) + "\n"])


def read_card(folder: Path) -> Card | None:
    """The folder's card, or None where there is none."""
    path = folder / CARD
    if not path.is_file():
        return None
    values = read_json(path)
    if values.pop("version", None) != VERSION:
        raise WeightsError(
            f"{path}: card version is not {VERSION}; update voidpad or save the checkpoint again."
        )
    try:
        card: Card = TypeAdapter(Card).validate_python(values)
    except (ValidationError, RoleError) as error:
        what = format_validation_error(error) if isinstance(error, ValidationError) else str(error)
        raise WeightsError(f"{path}: {what}; save the checkpoint again.") from None
    if card.family not in FAMILIES or card.padding not in (None, *PLANS):
        raise WeightsError(f"{path}: family {card.family!r} or padding {card.padding!r} is unknown.")
    return card


def write_readme(folder: Path, card: Card, *, base: str | None = None, released: bool = False) -> None:
    """Write the README of an adapter, whose base model `base` names, or of a whole model, released layout or ours."""
    front, what = "library_name: transformers", "A whole model, in transformers' format."
    options = "--model FOLDER"
    if base is not None:
        front, what = f"base_model: {base}\nlibrary_name: peft", f"A LoRA adapter of `{base}`."
        options = f"--model {base} --adapter FOLDER"
    elif released:
        what = "A whole model in the layout of its release; the code that its `auto_map` names is not here."
    text = f"""---
{front}
tags:
- masked-diffusion
- voidpad
---

# Masked diffusion language model of the {card.family} family

{what} {_ADVICE.get(card.padding or "", "")}

    voidpad generate "..." {options}

`{CARD}` holds token roles, padding policy, training recipe and calibrated lengths.
"""
    store(folder / README, [text])
