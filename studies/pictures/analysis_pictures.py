"""The pictures of docs/analyze.md, from what its commands wrote: one folder of JSON files and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from voidpad.commands.analyze_overflow import title
from voidpad.diagnose import plots
from voidpad.diagnose.eos_prior import Curves
from voidpad.diagnose.overflow import Rate, trajectory
from voidpad.diagnose.trace import read

ARMS = ("tiny-eos", "tiny-void")


def pictures(
    folder: Annotated[Path, typer.Argument(help="prior-NAME.json, overflow-NAME.json, NAME.jsonl")],
    out: Annotated[Path, typer.Option(help="where the PNG files go")] = Path("docs/img"),
) -> None:
    """Draw eos-prior.png, overflow.png and overflow-blocks.png."""
    out.mkdir(parents=True, exist_ok=True)
    priors = [parsed(folder / f"prior-{name}.json") for name in ARMS]
    plots.save(plots.prior([curves(priors[0], "eos"), curves(priors[1], "void")]), out / "eos-prior.png")
    last = [trajectory(read(folder / f"{name}.jsonl")[-1]) for name in ARMS]
    plots.save(plots.heat(last, titles=[title(one) for one in last]), out / "overflow.png")
    sets = {name: rates(parsed(folder / f"overflow-{name}.json")) for name in ARMS}
    plots.save(plots.blocks(sets), out / "overflow-blocks.png")


def parsed(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def curves(found: dict[str, Any], token: str) -> Curves:
    parts = [[float("nan") if v is None else v for v in found[token][name]] for name in ("F", "p", "q")]
    return Curves(token, *(torch.tensor(part) for part in parts), torch.tensor(found[token]["count"]))


def rates(found: dict[str, Any]) -> list[Rate]:
    kept = Rate.__dataclass_fields__
    return [Rate(**{name: rate[name] for name in kept}) for rate in found["blocks"]]


if __name__ == "__main__":
    typer.run(pictures)
