"""The pictures of docs/analyze.md, from what its commands wrote: one folder of JSON files and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import torch
import typer
from matplotlib.figure import Figure

from voidpad.diagnose import plots
from voidpad.diagnose.eos_prior import Curves
from voidpad.diagnose.overflow import Rate, trajectory
from voidpad.diagnose.trace import read

ARMS = ("tiny-eos", "tiny-void")
RED = "#D55E00"  # beside plots.BLUE: of the colours that stay apart for readers with any colour vision


def pictures(
    folder: Annotated[Path, typer.Argument(help="prior-NAME.json, overflow-NAME.json, NAME.jsonl")],
    out: Annotated[Path, typer.Option(help="where the PNG files go")] = Path("docs/img"),
) -> None:
    """Draw eos-prior.png, overflow.png and overflow-blocks.png."""
    out.mkdir(parents=True, exist_ok=True)
    priors = [parsed(folder / f"prior-{name}.json") for name in ARMS]
    plots.save(plots.prior([curves(priors[0], "eos"), curves(priors[1], "void")]), out / "eos-prior.png")
    last = [trajectory(read(folder / f"{name}.jsonl")[-1]) for name in ARMS]
    plots.save(plots.heat(last), out / "overflow.png")
    sets = {name: rates(parsed(folder / f"overflow-{name}.json")) for name in ARMS}
    plots.save(blocks(sets), out / "overflow-blocks.png")


def parsed(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def curves(found: dict[str, Any], token: str) -> Curves:
    names = (f"F_{token}", f"p_{token}", f"q_{token}", "count")
    parts = [
        [float("nan") if slot[name] is None else slot[name] for slot in found["slots"]] for name in names
    ]
    return Curves(token, *map(torch.tensor, parts))


def rates(found: dict[str, Any]) -> list[Rate]:
    kept = Rate.__dataclass_fields__
    return [Rate(**{name: rate[name] for name in kept}) for rate in found["blocks"]]


@matplotlib.rc_context(plots.LOOK)
def blocks(sets: dict[str, list[Rate]]) -> Figure:
    """Share of overflown answers by block size, a line for each model."""
    figure = Figure(figsize=(5.0, 3.0), layout="constrained")
    axes = figure.subplots()
    for (name, by_block), color in zip(sets.items(), (RED, plots.BLUE), strict=True):
        x = range(len(by_block))
        axes.plot(x, [100 * rate.share for rate in by_block], "o-", color=color, label=name)
        axes.set_xticks(list(x), [str(rate.block) for rate in by_block])
    axes.set(xlabel="block size", ylabel="answers that overflow (%)", ylim=(-3, 103))
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    typer.run(pictures)
