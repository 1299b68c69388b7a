"""Put trained weights into the package: `python -m studies.builtin.ship runs/tiny [--family dream]`.

Copies instruct and the three adapters to assets/tiny-*, names the base by its built-in name, and gives every card
the canvas of the built-in tasks; `voidpad calibrate --save` adds VoidExpansion's thresholds, before or after.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from voidpad.builtin.tasks import CANVAS
from voidpad.errors import DataError
from voidpad.models.card import read_card
from voidpad.models.locate import ARMS, ASSETS, BUILT_IN_FAMILIES

KEPT = (
    "*.safetensors",
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*.json",
    "*.jinja",
)
FIXED = {"canvas": CANVAS, "block": 32}
GROWING = {"canvas": 48, "limit": CANVAS, "block": 16}


def ship(
    source: Path,
    stage: str,
    *,
    name: str = "tiny",
    expansion: Mapping[str, Any] | None = None,
    assets: Path = ASSETS,
) -> Path:
    """One stage's model folder as a built-in model. The old one goes when the new one is complete, not before."""
    made, target = source / stage / "model", assets / f"{name}-{stage}"
    card = read_card(made) if made.is_dir() else None
    files = [file for pattern in KEPT for file in sorted(made.glob(pattern))]
    if card is None or not any(file.suffix == ".safetensors" for file in files):
        raise DataError(f"{made}: no trained model with weights and a card; train the stage {stage} first.")
    expansion = expansion or expansion_of(made) or expansion_of(target)
    beside = assets / f".{target.name}.new"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    for file in files:
        shutil.copyfile(file, beside / file.name)
    adapter = beside / "adapter_config.json"
    if adapter.is_file():
        config = json.loads(adapter.read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = f"{name}-instruct"
        adapter.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    calibration = dict.fromkeys(("original", "void", "smart-crop"), FIXED)
    calibration |= {plan: {**GROWING, "limit": 256} for plan in ("daedal", "rho-eos")}
    calibration["void-expansion"] = {**GROWING, **expansion}
    replace(card, calibration=calibration).write(beside)
    old = assets / f".{target.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    beside.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return target


def expansion_of(folder: Path) -> dict[str, Any]:
    """Thresholds that a calibration has written into a folder's card; shipping again keeps those that ship already."""
    card = read_card(folder) if folder.is_dir() else None
    return dict(card.calibration.get("void-expansion", {})) if card else {}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.ship", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--family", choices=BUILT_IN_FAMILIES, default="llada")
    given = parser.parse_args()
    total = 0
    for stage in ARMS:
        target = ship(given.runs, stage, name=BUILT_IN_FAMILIES[given.family])
        size = sum(file.stat().st_size for file in target.iterdir())
        total += size
        print(f"{target.name}: {size / 1e6:.2f} MB")
    print(f"together {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
