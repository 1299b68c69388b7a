"""README.md beside weights, for people and for the hub: what this is, and how to use it."""

from pathlib import Path

from voidpad.files import store
from voidpad.models.card import CARD, Card

README = "README.md"
_ADVICE = {
    "void": "Decode with plan `void`, or `void-expansion` to let it choose its canvas.",
    "rainbow": "Decode with plan `original`; its padding tokens never appear in an answer.",
    "eos": "Decode with plan `original` and small blocks: with large ones [EOS] overflow eats the answer.",
}
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
