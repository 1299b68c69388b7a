"""voidpad.json: what a checkpoint or an adapter must say about itself beside its weights."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from voidpad.errors import WeightsError
from voidpad.files import store
from voidpad.models.family import FAMILIES
from voidpad.roles import Roles

CARD = "voidpad.json"
VERSION = 1


@dataclass(frozen=True)
class Card:
    """Family, roles and how the checkpoint was made."""

    family: str
    roles: Roles
    padding: str | None = None  # the padding policy it was trained with; None for an untouched release
    recipe: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """A reader never sees half a card."""
        store(folder / CARD, [json.dumps({"version": VERSION, **asdict(self)}, indent=2) + "\n"])


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
        roles: dict[str, Any] = values.pop("roles")
        lists = {name: tuple(ids) for name, ids in roles.items() if isinstance(ids, list)}
        card = Card(roles=Roles(**{**roles, **lists}), **values)
    except (TypeError, KeyError, AttributeError) as error:
        raise WeightsError(f"{path}: not a voidpad card ({error}); save the checkpoint again.") from None
    if card.family not in FAMILIES:
        raise WeightsError(f"{path}: family {card.family!r} is unknown; use one of {', '.join(FAMILIES)}.")
    return card


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that must be there."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file; the checkpoint is incomplete.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WeightsError(f"{path}: damaged JSON ({error}); copy the file again.") from None
    if not isinstance(values, dict):
        raise WeightsError(f"{path}: expected a JSON object; copy the file again.")
    return values
