"""The speed frontier: of each setting that decodes faster, its speed on this machine and its right answers.

    python -m studies.frontier --out runs/frontier --problems 500 --allow-code-execution

Settings are the groups of a sweep recipe, so that their answers are cells of a sweep folder and their statistics those
of a report. Only the time is measured here: all settings take turns with the same prompts, in one run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from voidpad.commands.prompts import builtin_prompts
from voidpad.diagnose.plots import BLUE, GREY, LOOK, RED, save
from voidpad.engine.speed import SPEEDS
from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.answer import load_model
from voidpad.evaluate.config import Resources
from voidpad.evaluate.intervals import Interval, paired_bootstrap
from voidpad.evaluate.tasks.builtin_tasks import ITEMS
from voidpad.experiments.bench import Answers, Decoder, drained, in_turns, now
from voidpad.experiments.report.frame import combined, read
from voidpad.experiments.report.layout import SUFFIX
from voidpad.experiments.report.tables import against_exact
from voidpad.experiments.sweep import begin, missing, run_local
from voidpad.experiments.sweep_recipe import SweepCell, SweepRecipe
from voidpad.experiments.sweep_recipe import read as read_recipe
from voidpad.files import store
from voidpad.models import Model
from voidpad.recipes import find_recipe

RECIPE, NAME = "tiny-frontier", "frontier"  # the settings; the files in the folder of --out
EXACT = "exact"  # the setting that all others are compared with


@dataclass(frozen=True)
class Timing:
    """What a setting took for the prompts that all settings answered."""

    seconds: float  # CPU time on a CPU, elapsed time elsewhere
    computed: int  # tokens that went through the network


@dataclass(frozen=True)
class FrontierRow:
    """One setting: its speed beside exact decoding, and its right answers on the test problems."""

    setting: str
    speed: str | None  # the named speed that is this setting
    fields: dict[str, Any]
    cache: str | None
    seconds: float
    faster: float  # times as fast as exact decoding
    computed: float  # share of the tokens that exact decoding computes
    problems: int
    right: float  # in percent, the mean over the tasks
    interval: Interval
    points: float | None  # against exact decoding on the same problems; None for exact decoding itself
    points_interval: Interval | None
    lost: int  # problems that exact decoding has right and this setting has wrong
    won: int
    tasks: dict[str, float]  # right answers of each task, in percent
    passes: float
    tokens_a_pass: float


def narrowed(
    recipe: SweepRecipe,
    *,
    only: Sequence[str] = (),
    tasks: Sequence[str] | None = None,
    limit: int | None = None,
    model: str | None = None,
    adapter: str | None = None,
) -> SweepRecipe:
    """The recipe with some of its settings, exact decoding always among them, and another model where one is given."""
    names = [group.method for group in recipe.groups]
    if unknown := [name for name in only if name not in names]:
        raise ConfigError(f"only={unknown[0]}: no such setting; use some of {'; '.join(map(str, names))}.")
    groups = []
    for group in recipe.groups:
        placed: dict[str, Any] = {}
        if model:
            placed = {"model": [model], "adapter": adapter}
        if not only or group.method in (EXACT, *only):
            groups.append(group.model_copy(update=placed))
    changed = {"groups": groups, "tasks": list(tasks) if tasks else recipe.tasks}
    return recipe.model_copy(update=changed | {"limit": limit})


def timings(
    model: Model,
    cells: Sequence[SweepCell],
    prompts: Sequence[Sequence[int]],
    *,
    rounds: int = 1,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Every setting on the same prompts, in turns. On a CPU it is CPU time, the one to read on a busy machine."""
    named: dict[str, Decoder] = {}
    seconds: defaultdict[str, float] = defaultdict(float)
    computed: Counter[str] = Counter()

    def counted(name: str, decode: Decoder, prompts: Sequence[Sequence[int]]) -> Answers:
        def count(_: Any, args: Any) -> None:
            computed[name] += args[0].numel()

        hook = model.base.model.embed_tokens.register_forward_pre_hook(count)
        try:
            return decode(prompts)
        finally:
            hook.remove()

    for cell in cells:
        config = cell.config
        plan = model.plan(config.plan, **config.fields)
        decode = drained(model, plan, cache=config.cache, block=plan.block)
        named.setdefault(cell.method, partial(counted, cell.method, decode))
    clock = time.process_time if model.device.type == "cpu" else partial(now, model.device)
    for name, spent, _ in in_turns(named, prompts, rounds=rounds, clock=clock):
        seconds[name] += spent
        tick()
    return {name: Timing(seconds[name], computed[name]) for name in named}


def frontier(cells: pd.DataFrame, timed: dict[str, Timing]) -> list[FrontierRow]:
    """A row for each setting whose cells, and those of exact decoding, have all been judged."""
    tasks, rows = list(dict.fromkeys(cells["task"])), []
    for name, mine in cells.groupby("method", sort=False):
        right = combined(mine, "score", len(tasks))
        changes = against_exact(mine, cells)
        if right.number is None or right.interval is None or changes is None:
            continue
        exact, own = timed[EXACT], timed[str(name)]
        given, cache = mine["config.fields"].iloc[0], mine["config.cache"].iloc[0] or None
        fields = {key: value for key, value in given.items() if key not in ("canvas", "block")}
        rows.append(
            FrontierRow(
                setting=str(name),
                speed=_named(fields, cache),
                fields=fields,
                cache=cache,
                seconds=own.seconds,
                faster=exact.seconds / own.seconds,
                computed=own.computed / exact.computed,
                problems=int(mine["n"].sum()),
                right=right.number,
                interval=right.interval,
                points=sum(changes) / len(changes) if changes else None,
                points_interval=paired_bootstrap(changes) if changes else None,
                lost=sum(change < 0 for change in changes),
                won=sum(change > 0 for change in changes),
                tasks=dict(zip(mine["task"], mine["score"], strict=True)),
                passes=combined(mine, "nfe").number or 0.0,
                tokens_a_pass=combined(mine, "tokens_per_pass").number or 0.0,
            )
        )
    return rows


def _named(fields: dict[str, Any], cache: str | None) -> str | None:
    """The named speed with these approximations."""
    return next((name for name, one in SPEEDS.items() if (one.fields, one.cache) == (fields, cache)), None)


@matplotlib.rc_context(LOOK)  # type: ignore[arg-type]
def frontier_plot(rows: Sequence[FrontierRow], *, where: str) -> Figure:
    """A line for each setting, the slowest on top: how many times as fast it is, and its points against exact."""
    order = sorted(rows, key=lambda row: row.faster)
    figure = Figure(figsize=(8.4, 1.4 + 0.26 * len(order)), layout="constrained")
    speed, loss = figure.subplots(1, 2, sharey=True)
    at, colors = range(len(order)), [_color(row) for row in order]
    speed.barh(at, [row.faster for row in order], color=colors, height=0.6)
    for y, row in enumerate(order):
        speed.annotate(f"{row.faster:.1f}x", (row.faster, y), (3, 0), textcoords="offset points", va="center")
        if row.points is None and row.setting != EXACT:
            continue  # decodes exactly by another rule: it has no exact run to be paired with
        points = row.points or 0.0
        low, high = row.points_interval or (0.0, 0.0)
        loss.errorbar(points, y, xerr=[[points - low], [high - points]], fmt="o", color=colors[y], capsize=2)
    names = [
        row.setting if row.speed in (None, EXACT) else f"{row.setting}  --speed {row.speed}" for row in order
    ]
    speed.set_yticks(at, names)
    speed.invert_yaxis()
    speed.margins(x=0.18)
    speed.set_xlabel(f"times as fast as exact decoding, on {where}")
    loss.axvline(0, color=GREY, linewidth=0.8, zorder=0)
    loss.set_xlabel("points against exact decoding, paired, 95 %")
    figure.suptitle(f"Speed and right answers on {rows[0].problems} problems")
    return figure


def _color(row: FrontierRow) -> str:
    return RED if row.speed not in (None, EXACT) else BLUE if row.cache else GREY


def _texts(row: FrontierRow) -> tuple[str, ...]:
    """A row of the table."""
    low, high = row.interval
    paired, changed = "", ""
    if row.points is not None and row.points_interval is not None:
        paired = f"{row.points:+.2f} [{row.points_interval[0]:+.2f}, {row.points_interval[1]:+.2f}]"
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


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m studies.frontier",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder; an interrupted run goes on from it")
    parser.add_argument("--model", default="tiny-void")
    parser.add_argument("--adapter")
    parser.add_argument("--tasks", help="only these tasks, separated by commas")
    parser.add_argument("--only", action="append", default=[], help="only this setting; may be repeated")
    parser.add_argument("--problems", type=int, default=32, help=f"test problems of each task, up to {ITEMS}")
    parser.add_argument("--prompts", type=int, default=32, help="prompts to time")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--allow-code-execution", action="store_true")
    parser.add_argument("--weak-sandbox", action="store_true")
    given = parser.parse_args()
    resources = Resources(
        device=given.device,
        allow_code_execution=given.allow_code_execution,
        weak_sandbox=given.weak_sandbox,
    )
    # All problems are no limit, so that the cells are those of the whole sweep.
    limit = given.problems if given.problems < ITEMS else None
    tasks = given.tasks.split(",") if given.tasks else None
    recipe = narrowed(
        read_recipe(find_recipe(RECIPE, "sweep")),
        only=given.only,
        tasks=tasks,
        limit=limit,
        model=given.model,
        adapter=given.adapter,
    )
    every = begin(recipe, NAME, given.out, download=True)
    model = load_model(every[0].config, resources)
    model.require_full_attention("the frontier")
    ids = [model.encode(text) for text in builtin_prompts(given.prompts)]
    timed = timings(model, every, ids, rounds=given.rounds)
    for ended in run_local(missing(every, given.out), given.out, resources=resources):
        if ended.error:
            raise VoidpadError(f"{ended.cell}: {ended.error}")
    [source] = read(given.out / f"{NAME}{SUFFIX}")
    rows = frontier(source.frame, timed)
    heads = ("setting", "speed", "faster", "computed", "passes", "a pass", "right", "95 %", "against exact",
             "lost, won")  # fmt: skip
    table = Table(*heads, box=None)
    for row in rows:
        table.add_row(*_texts(row))
    Console(width=150, highlight=False).print(table)
    store(given.out / f"{NAME}.json", [json.dumps([asdict(row) for row in rows], indent=1), "\n"])
    save(frontier_plot(rows, where=str(model.device)), given.out / f"{NAME}.png")


if __name__ == "__main__":
    main()
