"""`voidpad bench --frontier`: speed and right answers of every setting, as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from voidpad.commands.bars import counting
from voidpad.commands.generate import bar, err, out
from voidpad.errors import ConfigError, VoidpadError
from voidpad.files import store

if TYPE_CHECKING:
    from voidpad.evaluate.settings import Resources
    from voidpad.experiments.frontier import FrontierRow, Timing
    from voidpad.experiments.sweep_recipe import SweepCell

RECIPE, NAME = "tiny-frontier", "frontier"  # the settings; the files in the folder of --out
# Options of `voidpad bench` that only one of its two forms takes.
_ITS_OWN = ("problems", "tasks", "only", "out_dir", "allow_code_execution", "weak_sandbox")
_NOT_ITS = ("file", "canvas", "block", "merged", "compile_layers")


@dataclass(frozen=True)
class FrontierJob:
    """What `voidpad bench --frontier` measures."""

    model: str
    adapter: str | None
    tasks: str  # separated by commas; all of the recipe's if empty
    only: list[str]
    problems: int  # of each task
    prompts: int  # to time
    rounds: int
    threads: int | None  # on a CPU; as many as the model can feed if not given
    out: Path | None
    as_json: bool


def check_options(context: typer.Context, *, frontier: bool) -> None:
    """Refuse options of the form of `voidpad bench` that was not chosen."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE":
            continue
        if frontier and parameter.name in _NOT_ITS:
            raise ConfigError(
                f"{parameter.opts[0]}: --frontier takes problems and settings from the recipe {RECIPE}; leave it out."
            )
        if not frontier and parameter.name in _ITS_OWN:
            raise ConfigError(f"{parameter.opts[0]} belongs to --frontier; add that, or leave it out.")


def run_frontier(job: FrontierJob, resources: Resources) -> None:
    from voidpad.experiments import sweep as sweeps
    from voidpad.experiments.frontier import frontier, narrowed
    from voidpad.experiments.report.records import SUFFIX, read
    from voidpad.experiments.sweep_recipe import read as read_recipe
    from voidpad.recipes import find_recipe

    recipe = read_recipe(find_recipe(RECIPE, "sweep"))
    tasks, left_out = _allowed(_chosen(job.tasks, recipe.tasks), resources)
    recipe = narrowed(
        recipe,
        only=job.only,
        tasks=tasks,
        limit=_limit(job.problems),
        model=job.model,
        adapter=job.adapter,
    )
    with ExitStack() as stack:
        folder = job.out or Path(stack.enter_context(TemporaryDirectory(prefix="voidpad-frontier-")))
        every = sweeps.begin(recipe, NAME, folder, download=True)
        timed, device = _timed(job, every, folder, resources)
        _answer(sweeps.missing(every, folder), folder, resources)
        [source] = read(folder / f"{NAME}{SUFFIX}")
        rows = frontier(source.records, timed)
        _show(rows, job)
        if job.out is not None:
            _write(rows, job.out, device)
    if left_out:
        err.print(f"without {', '.join(left_out)}: add --allow-code-execution", style="dim")


def _chosen(words: str, known: list[str]) -> list[str]:
    """The tasks that a user names, or all of them."""
    named = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := [word for word in named if word not in known]:
        raise ConfigError(f"tasks={unknown[0]}: no task of the frontier; use some of {', '.join(known)}.")
    return list(dict.fromkeys(named)) or known


def _allowed(tasks: list[str], resources: Resources) -> tuple[list[str], list[str]]:
    """The tasks that may run, and those that run generated code and were not allowed to."""
    from voidpad.builtin.tasks import TASKS

    code = [] if resources.allow_code_execution else [name for name in tasks if TASKS[name].is_code]
    if code == tasks:
        raise ConfigError(f"tasks={','.join(tasks)}: generated code runs only with --allow-code-execution.")
    return [name for name in tasks if name not in code], code


def _limit(problems: int) -> int | None:
    """The limit of the cells; none if all problems are wanted, so that the cells are those of the whole sweep."""
    from voidpad.evaluate.tasks.builtin_tasks import ITEMS

    return problems if problems < ITEMS else None


def _timed(
    job: FrontierJob, every: list[SweepCell], folder: Path, resources: Resources
) -> tuple[dict[str, Timing], str]:
    """The timings and the device: those in the folder if they are of the same job, else measured now."""
    import torch

    from voidpad.commands.calibrate import own_prompts
    from voidpad.commands.process import fit_threads
    from voidpad.evaluate.answer import load_model
    from voidpad.experiments.frontier import timings

    loaded = load_model(every[0].settings, resources)
    loaded.require_full_attention("--frontier")
    if job.threads is None:
        fit_threads(loaded, rows=job.prompts)
    settings = {cell.method: cell.settings.plain() | {"tasks": [], "limit": None} for cell in every}
    device = str(loaded.device)
    of = {"settings": settings, "prompts": job.prompts, "rounds": job.rounds, "device": device,
          "threads": torch.get_num_threads()}  # fmt: skip
    path = folder / f"{NAME}.timings.json"
    if stored := stored_timings(path, of):
        return stored, device
    ids = [loaded.encode(text) for text in own_prompts(job.prompts)]
    with bar(job.rounds * len(settings), shown=True, label="timing") as tick:
        measured = timings(loaded, every, ids, rounds=job.rounds, tick=tick)
    plain = {name: asdict(one) for name, one in measured.items()}
    store(path, [json.dumps({"of": of, "timings": plain}, indent=1), "\n"])
    return measured, device


def stored_timings(path: Path, of: dict[str, Any]) -> dict[str, Timing] | None:
    """The timings in a file, if they are of the same prompts and machine and have these settings at least.

    None if there is no such file or it is damaged: then they are measured again.
    """
    from voidpad.experiments.frontier import Timing

    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if {**stored["of"], "settings": {**stored["of"]["settings"], **of["settings"]}} == {
            **of,
            "settings": stored["of"]["settings"],
        }:
            return {name: Timing(**stored["timings"][name]) for name in of["settings"]}
    return None


def _answer(left: list[SweepCell], folder: Path, resources: Resources) -> None:
    """Answer and judge the problems that have no verdict yet."""
    from voidpad.commands.sweep import Inside, watch
    from voidpad.experiments.sweep import run_local

    if not left:
        return
    with counting(err, shown=err.is_terminal) as shown:
        inside = Inside(shown, shown.add_task("examples", total=None))
        failed = watch(run_local(left, folder, resources=resources, progress=inside), shown, len(left))
    if failed:
        raise VoidpadError(f"{len(failed)} of {len(left)} cells failed; the first: {failed[0]}")


def _show(rows: list[FrontierRow], job: FrontierJob) -> None:
    if job.as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    heads = ("setting", "speed", "faster", "computed", "passes", "a pass", "right", "95 %",
             "against exact", "lost, won")  # fmt: skip
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_texts(row))
    wide = Console(width=max(out.width, 130), highlight=False)  # a narrower terminal wraps the lines
    wide.print(table)
    err.print(
        f"{rows[0].problems} problems, right in %; faster and computed (share of the tokens): against exact decoding, "
        f"of {job.prompts} prompts, every setting in turn; `voidpad recipes --path {RECIPE}` has the settings",
        style="dim",
    )


def _texts(row: FrontierRow) -> tuple[str, ...]:
    """A row of the table."""
    low, high = row.interval
    paired, changed = "", ""
    if row.points is not None and row.points_interval is not None:
        paired = f"{row.points:+.2f} ± {row.points_interval[1] - row.points:.2f}"
        changed = f"{row.lost}, {row.won}"
    return (
        row.setting,
        row.speed or "",
        f"{row.faster:.2f}x",
        f"{row.computed:.3f}",
        f"{row.passes:.1f}",
        f"{row.tokens_a_pass:.2f}",
        f"{row.right:.1f}",
        f"{low:.1f}-{high:.1f}",
        paired if row.lost or row.won else paired and "none changed",
        changed,
    )


def _write(rows: list[FrontierRow], folder: Path, device: str) -> None:
    """The rows as JSON and the picture, into the folder of the cells."""
    from voidpad.diagnose.plots import save
    from voidpad.experiments.frontier import frontier_plot

    store(folder / f"{NAME}.json", [json.dumps([asdict(row) for row in rows], indent=1), "\n"])
    save(frontier_plot(rows, where=device), folder / f"{NAME}.png")
    err.print(f"{folder}: {NAME}.json, {NAME}.png; `voidpad report {folder}` has every task", style="dim")
