"""The speed frontier: of each setting that decodes faster, its speed on this machine and its right answers.

Settings are the groups of a sweep recipe, so that their answers are cells of a sweep folder and their statistics those
of a report. Only the time is measured here: all settings take turns with the same prompts, in one run.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from voidpad.diagnose.plots import BLUE, GREY, LOOK, RED
from voidpad.engine.speed import SPEEDS
from voidpad.errors import ConfigError
from voidpad.experiments.bench import Answers, Decoder, drained, in_turns, now
from voidpad.experiments.report.layout import Methods
from voidpad.experiments.report.records import CellRecord
from voidpad.experiments.report.report_metrics import Interval, ordered
from voidpad.experiments.report.tables import against_exact, build
from voidpad.experiments.sweep_recipe import SweepCell, SweepRecipe
from voidpad.models import Model

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
    placed = {"model": model, "adapter": adapter} if model else {}
    groups = [
        group.model_copy(update=placed)
        for group in recipe.groups
        if not only or group.method in (EXACT, *only)
    ]
    changed = {"groups": groups, "limit": limit, "tasks": list(tasks) if tasks else recipe.tasks}
    return recipe.model_copy(update=changed)


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
        settings = cell.settings
        plan = model.plan(settings.plan, **settings.fields)
        decode = drained(model, plan, cache=settings.cache, block=plan.block)
        named.setdefault(cell.method, partial(counted, cell.method, decode))
    clock = time.process_time if model.device.type == "cpu" else partial(now, model.device)
    for name, spent, _ in in_turns(named, prompts, rounds=rounds, clock=clock):
        seconds[name] += spent
        tick()
    return {name: Timing(seconds[name], computed[name]) for name in named}


def frontier(records: Sequence[CellRecord], timed: dict[str, Timing]) -> list[FrontierRow]:
    """A row for each setting whose cells, and those of exact decoding, have all been judged."""
    layout = Methods(title="Approximate against exact decoding", split=(), metrics=("nfe",), exact=True)
    tasks = ordered(record.task for record in records)
    rows = []
    for row in build(layout, records).rows:
        [name] = row.head
        mine = [record for record in records if record.method == name]
        right, points, *scores, passes, tokens = row.values
        if right.number is None or right.interval is None or (points.number is None and not points.blank):
            continue
        assert passes.number is not None
        assert tokens.number is not None
        changes = against_exact(mine, records) or []
        exact, own = timed[EXACT], timed[name]
        given = mine[0].settings
        fields = {key: value for key, value in given["fields"].items() if key not in ("canvas", "block")}
        rows.append(
            FrontierRow(
                setting=name,
                speed=_named(fields, given.get("cache")),
                fields=fields,
                cache=given.get("cache"),
                seconds=own.seconds,
                faster=exact.seconds / own.seconds,
                computed=own.computed / exact.computed,
                problems=sum(record.result["n"] for record in mine),
                right=right.number,
                interval=right.interval,
                points=points.number,
                points_interval=points.interval,
                lost=sum(change < 0 for change in changes),
                won=sum(change > 0 for change in changes),
                tasks={task: score.number or 0.0 for task, score in zip(tasks, scores, strict=True)},
                passes=passes.number,
                tokens_a_pass=tokens.number,
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
