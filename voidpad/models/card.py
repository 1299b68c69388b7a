"""voidpad.json and README.md: what a checkpoint or an adapter says about itself beside its weights."""

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from voidpad.errors import RoleError, WeightsError, format_validation_error, shown
from voidpad.files import read_json, store
from voidpad.models.families import FAMILIES, Family
from voidpad.roles import Roles

CARD = "voidpad.json"
README = "README.md"
VERSION = 1
# The plan that fits each padding policy; `original` decodes the canvas to its end and bans nothing.
PLANS = {"void": "void", "rainbow": "original", "eos": "original"}
_ADVICE = {
    "void": "Decode with plan `void`, or `void-expansion` to let it choose its canvas.",
    "rainbow": "Decode with plan `original`; its padding tokens never appear in an answer.",
    "eos": "Decode with plan `original` and small blocks: with large ones [EOS] overflow eats the answer.",
}


def _known_padding(name: str) -> str:
    if name not in PLANS:
        raise ValueError(f"must be one of {', '.join(PLANS)}")
    return name


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Card:
    """What voidpad.json beside the weights says: family, roles, how the checkpoint was made, its calibration."""

    family: str
    roles: Roles
    # The padding policy it was trained with; None for an untouched release.
    padding: Annotated[str, AfterValidator(_known_padding)] | None = None
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
        card = TypeAdapter(Card).validate_python(values)
    except ValidationError as error:
        raise WeightsError(f"{path}: {format_validation_error(error)}; save the checkpoint again.") from None
    except RoleError as error:
        raise WeightsError(f"{path}: {error}") from None
    if card.family not in FAMILIES:
        raise WeightsError(
            f"{path}: family {shown(card.family)} is unknown; use one of {', '.join(FAMILIES)}."
        )
    return card


def default_plan(card: Card, family: Family) -> str:
    """The plan to decode a checkpoint with when the user names none, by its family and by its padding.

    A block-causal family has plans of its own. A checkpoint of another family whose card names no padding was not
    trained with VOID: it gets the plan of its release.
    """
    if family.causal_block:
        return next(iter(family.decoding.presets))
    return PLANS[card.padding] if card.padding is not None else family.default_plan


def write_readme(folder: Path, card: Card, *, base: str | None = None, released: bool = False) -> None:
    """Write the README of an adapter, whose base model `base` names, or of a whole model, released layout or ours."""
    padding = f", trained with {card.padding} padding" if card.padding else ""
    if base is not None:
        base = " ".join(base.split())  # it stands in the front matter, line by line
        front, what = [f"base_model: {base}", "library_name: peft"], f"A LoRA adapter of `{base}`."
        given, options = f'"{base}", adapter="FOLDER"', f"--model {base} --adapter FOLDER"
    else:
        front, what = ["library_name: transformers"], "A whole model, in transformers' format."
        given, options = '"FOLDER"', "--model FOLDER"
    if released:
        what = (
            "A whole model in the layout of its release. Code that config.json names (`auto_map`) is not here: copy "
            "the release's .py files beside it if your engine needs them."
        )
    lines = [
        "---",
        *front,
        "tags:",
        "- masked-diffusion",
        "- voidpad",
        "---",
        "",
        f"# Masked diffusion language model of the {card.family} family{padding}",
        "",
        what,
        "",
        f'    voidpad generate "..." {options}',
        f"    voidpad.load({given}).generate(prompts)",
        "",
        *([_ADVICE[card.padding], ""] if card.padding else []),
        f"`{CARD}` holds token roles, padding policy, training recipe and calibrated lengths.",
    ]
    store(folder / README, [line + "\n" for line in lines])
