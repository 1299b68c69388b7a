"""`voidpad demo`: EOS overflow, and its absence, in a few minutes.

The demo is the sweep `tiny-demo`, run like any other sweep into a folder of its own.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.panel import Panel
from rich.text import Text
from typer import Option

from voidpad.commands.options import BuiltInFamily
from voidpad.commands.ui import bar, note, out, print_records
from voidpad.files import atomic_file

if TYPE_CHECKING:
    import pandas as pd

    from voidpad.evaluate import Resources
    from voidpad.experiments.sweep_recipe import SweepRecipe

TITLE = "EOS overflow, and VOID padding without it"
ABOUT = "First a few answers as they are, then the scores of all problems that were decoded."


def demo(
    problems: int = Option(3, help="test problems per task", min=1),
    family: BuiltInFamily = "llada",
    report: Path = Option(Path("voidpad-demo.html"), help="HTML report to write"),
    device: str = Option("cpu", help="cpu or cuda"),
    weak_sandbox: bool = Option(False, help="run generated code with the layers this machine has"),
) -> None:
    """Decode the same problems with EOS and with VOID padding, at a small block and at block = canvas."""
    note(
        "three problems of each task take about three minutes on two idle CPU cores; the bar says what is left"
    )
    from voidpad.evaluate import Resources
    from voidpad.experiments.report import pages
    from voidpad.experiments.sweep_recipe import of_family, read
    from voidpad.recipes import find_recipe

    recipe = of_family(read(find_recipe("tiny-demo", "sweep")), family)
    recipe = recipe.model_copy(update={"limit": problems})
    workers = os.cpu_count() or 1
    resources = Resources(device, 16, allow_code_execution=True, weak_sandbox=weak_sandbox, workers=workers)
    with tempfile.TemporaryDirectory(prefix="voidpad-demo-") as folder, atomic_file(report) as draft:
        run(recipe, Path(folder), resources)
        page = pages.report([Path(folder)])
        results = page.sections[0].tables[0]
        rows = []
        for names, cells in results.rows.items():
            named = dict(zip(results.heads, names, strict=True))
            rows.append(named | {head: value.text for head, value in cells.items()})
        print_records(rows, left=len(results.heads))
        shown = lost_and_kept(page.frame) | structured_and_filled(family, device)
        for title, text in shown.items():
            out.print(Panel(Text(text or "(nothing)"), title=title, title_align="left"), soft_wrap=False)
        texts = [f"### {pages.md(title)}\n\n" + pages.indented(text) for title, text in shown.items()]
        pictures = {plot.file: plot.svg for section in page.sections for plot in section.plots}
        text = "\n\n".join([f"# {TITLE}", ABOUT, *texts, pages.as_markdown(page)])
        draft.write_text(pages.html_page(TITLE, text, pictures), encoding="utf-8")
    note(
        f"{len(recipe.tasks)} tasks; a small set has wide intervals, docs/tiny.md has a full run. Report: {report}"
    )


def run(recipe: SweepRecipe, folder: Path, resources: Resources) -> None:
    """Run the sweep's cells under a bar that says how much time is left."""
    from voidpad.experiments.sweep import begin, run_local

    every = begin(recipe, "demo", folder)
    with bar(len(every), label="evaluations") as tick:
        for ended in run_local(every, folder, resources=resources):
            if ended.error:
                raise ended.error
            tick()


def lost_and_kept(rows: pd.DataFrame) -> dict[str, str]:
    """A problem that the original loses at block = canvas and VOID keeps: prompt and answers, if there is one."""
    from voidpad.evaluate.folder import RunFolder

    wide = int(rows["plan.block"].max())
    answers: dict[str, dict[Any, dict[str, Any]]] = {}
    for method, block in (("original", 32), ("original", wide), ("void", wide)):
        paths = rows[(rows["method"] == method) & (rows["plan.block"] == block)]["path"]
        every = [one for path in paths for one in RunFolder(Path(path)).examples]
        answers[f"{method}, block {block}"] = {(one["task"], one["index"]): one for one in every}
    small, lost, kept = answers.values()
    for key in [key for key in kept if key in small and key in lost]:
        if small[key]["score"] and kept[key]["score"] and not lost[key]["score"]:
            texts = {title: some[key]["output"] for title, some in answers.items()}
            return {"prompt": kept[key]["prompt"], **texts}
    return {}


def structured_and_filled(family: BuiltInFamily, device: str) -> dict[str, str]:
    """One answer that must match a schema, and one program with a gap, as titles and texts."""
    from voidpad.builtin.tasks import heldout
    from voidpad.constrain import json_schema
    from voidpad.models import load
    from voidpad.models.locate import BUILT_IN_FAMILIES

    name = BUILT_IN_FAMILIES[family]
    [question] = heldout("tiny_json", 1)
    assert question.schema is not None
    constraint, model = json_schema(question.schema), load(f"{name}-void", device=device)
    [answer] = model.generate([question.prompt], "void", threshold=0.9, constraint=constraint)
    programs = [one for one in heldout("tiny_fill", 32) if one.prompt.startswith("def ")]
    gap = next(one for one in programs if len(one.gaps) == 1)
    filled = load(f"{name}-void-gap", device=device).fill(gap.prompt, length="void-gap")
    return {
        "a note and its schema": question.prompt,
        f"JSON that the schema allows, in {answer.passes_decode} passes": answer.text,
        "a program with a gap": gap.prompt,
        f"the gap, filled in {filled.result.passes_decode} passes": filled.gaps[0],
    }
