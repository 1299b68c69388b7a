"""`voidpad demo`: [EOS] overflow, and its absence, in a few minutes.

The demo is the sweep `tiny-demo`, run like any other sweep into a folder of its own; `--full` is `tiny-score`.
"""

from __future__ import annotations

import base64
import html
import io
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from voidpad.commands.options import BuiltInFamily
from voidpad.commands.ui import err, file_to_write, out
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.evaluate.config import Resources
    from voidpad.experiments.sweep_recipe import SweepCell, SweepRecipe

HEADS = ("model and plan", "block", "right", "95 %", "answer", "passes", "probes", "seconds", "full run")


def demo(
    problems: Annotated[int, typer.Option(help="test problems per task", min=1)] = 3,
    full: Annotated[
        bool, typer.Option("--full", help="128 problems per task, all blocks and ablations")
    ] = False,
    family: Annotated[BuiltInFamily, typer.Option(help="of the built-in models")] = BuiltInFamily.llada,
    report: Annotated[Path, typer.Option(help="HTML report to write", callback=file_to_write)] = Path(
        "voidpad-demo.html"
    ),
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    weak_sandbox: Annotated[
        bool, typer.Option(help="run generated code with the layers this machine has")
    ] = False,
) -> None:
    """Decode the same problems with EOS, Rainbow and VOID padding at a small block and at block = canvas."""
    try:
        import lm_eval  # noqa: F401
    except ImportError:
        raise ConfigError(
            "the demo needs lm-eval; install voidpad's extra `eval` (from a checkout: pip install '.[eval]')."
        ) from None
    from voidpad.builtin.tasks import shipped_results
    from voidpad.evaluate.config import Resources
    from voidpad.experiments.sweep_recipe import cells, of_family, read
    from voidpad.files import store
    from voidpad.models.device import DeviceConfig
    from voidpad.recipes import find_recipe

    DeviceConfig(device)  # refused before anything runs
    recipe = of_family(read(find_recipe("tiny-score" if full else "tiny-demo", "sweep")), family)
    recipe = recipe if full else recipe.limited(problems)
    resources = Resources(
        device=device,
        rows=16,
        allow_code_execution=True,
        weak_sandbox=weak_sandbox,
        workers=os.cpu_count() or 1,
    )
    known, arms = shipped_results(family), list[Arm]()
    total, begun = len(cells(recipe)) // len(recipe.tasks), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="voidpad-demo-") as folder, Live(console=out) as live:
        live.update(_table(arms, known, "decoding; about three minutes on two cores ..."))
        for arm in run(recipe, Path(folder), resources):
            arms.append(arm)
            left = (time.monotonic() - begun) / len(arms) * (total - len(arms))
            live.update(_table(arms, known, f"about {left:.0f} s left ..." if left else None))
        example = telling(arms)
    out.print()
    if example is not None:
        _show(example)
    if not full:
        _show(structured_and_filled(family, device))
    count = recipe.limit or 0
    store(report, [page(arms, example, count, known)])
    whole = max((cell["problems"] for cell in known.values()), default=0)
    err.print(
        f"{4 * count} problems, four tasks; a small set has wide intervals, the last column is the run of {whole} in "
        f"docs/tiny.md. Report: {report}",
        style="dim",
    )


def structured_and_filled(family: BuiltInFamily, device: str) -> dict[str, str]:
    """One answer that must match a schema, and one program with a gap, as titles and texts."""
    from voidpad.builtin.tasks import heldout
    from voidpad.constrain import json_schema
    from voidpad.models import load
    from voidpad.models.locate import BUILT_IN_FAMILIES

    model = load(f"{BUILT_IN_FAMILIES[family]}-void", device=device)
    note = heldout("tiny_json", 1)[0]
    assert note.schema is not None
    [answer] = model.generate([note.prompt], "void", threshold=0.9, constraint=json_schema(note.schema))
    gap = next(
        one for one in heldout("tiny_fill", 32) if len(one.gaps) == 1 and one.prompt.startswith("def ")
    )
    filled = load(f"{BUILT_IN_FAMILIES[family]}-void-gap", device=device).fill(gap.prompt, length="void-gap")
    return {
        "a note and its schema": note.prompt,
        f"JSON that the schema allows, in {answer.passes_decode} passes": answer.text,
        "a program with a gap": gap.prompt,
        f"the gap, filled in {filled.result.passes_decode} passes": filled.gaps[0],
    }


@dataclass(frozen=True)
class Arm:
    """A finished method at one block size: the examples of its four tasks."""

    name: str
    block: int
    examples: tuple[dict[str, Any], ...]
    seconds: float

    @classmethod
    def of(cls, cells: Sequence[SweepCell], folder: Path) -> Arm:
        from voidpad.evaluate.folder import RunFolder

        runs = [RunFolder(folder / cell.folder) for cell in cells]
        grader = cells[0].grader
        scored = [
            {**one, "score": one["scores"].get(grader, one["score"])} for run in runs for one in run.examples
        ]
        seconds = sum(run.results["wall_seconds"] for run in runs if run.results)
        block = runs[0].head["plan"]["block"]
        return cls(cells[0].method, block, tuple(scored), seconds)

    @property
    def mean(self) -> float:
        """The share of right answers; tasks have equally many problems."""
        return self.average("score")

    @property
    def interval(self) -> tuple[float, float]:
        from voidpad.evaluate.intervals import wilson

        return wilson(sum(one["score"] for one in self.examples), len(self.examples))

    def average(self, name: str) -> float:
        return float(sum(one[name] for one in self.examples) / len(self.examples))


def run(recipe: SweepRecipe, folder: Path, resources: Resources) -> Iterator[Arm]:
    """Run the sweep's cells; an arm comes as soon as its tasks are done."""
    from voidpad.experiments.sweep import begin, run_local

    done: list[SweepCell] = []
    for ended in run_local(begin(recipe, "demo", folder), folder, resources=resources):
        if ended.error:
            raise ended.error
        done.append(ended.cell)
        if len(done) == len(recipe.tasks):  # the tasks of a method follow each other
            yield Arm.of(done, folder)
            done = []


def telling(arms: Sequence[Arm]) -> dict[str, str] | None:
    """A problem that the original loses at block = canvas and VOID keeps: prompt and both answers."""
    by_name = {(arm.name, arm.block): arm.examples for arm in arms}
    wide = max(arm.block for arm in arms)
    wanted = [("original", 32), ("original", wide), ("void", wide)]
    if not all(name in by_name for name in wanted):
        return None
    for small, lost, kept in zip(*(by_name[name] for name in wanted), strict=True):
        if small["score"] and kept["score"] and not lost["score"]:
            outputs = {f"{name}, block {block}": one["output"]
                       for (name, block), one in zip(wanted, (small, lost, kept), strict=True)}  # fmt: skip
            return {"prompt": kept["prompt"], **outputs}
    return None


def _cells_of(arm: Arm, known: dict[str, Any]) -> tuple[str, ...]:
    low, high = arm.interval
    there, probes = known.get(f"{arm.name} / {arm.block}"), arm.average("passes_probe")
    return (
        arm.name,
        str(arm.block),
        f"{arm.mean:.1%}",
        f"{low:.0%}-{high:.0%}",
        f"{arm.average('answer_tokens'):.0f}",
        f"{arm.average('passes_decode'):.0f}",
        f"{probes:.1f}" if probes else "",
        f"{arm.seconds:.1f}",
        f"{there['mean']:.1%}" if there else "",
    )


def _table(arms: Sequence[Arm], known: dict[str, Any], caption: str | None) -> Table:
    """The arms that are done so far."""
    drawn = Table(*HEADS, box=None, padding=(0, 1, 0, 0), caption=caption)  # fits 80 columns
    for arm in arms:
        lost = arm.name == "original" and arm.mean < 0.6
        drawn.add_row(*_cells_of(arm, known), style="red" if lost else None)
    return drawn


def _show(example: dict[str, str]) -> None:
    for title, text in example.items():
        style = "red" if title == "original, block 256" else "default"
        out.print(
            Panel(text or "(nothing)", title=title, title_align="left", border_style=style), markup=False
        )


def page(arms: Sequence[Arm], example: dict[str, str] | None, count: int, known: dict[str, Any]) -> str:
    """One self-contained file: the table, with the full run that is `known`, the picture, the example."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in _cells_of(a, known)) + "</tr>" for a in arms
    )
    heads = "".join(f"<th>{h}</th>" for h in HEADS)
    texts = "".join(
        f"<h3>{html.escape(t)}</h3><pre>{html.escape(x)}</pre>" for t, x in (example or {}).items()
    )
    image = base64.b64encode(_picture(arms)).decode()
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>voidpad demo</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
:root {{ color-scheme: light dark; }} table {{ border-collapse: collapse; }}
td, th {{ padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #8884; }}
td:first-child, th:first-child {{ text-align: left; }}
pre {{ padding: .8rem; border: 1px solid #8886; white-space: pre-wrap; }}
img {{ max-width: 100%; background: white; }}</style>
<h1>[EOS] overflow on the built-in models</h1>
<p>{4 * count} held-out problems of four tasks, canvas 256. "Original" was tuned with [EOS] padding, the others are
LoRA fine-tunes of it with equal budget: only the padding differs.</p>
<table><tr>{heads}</tr>{rows}</table>
<p><img alt="Share of right answers by block size" src="data:image/png;base64,{image}"></p>{texts}</html>
"""


def _picture(arms: Sequence[Arm]) -> bytes:
    """Accuracy and answer length at each block size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = dict.fromkeys(arm.name for arm in arms if "expanding" not in arm.name)
    for name in names:
        some = sorted((arm for arm in arms if arm.name == name), key=lambda arm: arm.block)
        ticks = [str(arm.block) for arm in some]
        lower = [100 * (arm.mean - arm.interval[0]) for arm in some]
        upper = [100 * (arm.interval[1] - arm.mean) for arm in some]
        means = [100 * arm.mean for arm in some]
        left.errorbar(ticks, means, [lower, upper], marker="o", capsize=3, label=name)
        right.plot(ticks, [arm.average("answer_tokens") for arm in some], marker="o", label=name)
    left.set(xlabel="block size", ylabel="right answers, %", ylim=(0, 100))
    right.set(xlabel="block size", ylabel="mean answer length, tokens", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
