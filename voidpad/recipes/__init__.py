"""Recipes that ship with the package, found by name from anywhere.

Training recipes are named by folder and file (`paper/llada-8b-instruct-void`, `tiny/void`), sweeps by file
(`tiny-table1`).
"""

import tomllib
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from voidpad.errors import ConfigError

Kind = Literal["train", "sweep"]
_FOLDERS: dict[Kind, tuple[str, ...]] = {"train": ("paper", "tiny"), "sweep": ("sweeps",)}


class ShippedRecipe(NamedTuple):
    name: str
    kind: Kind
    path: Path

    @property
    def description(self) -> str:
        """A sweep's title; the first sentence of a training recipe's first comment."""
        text = self.path.read_text(encoding="utf-8")
        if self.kind == "sweep":
            return str(tomllib.loads(text)["title"])
        return text.splitlines()[0].lstrip("# ").split(". ")[0].rstrip(".")


def shipped_recipes(kind: Kind) -> list[ShippedRecipe]:
    root = Path(str(files("voidpad"))) / "recipes"
    return [
        ShippedRecipe(path.stem if kind == "sweep" else f"{folder}/{path.stem}", kind, path)
        for folder in _FOLDERS[kind]
        for path in sorted((root / folder).glob("*.toml"))
    ]


def find_recipe(name: str | Path, kind: Kind) -> Path:
    """The file of a recipe: a path to one, or the name of one that ships."""
    if Path(name).is_file():
        return Path(name)
    shipped = {recipe.name: recipe.path for recipe in shipped_recipes(kind)}
    if str(name) in shipped:
        return shipped[str(name)]
    other: Kind = "sweep" if kind == "train" else "train"
    if str(name).removesuffix(".toml") in {recipe.name for recipe in shipped_recipes(other)}:
        raise ConfigError(f"recipe {name}: is a {other} recipe; use `voidpad {other} {name}`.")
    close = get_close_matches(str(name).removesuffix(".toml"), shipped, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ConfigError(
        f"recipe {name}: no such file, and no {kind} recipe of that name; {hint}`voidpad recipes` lists them."
    )
