"""`voidpad sweep`: run the missing cells of a recipe, here or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from voidpad.commands.eval import AllowCode, BenchmarkFolder, SandboxWorkers, Stage, WeakSandbox
from voidpad.commands.loading import Device
from voidpad.commands.options import BuiltInFamily, RowLimit, TokenLimit
from voidpad.commands.ui import counting, folder_to_write
from voidpad.errors import ConfigError, VoidpadError, printable

if TYPE_CHECKING:
    from voidpad.experiments.sweep import CellOutcome
    from voidpad.experiments.sweep_recipe import SweepCell


RecipeName = Annotated[
    str, typer.Argument(help="A recipe's name (`voidpad recipes` lists them) or a TOML file.")
]
Out = Annotated[
    Path, typer.Option(help="Folder of the cells; recipes may share one.", callback=folder_to_write)
]
OnRay = Annotated[
    bool, typer.Option("--ray", help="Run on a Ray cluster; of this machine without an address.")
]
Address = Annotated[str | None, typer.Option(help="Address of a running Ray cluster; implies --ray.")]
Shards = Annotated[int, typer.Option(min=1, help="Ray tasks that share the examples of a cell.")]
Only = Annotated[list[str] | None, typer.Option(help="Only cells whose id starts so; may be repeated.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the cells without results; run nothing.")]
OneStage = Annotated[
    Stage | None, typer.Option(help="One stage of every cell: answering needs neither harness nor sandbox.")
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Only the first so many items of each task; ends with an estimate for all."),
]
Use = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=FOLDER: where a model or adapter of the recipe lies, or another name; may be repeated."
    ),
]
Family = Annotated[
    BuiltInFamily, typer.Option(help="Of the built-in models in the place of `tiny-*` in the recipe.")
]


def sweep(
    recipe: RecipeName,
    out: Out,
    ray: OnRay = False,
    ray_address: Address = None,
    shards: Shards = 1,
    only: Only = None,
    stage: OneStage = None,
    dry_run: DryRun = False,
    limit: Limit = None,
    use: Use = None,
    family: Family = BuiltInFamily.llada,
    device: Device = "auto",
    rows: RowLimit = 32,
    tokens: TokenLimit = 16384,
    data: BenchmarkFolder = None,
    allow_code_execution: AllowCode = False,
    weak_sandbox: WeakSandbox = False,
    workers: SandboxWorkers = 1,
) -> None:
    """Run the cells of a recipe that have no results yet; interrupted sweeps go on where they stopped."""
    from voidpad.evaluate.config import Resources
    from voidpad.experiments import sweep as sweeps
    from voidpad.experiments import sweep_recipe as recipes
    from voidpad.recipes import find_recipe

    resources = Resources(device, rows, tokens, data, allow_code_execution, weak_sandbox, workers)
    on_ray = bool(ray or ray_address)
    if shards > 1 and not on_ray:
        raise ConfigError(f"shards={shards} needs a cluster; add --ray, or leave it out.")
    if stage and on_ray:
        raise ConfigError(f"stage={stage} runs on this machine only; leave out --ray.")
    if not on_ray and not dry_run and stage in (None, Stage.answer):
        from voidpad.models.device import DeviceConfig

        DeviceConfig(device)  # once, and not as the failure of every cell
    folders = _folders(use or [])
    path = find_recipe(recipe, "sweep")
    wanted = recipes.read(path)
    wanted = recipes.of_family(wanted, family)
    if folders:
        wanted = recipes.with_folders(wanted, folders)
    if limit:
        wanted = wanted.limited(limit)
    if stage in (Stage.answer, Stage.judge):
        every = sweeps.stored_cells(path.stem, out)
    elif dry_run:
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
        with counting() as shown:
            if on_ray:
                from voidpad.experiments.cluster import run_ray

                ended = run_ray(left, out, resources=resources, address=ray_address, shards=shards)
            else:
                ended = sweeps.run_local(
                    left, out, resources=resources, progress=example_bar(shown), stage=stage
                )
            failed = watch(ended, shown, len(left))
        if failed:
            raise VoidpadError(f"{len(failed)} of {len(left)} cells failed; the first: {failed[0]}")
    if stage in (Stage.prepare, Stage.answer):
        following = Stage.answer if stage is Stage.prepare else Stage.judge
        typer.echo(f"{out}: next is `voidpad sweep {recipe} --out {out} --stage {following}`.")
    else:
        others = len(sweeps.missing(every, out))
        state = f"{others} of {total} cells are left" if others else "complete"
        typer.echo(f"{out}: {state}; `voidpad report {out}` shows it.")
        if wanted.limit and not sweeps.missing(chosen, out):
            hours, count = sweeps.full_seconds(chosen, out) / 3600, len({cell.id for cell in chosen})
            typer.echo(f"Decoding all items of these {count} cells on this device: about {hours:.1f} hours.")


def _folders(given: Sequence[str]) -> dict[str, str]:
    """The values of --use as a mapping from a name in the recipe to a folder."""
    pairs = [text.partition("=") for text in given]
    if wrong := [text for text, (name, _, folder) in zip(given, pairs, strict=True) if not (name and folder)]:
        raise ConfigError(f"use={wrong[0]}: write NAME=FOLDER, the name as the recipe has it.")
    return {name: folder for name, _, folder in pairs}


def example_bar(shown: Progress) -> Callable[[SweepCell, int, int], None]:
    """A bar of the examples of the cell that runs now."""
    bar = shown.add_task("examples", total=None)

    def update(cell: SweepCell, done: int, total: int) -> None:
        label = f"{cell.model} {cell.method} {cell.task}"
        shown.update(bar, completed=done, total=total, description=label)

    return update


def watch(ended: Iterator[CellOutcome], shown: Progress, total: int) -> list[str]:
    """A line per finished cell, and a bar with the time left; returns what failed."""
    bar = shown.add_task("cells", total=total)
    failed = []
    for one in ended:
        said = "done"
        if one.error:
            said = f"failed: {one.error}"
            failed.append(f"{one.cell}: {one.error}")
        elif one.results is not None:
            result = one.results["tasks"][one.cell.task]
            low, high = result["interval"]
            score = f"{result['score']:.2f} [{low:.1f}, {high:.1f}]"
            said = f"{score}, {result['passes_decode']:.1f} passes, {one.results['wall_seconds']:.1f} s"
        shown.console.print(printable(f"{one.cell}: {said}"), markup=False, highlight=False, soft_wrap=True)
        shown.advance(bar)
    return failed
