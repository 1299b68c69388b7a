"""voidpad.json and README.md: what a checkpoint or an adapter says about itself beside its weights."""

import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from voidpad.errors import RoleError, WeightsError, reason
from voidpad.files import store
from voidpad.models.families import FAMILIES, Family
from voidpad.models.families.family import shown
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
LONGEST = 1_000_000  # the largest number a calibration may give, such as a canvas
# Bytes of the largest JSON file that is read whole: the index of a large checkpoint.
LARGEST_JSON = 100_000_000


@dataclass(frozen=True)
class Card:
    """What voidpad.json beside the weights says: family, roles, how the checkpoint was made, its calibration."""

    family: str
    roles: Roles
    padding: str | None = None  # the padding policy it was trained with; None for an untouched release
    recipe: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)
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
        card = Card(roles=Roles.parse(values.pop("roles")), **values)
    except (TypeError, KeyError, AttributeError, RoleError) as error:
        raise WeightsError(
            f"{path}: not a voidpad card ({reason(error)}); save the checkpoint again."
        ) from None
    if card.padding not in (None, *PLANS):
        raise WeightsError(
            f"{path}: padding {ascii(card.padding)[:60]} is unknown; use one of {', '.join(PLANS)}."
        )
    if not isinstance(card.recipe, dict) or not isinstance(card.calibration, dict):
        raise WeightsError(f"{path}: recipe and calibration must be JSON objects; save the checkpoint again.")
    for plan, values in card.calibration.items():
        _check_calibration(values, where=f"{path}: calibration of {ascii(plan)[:60]}")
    if not isinstance(card.family, str) or card.family not in FAMILIES:
        raise WeightsError(
            f"{path}: family {ascii(card.family)[:60]} is unknown; use one of {', '.join(FAMILIES)}."
        )
    check_causal_block(card.causal_block, FAMILIES[card.family], where=str(path))
    return card


def _check_calibration(values: Any, *, where: str) -> None:
    """Calibrated plan fields are plain values, and lengths that a machine could hold."""
    if not isinstance(values, dict):
        raise WeightsError(f"{where}: must be a JSON object; calibrate the checkpoint again.")
    for name, value in values.items():
        if not isinstance(value, str | bool | int | float):
            raise WeightsError(f"{where}: {name}={ascii(value)[:60]} is not a plain value; calibrate again.")
        if type(value) is int and abs(value) > LONGEST:
            raise WeightsError(f"{where}: {name}={ascii(value)[:60]} is above {LONGEST}; calibrate again.")


def check_causal_block(size: Any, family: Family, *, where: str) -> None:
    """Refuse a size of blocks that the family's attention cannot have."""
    if family.causal_block and (type(size) is not int or not 1 <= size <= LONGEST):
        raise WeightsError(
            f"{where}: causal_block={shown(size)} must be a whole number from 1: the attention of family "
            f"{family.name!r} is block-causal."
        )
    if not family.causal_block and size != 0:
        raise WeightsError(
            f"{where}: causal_block={shown(size)}, but family {family.name!r} has full attention; drop it."
        )


def default_plan(card: Card | None, family: Family | None = None) -> str:
    """The plan to decode a checkpoint with when the user names none, by its family and by its padding.

    A block-causal family has a plan of its own. A checkpoint of another family without a card, or whose card names
    no padding, was not trained with VOID: its plan is `original`.
    """
    family = FAMILIES[card.family] if family is None and card is not None else family
    if family is not None and family.causal_block:
        return next(iter(family.decoding.presets))
    return PLANS[card.padding] if card is not None and card.padding is not None else "original"


_WHOLE = {
    False: "A whole model, in transformers' format.",
    True: "A whole model in the layout of its release. Code that config.json names (`auto_map`) is not here: copy the "
    "release's .py files beside it if your engine needs them.",
}


def write_readme(folder: Path, card: Card, *, base: str | None = None, released: bool = False) -> None:
    """Write the README of an adapter, whose base model `base` names, or of a whole model, released layout or ours."""
    base = None if base is None else " ".join(base.split())  # it stands in the front matter, line by line
    padding = f", trained with {card.padding} padding" if card.padding else ""
    given = f'"{base}", adapter="FOLDER"' if base else '"FOLDER"'
    options = f"--model {base} --adapter FOLDER" if base else "--model FOLDER"
    front = [f"base_model: {base}", "library_name: peft"] if base else ["library_name: transformers"]
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
        f"A LoRA adapter of `{base}`." if base else _WHOLE[released],
        "",
        f'    voidpad generate "..." {options}',
        f"    voidpad.load({given}).generate(prompts)",
        "",
        *([_ADVICE[card.padding], ""] if card.padding in _ADVICE else []),
        f"`{CARD}` holds token roles, padding policy, training recipe and calibrated lengths.",
    ]
    store(folder / README, [line + "\n" for line in lines])


def check_plain_files(folder: Path) -> None:
    """Refuse a folder in which a name is a pipe, a socket or a device: reading it would hang or never end."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise WeightsError(f"{folder}: cannot be read ({error.strerror}).") from None
    for entry in entries:
        try:
            mode = entry.stat().st_mode
        except OSError:  # a link that leads nowhere; it matters only if the file is needed
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise WeightsError(f"{entry}: is not a plain file; remove it from the folder.")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that must be there."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise WeightsError(f"{path}: is not a plain file; copy the file again.")
        if status.st_size > LARGEST_JSON:
            raise WeightsError(
                f"{path}: has {status.st_size:,} bytes, more than any such file needs; copy it again."
            )
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file; the checkpoint is incomplete.") from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, too many digits, deep nesting
        raise WeightsError(f"{path}: damaged JSON ({reason(error)}); copy the file again.") from None
    if not isinstance(values, dict):
        raise WeightsError(f"{path}: expected a JSON object; copy the file again.")
    return values
