"""`voidpad sweep` and `voidpad report`: the missing cells of a recipe, and tables and figures from finished runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import Progress
from typer import Argument, Option

from voidpad.commands.options import (
    BuiltInFamily,
    Device,
    JudgeOptions,
    RowLimit,
    TokenLimit,
    assignments,
    grouped,
)
from voidpad.commands.ui import counting
from voidpad.errors import ConfigError, VoidpadError, printable
from voidpad.files import atomic_file

if TYPE_CHECKING:
    from voidpad.experiments.sweep import CellOutcome
    from voidpad.experiments.sweep_recipe import SweepCell


@grouped
def sweep(
    judging: JudgeOptions,
    recipe: str = Argument(..., help="A recipe's name (`voidpad recipes` lists them) or a TOML file."),
    out: Path = Option(..., help="Folder of the cells; recipes may share one."),
    ray: bool = Option(False, "--ray", help="Run on a Ray cluster; of this machine without an address."),
    ray_address: str | None = Option(None, help="Address of a running Ray cluster; implies --ray."),
    only: list[str] | None = Option(None, help="Only cells whose id starts so; may be repeated."),
    dry_run: bool = Option(False, "--dry-run", help="List the cells without results; run nothing."),
    limit: int | None = Option(None, min=1, help="Only so many items of each task, and an estimate for all."),
    use: list[str] | None = Option(None, help="NAME=FOLDER: where a model of the recipe lies (repeatable)."),
    family: BuiltInFamily = "llada",
    device: Device = "auto",
    rows: RowLimit = 32,
    tokens: TokenLimit = 16384,
) -> None:
    """Run the cells of a recipe that have no results yet; interrupted sweeps go on where they stopped."""
    from voidpad.experiments import sweep as sweeps
    from voidpad.experiments import sweep_recipe as recipes
    from voidpad.models.device import DeviceConfig
    from voidpad.recipes import find_recipe

    on_ray = bool(ray or ray_address)
    if not on_ray and not dry_run:
        DeviceConfig(device)  # once, and not as the failure of every cell
    folders = assignments("--use", use, "NAME=FOLDER, the name as the recipe has it")
    path = find_recipe(recipe, "sweep")
    wanted = recipes.of_family(recipes.read(path), family)
    if folders:
        wanted = recipes.with_folders(wanted, folders)
    if limit:
        wanted = wanted.model_copy(update={"limit": limit})
    if dry_run:
        every = recipes.cells(wanted)
    else:
        every = sweeps.begin(wanted, path.stem, out, download=not on_ray)
    chosen = sweeps.only(every, only or [])
    left = sweeps.missing(chosen, out)
    total = len({cell.id for cell in every})
    typer.echo(f"{wanted.title}: {total} cells, {len(left)} to run.")
    if dry_run:
        typer.echo("\n".join(map(str, left)))
        return
    if left:
        resources = judging.resources(device=device, rows=rows, tokens=tokens)
        with counting() as shown:
            if on_ray:
                ended = sweeps.run_ray(left, out, resources=resources, address=ray_address)
            else:
                examples = shown.add_task("examples", total=None)

                def show(cell: SweepCell, done: int, of: int) -> None:
                    label = f"{cell.model} {cell.method} {cell.task}"
                    shown.update(examples, completed=done, total=of, description=label)

                ended = sweeps.run_local(left, out, resources=resources, progress=show)
            failed = _watch(ended, shown, len(left))
        if failed:
            raise VoidpadError(f"{len(failed)} of {len(left)} cells failed; the first: {failed[0]}")
    others = len(sweeps.missing(every, out))
    state = f"{others} of {total} cells are left" if others else "complete"
    typer.echo(f"{out}: {state}; `voidpad report {out}` shows it.")
    if wanted.limit and not sweeps.missing(chosen, out):
        hours, count = sweeps.full_seconds(chosen, out) / 3600, len({cell.id for cell in chosen})
        typer.echo(f"Decoding all items of these {count} cells on this device: about {hours:.1f} hours.")


def _watch(ended: Iterator[CellOutcome], shown: Progress, total: int) -> list[str]:
    """A line per finished cell, and a bar with the time left; returns what failed."""
    bar = shown.add_task("cells", total=total)
    failed = []
    for one in ended:
        if one.results is None:
            said = f"failed: {one.error}"
            failed.append(f"{one.cell}: {one.error}")
        else:
            result = one.results["tasks"][one.cell.task]
            low, high = result["interval"]
            score = f"{result['score']:.2f} [{low:.1f}, {high:.1f}]"
            said = f"{score}, {result['passes_decode']:.1f} passes, {one.results['wall_seconds']:.1f} s"
        shown.console.print(printable(f"{one.cell}: {said}"), markup=False, highlight=False, soft_wrap=True)
        shown.advance(bar)
    return failed


def report(
    folders: list[Path] = Argument(..., help="Run folders, sweep folders, or NAME.sweep.json files."),
    out: Path | None = Option(
        None, help="Folder for the report and its figures; prints Markdown without it."
    ),
    compare: bool = Option(
        False, "--compare", help="Two run folders: paired difference, items that changed."
    ),
    intervals: bool = Option(True, help="Show 95 % intervals beside the scores."),
) -> None:
    """Tables and figures from finished runs, with where every number comes from, and the verdict of every problem."""
    from voidpad.experiments.report import pages

    files: dict[str, str | bytes]
    if compare:
        if len(folders) != 2:
            raise ConfigError(
                f"compare: takes two run folders, got {len(folders)}; name the first and the second."
            )
        title, text = pages.compare_runs(*folders)
        files = {"compare.md": text, "compare.html": pages.html_page(title, text)}
    else:
        page = pages.report(folders)
        text = pages.as_markdown(page, intervals=intervals, figures=out is not None)
        files = {
            "report.md": text,
            "report.html": pages.as_html(page, intervals=intervals),
            "report.csv": pages.as_csv(page),
            "verdicts.jsonl.gz": pages.as_verdicts(page),
            **{plot.file: plot.svg for section in page.sections for plot in section.plots},
        }
    if out is None:
        typer.echo(text, nl=False)
        return
    for name, content in files.items():
        with atomic_file(out / name) as draft:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
    typer.echo(f"{out}: {', '.join(name for name in files if '/' not in name)}")
