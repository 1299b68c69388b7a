"""`voidpad demo`: EOS overflow, and its absence, in a few minutes.

The demo is the sweep `tiny-demo`, run like any other sweep into a folder of its own; `--full` is `tiny-score`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer import Option

from voidpad.commands.options import BuiltInFamily
from voidpad.commands.ui import note, out, output_file, table
from voidpad.errors import ConfigError, install_command
from voidpad.files import atomic_file

if TYPE_CHECKING:
    from voidpad.evaluate import Resources
    from voidpad.experiments.sweep_recipe import SweepCell, SweepRecipe

HEADS = ("model and plan", "block", "right", "95 %", "answer", "passes", "probes", "seconds")


def demo(
    problems: int = Option(3, help="test problems per task", min=1),
    full: bool = Option(False, "--full", help="128 problems per task, all blocks and ablations"),
    family: BuiltInFamily = Option(BuiltInFamily.llada, help="of the built-in models"),
    report: Path = output_file(Path("voidpad-demo.html"), "HTML report to write"),
    device: str = Option("cpu", help="cpu or cuda"),
    weak_sandbox: bool = Option(False, help="run generated code with the layers this machine has"),
) -> None:
    """Decode the same problems with EOS, Rainbow and VOID padding at a small block and at block = canvas."""
    if find_spec("lm_eval") is None:
        raise ConfigError(f"the demo needs lm-eval; {install_command('eval')}.")
    from voidpad.evaluate import Resources
    from voidpad.experiments.sweep_recipe import cells, of_family, read
    from voidpad.models import DeviceConfig
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
    total, begun, arms = len(cells(recipe)) // len(recipe.tasks), time.monotonic(), list[Arm]()
    with tempfile.TemporaryDirectory(prefix="voidpad-demo-") as folder, atomic_file(report) as draft:
        with Live(console=out) as live:
            live.update(_table(arms, "decoding; about three minutes on two cores ..."))
            for arm in run(recipe, Path(folder), resources):
                arms.append(arm)
                left = (time.monotonic() - begun) / len(arms) * (total - len(arms))
                live.update(_table(arms, f"about {left:.0f} s left ..." if left else None))
        out.print()
        shown = telling(arms) | ({} if full else structured_and_filled(family, device))
        for title, text in shown.items():
            style = "red" if title == "original, block 256" else "default"
            panel = Panel(Text(text or "(nothing)"), title=title, title_align="left", border_style=style)
            out.print(panel)
        draft.write_text(_page(Path(folder), shown), encoding="utf-8")
    note(
        f"{len(arms[0].examples)} problems of {len(recipe.tasks)} tasks; a small set has wide intervals, docs/tiny.md "
        f"has a full run. Report: {report}"
    )


@dataclass(frozen=True)
class Arm:
    """A finished method at one block size: the examples of its tasks."""

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
        return cls(cells[0].method, runs[0].head["plan"]["block"], tuple(scored), seconds)

    @property
    def mean(self) -> float:
        """The share of right answers; tasks have equally many problems."""
        return self.average("score")

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


def telling(arms: Sequence[Arm]) -> dict[str, str]:
    """A problem that the original loses at block = canvas and VOID keeps: prompt and answers, if there is one."""
    by_name = {(arm.name, arm.block): arm.examples for arm in arms}
    wide = max(arm.block for arm in arms)
    wanted = [("original", 32), ("original", wide), ("void", wide)]
    if not all(name in by_name for name in wanted):
        return {}
    for small, lost, kept in zip(*(by_name[name] for name in wanted), strict=True):
        if small["score"] and kept["score"] and not lost["score"]:
            answers = zip(wanted, (small, lost, kept), strict=True)
            return {
                "prompt": kept["prompt"],
                **{f"{name}, block {block}": one["output"] for (name, block), one in answers},
            }
    return {}


def structured_and_filled(family: BuiltInFamily, device: str) -> dict[str, str]:
    """One answer that must match a schema, and one program with a gap, as titles and texts."""
    from voidpad.builtin.tasks import heldout
    from voidpad.constrain import json_schema
    from voidpad.models import load
    from voidpad.models.locate import BUILT_IN_FAMILIES

    model = load(f"{BUILT_IN_FAMILIES[family]}-void", device=device)
    question = heldout("tiny_json", 1)[0]
    assert question.schema is not None
    constraint = json_schema(question.schema)
    [answer] = model.generate([question.prompt], "void", threshold=0.9, constraint=constraint)
    gap = next(
        one for one in heldout("tiny_fill", 32) if len(one.gaps) == 1 and one.prompt.startswith("def ")
    )
    filled = load(f"{BUILT_IN_FAMILIES[family]}-void-gap", device=device).fill(gap.prompt, length="void-gap")
    return {
        "a note and its schema": question.prompt,
        f"JSON that the schema allows, in {answer.passes_decode} passes": answer.text,
        "a program with a gap": gap.prompt,
        f"the gap, filled in {filled.result.passes_decode} passes": filled.gaps[0],
    }


def _table(arms: Sequence[Arm], caption: str | None) -> Table:
    """The arms that are done so far."""
    from voidpad.evaluate import wilson

    rows = []
    for arm in arms:
        low, high = wilson(sum(one["score"] for one in arm.examples), len(arm.examples))
        numbers = [f"{arm.average(name):.0f}" for name in ("answer_tokens", "passes_decode")]
        probes = f"{arm.average('passes_probe'):.1f}"
        share = f"[red]{arm.mean:.1%}[/]" if arm.name == "original" and arm.mean < 0.6 else f"{arm.mean:.1%}"
        row = (arm.name, str(arm.block), share, f"{low:.0%}-{high:.0%}", *numbers, probes)
        rows.append((*row, f"{arm.seconds:.1f}"))
    drawn = table(HEADS, rows)
    drawn.caption = caption
    return drawn


def _page(folder: Path, shown: dict[str, str]) -> str:
    """The sweep's report with the example texts, in one self-contained file."""
    from voidpad.experiments.report import pages

    page = pages.report([folder])
    texts = [f"### {pages.md(title)}\n\n" + _indented(text) for title, text in shown.items()]
    pictures = {plot.file: plot.svg for section in page.sections for plot in section.plots}
    return pages.html_page("EOS overflow", "\n\n".join([*texts, pages.as_markdown(page)]), pictures)


def _indented(text: str) -> str:
    """A text as a block of code in Markdown."""
    return "\n".join(f"    {line}" for line in (text or "(nothing)").splitlines())
