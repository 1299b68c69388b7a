"""Every table of the built-in models' record, from the kept verdicts.

    python -m studies.builtin.results             # print all tables
    python -m studies.builtin.results headline    # one of them
    python -m studies.builtin.results --write     # put them into the pages that show them
    python -m studies.builtin.results --picture   # draw docs/img/blocks.png

A page shows a table between `<!-- table NAME -->` and `<!-- end -->`; a test compares it with the verdicts that
`studies.builtin.score` and `studies.structured` kept. Shares have Wilson intervals, differences on the same
problems a paired bootstrap (`voidpad.evaluate.intervals`).
"""

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from studies import structured
from studies.builtin import score
from voidpad.builtin.tasks import CANVAS, TASKS
from voidpad.engine.speed import SPEEDS
from voidpad.evaluate.intervals import mean_of_tasks, paired_bootstrap, wilson

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("tiny.md", "evidence.md", "structured-results.md", "infilling.md", "fast.md")
SHOWN = re.compile(r"(<!-- table ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FAMILIES = {"llada": "LLaDA", "dream": "Dream"}
METHODS = {"instruct": "original", "eos": "control", "rainbow": "Rainbow", "void": "VOID"}
NAMED = ("tiny_steps", "tiny_json", "tiny_search", "tiny_turns")  # tasks with names or things to copy
KEYS = ("family", "arm", "plan", "task", "block", "rule", "tail")
Lines = Iterator[str]


@cache
def records() -> list[dict[str, Any]]:
    return score.kept() if score.KEPT.exists() else []


@cache
def verdicts() -> dict[tuple[Any, ...], dict[str, Any]]:
    """The record of each cell, but for the controls in float32."""
    return {
        tuple(one[key] for key in KEYS): one for one in records() if "right" in one and not one["control"]
    }


def found(family: str, arm: str, task: str, block: int = 32, *, plan: str | None = None, **other: Any) -> Any:
    """The verdicts of a cell, or None."""
    plan = plan or score.PLANS[arm]
    key = (family, arm, plan, task, block, other.get("rule", "one token"), other.get("tail", "free"))
    return verdicts().get(key)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Lines:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def share(right: Sequence[int]) -> str:
    low, high = wilson(sum(right), len(right))
    return f"{100 * fmean(right):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def difference(one: Sequence[float], other: Sequence[float]) -> str:
    """In points, paired, over the problems that both have."""
    apart = [100.0 * (a - b) for a, b in zip(one, other, strict=False)]
    low, high = paired_bootstrap(apart)
    return f"{fmean(apart):+.1f} [{low:+.1f}, {high:+.1f}]"


def on_same_problems(cells: Sequence[Any], others: Sequence[Any]) -> list[list[int]]:
    """The verdicts of two rows of cells, task after task, over the problems that all of them have."""
    few = min(len(one["right"]) for one in (*cells, *others))
    return [[value for one in side for value in one["right"][:few]] for side in (cells, others)]


def over_tasks(cells: Sequence[dict[str, Any]]) -> str:
    """The mean of several tasks' shares."""
    shares = [(fmean(one["right"]), wilson(sum(one["right"]), len(one["right"]))) for one in cells]
    low, high = mean_of_tasks(shares)
    return f"{100 * fmean([value for value, _ in shares]):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def passes(cells: Sequence[dict[str, Any]]) -> float:
    return fmean([fmean(one["passes"]) for one in cells])


# -------------------------------------------------------------------------------------------------------- the tables
def by_task(family: str) -> Lines:
    columns = list(product(METHODS, (32, CANVAS)))
    rows = []
    for task in (*TASKS, "tiny_chat"):
        cells = [found(family, arm, task, block) for arm, block in columns]
        if any(cells):
            rows.append([f"`{task}`", *(share(one["right"]) if one else "" for one in cells)])
    means = []
    for arm, block in columns:
        cells = [one for one in (found(family, arm, task, block) for task in TASKS) if one]
        means.append(over_tasks(cells) if len(cells) == len(TASKS) else "")
    rows.append(["mean of the seven tasks", *means])
    return table(["task", *(f"{METHODS[arm]}, {block}" for arm, block in columns)], rows)


def copying() -> Lines:
    rows = []
    for family, arm in product(FAMILIES, METHODS):
        cells = [found(family, arm, task) for task in NAMED]
        if all(cells):
            every = [value for one in cells for value in one["copied"]]
            rows.append(
                [FAMILIES[family], METHODS[arm], *(share(one["copied"]) for one in cells), share(every)]
            )
    return table(["family", "arm", *(f"`{task}`" for task in NAMED), "together"], rows)


def averaged(family: str, arm: str) -> tuple[list[float], float, list[str]] | None:
    """Over block sizes: each problem's mean score, the mean number of passes, and the mean over tasks at each block."""
    problems, costs, means = list[float](), [], []
    for task in TASKS:
        cells = [found(family, arm, task, block) for block in score.BLOCKS]
        if not all(cells):
            return None
        few = min(len(one["right"]) for one in cells)
        problems += [fmean([one["right"][k] for one in cells]) for k in range(few)]
        costs.append(passes(cells))
    for block in score.BLOCKS:
        cells = [found(family, arm, task, block) for task in TASKS]
        means.append(f"{100 * fmean([fmean(one['right']) for one in cells]):.1f}")
    return problems, fmean(costs), means


def headline() -> Lines:
    rows = []
    for family in FAMILIES:
        of = {arm: averaged(family, arm) for arm in ("instruct", "rainbow", "void")}
        void, original = of["void"], of["instruct"]
        for arm, one in of.items():
            if one is None or void is None or original is None:
                continue
            apart = difference(void[0], one[0]) if arm != "void" else ""
            # The original decodes every slot of its canvas; the paper compares with that.
            fewer = f"{100 * (1 - void[1] / CANVAS):.1f} %" if arm == "instruct" else ""
            rows.append(
                [
                    FAMILIES[family],
                    METHODS[arm],
                    *one[2],
                    f"{100 * fmean(one[0]):.1f}",
                    f"{one[1]:.1f}",
                    apart,
                    fewer,
                ]
            )
    head = ["family", "arm", *(f"block {block}" for block in score.BLOCKS), "mean", "passes, stopped at EOS"]
    return table([*head, "VOID ahead by", "fewer passes than all 256"], rows)


def eos_last() -> Lines:
    rows = []
    for family, task in product(FAMILIES, TASKS):
        plain, last = (
            found(family, "instruct", task, CANVAS),
            found(family, "instruct", task, CANVAS, plan="eos-last"),
        )
        void = found(family, "void", task, CANVAS)
        if plain and last and void:
            ways = [share(one["right"]) for one in (plain, last, void)]
            costs = f"{fmean(last['passes']):.0f}, {fmean(void['passes']):.0f}"
            rows.append(
                [FAMILIES[family], f"`{task}`", *ways, difference(void["right"], last["right"]), costs]
            )
    head = [
        "family",
        "task",
        "EOS padding, plain",
        "EOS padding, `eos-last`",
        "VOID padding",
        "VOID ahead by",
    ]
    return table([*head, "passes of both"], rows)


def expansion() -> Lines:
    rows = []
    for family in FAMILIES:
        grown = [found(family, "void", task, 16, plan="void-expansion") for task in TASKS]
        fixed = [found(family, "void", task, 16) for task in TASKS]
        chosen = [one for one in records() if one.get("plan") == "calibrate" and one["family"] == family]
        if not (all(grown) and all(fixed) and chosen):
            continue
        settings = chosen[0]["fields"]
        work = [
            sum(a * b for one in cells for a, b in zip(one["passes"], one["canvas"], strict=True))
            for cells in (grown, fixed)
        ]
        pairs = on_same_problems(grown, fixed)
        rows.append(
            [
                FAMILIES[family],
                f"{settings['window']}, {settings['tau_nonvoid']:.3g}, {settings['tau_gap']:.3g}",
                over_tasks(fixed),
                over_tasks(grown),
                difference(*pairs),
                f"{passes(fixed):.0f}, {passes(grown):.0f}",
                f"{100 * work[0] / work[1]:.0f} %",
            ]
        )
    head = [
        "family",
        "window, thresholds",
        "fixed canvas of 256",
        "expanding from 48",
        "difference",
        "passes of both",
    ]
    return table([*head, "slot-passes, at most"], rows)


def structured_output() -> Lines:
    rows = []
    for arm, family, rule, block, tail in product(
        ("void", "eos"), FAMILIES, structured.RULES, (32, CANVAS), ("free", "padding", "one")
    ):
        one = found(family, arm, "tiny_json", block, rule=rule, tail=tail)
        if one is None or "valid" not in one or (rule == "one token" and block == CANVAS):
            continue  # one token a pass was not answered under a constraint at this block
        against = ["", ""]
        free = found(family, arm, "tiny_json", block, rule=rule)
        if tail != "free" and free:
            few = min(len(one["passes"]), len(free["passes"]))
            fewer = sum(free["passes"][:few]) / sum(one["passes"][:few])
            against = [difference(one["right"], free["right"]), f"{fewer:.1f}"]
        shares = [f"{100 * fmean(one[name]):.1f}" for name in ("right", "valid", "matched")]
        work = [f"{fmean(one['passes']):.1f}", f"{sum(one['tokens']) / sum(one['passes']):.1f}"]
        first = [FAMILIES[family], METHODS[arm], rule, str(block), tail, str(len(one["right"]))]
        rows.append([*first, *shares, *work, *against])
    head = [
        "family",
        "padding",
        "rule",
        "block",
        "tail",
        "problems",
        "right %",
        "valid %",
        "matches %",
        "passes",
    ]
    return table([*head, "tokens a pass", "difference", "fewer passes"], rows)


def speeds() -> Lines:
    """Rules that write several tokens a pass, against one token a pass on the same problems."""
    rows = []
    for family, rule in product(FAMILIES, ("fast", "fastest", "threshold 0.9")):
        cells = [found(family, "void", task, rule=rule) for task in TASKS]
        exact = [found(family, "void", task) for task in TASKS]
        if not (all(cells) and all(exact)):
            continue
        pairs = on_same_problems(cells, exact)
        few = len(pairs[0]) // len(TASKS)
        worst = min(
            zip(TASKS, cells, exact, strict=True),
            key=lambda of: sum(of[1]["right"][:few]) - sum(of[2]["right"][:few]),
        )
        written = [sum(sum(one[name][:few]) for one in cells) for name in ("tokens", "passes")]
        rows.append(
            [
                FAMILIES[family],
                f"`{rule}`" if rule in SPEEDS else rule,
                str(len(pairs[0])),
                *(f"{100 * fmean(side):.1f}" for side in reversed(pairs)),
                difference(*pairs),
                f"`{worst[0]}` {difference(worst[1]['right'][:few], worst[2]['right'][:few])}",
                f"{written[0] / written[1]:.2f}",
            ]
        )
    head = [
        "family",
        "rule",
        "problems",
        "one token a pass, %",
        "rule, %",
        "difference",
        "task that loses most",
    ]
    return table([*head, "tokens a pass"], rows)


GAP_RULES = {
    "true": "the true length",
    "bounds": "`cal` between half and twice the true length",
    "cal": "`cal`",
    "fixed 8": "8 slots",
    "fixed 16": "16 slots",
    "fixed 32": "32 slots",
    "void-gap": "`void-gap`",
    "void-gap bounds": "`void-gap` between half and twice the true length",
}


def gaps() -> Lines:
    rows = []
    for arm, rule, family in product(("instruct", "void-gap"), GAP_RULES, FAMILIES):
        one = found(family, arm, "tiny_fill", plan=rule)
        if one:
            work = [f"{fmean(one[name]):.1f}" for name in ("probes", "passes")]
            rows.append([FAMILIES[family], f"`{arm}`", GAP_RULES[rule], share(one["right"]), *work])
    return table(["family", "weights", "length of each gap", "right %", "probes", "passes"], rows)


# The cells that answer as the methods of the wall time do: weights, plan and block size.
TIMED = {
    "original": ("instruct", "original", 32),
    "original, stopped at EOS": ("instruct", "original", 32),
    "Rainbow, stopped at EOS": ("rainbow", "original", 32),
    "VOID": ("void", "void", 32),
    "VOID, expanding": ("void", "void-expansion", 16),
    "DAEDAL": ("instruct", "daedal", 16),
    "rho-EOS": ("instruct", "rho-eos", 16),
}


def right_of(family: str, method: str) -> str:
    """Right answers of a timed method, over the mirrored tasks."""
    arm, plan, block = TIMED[method]
    cells = [found(family, arm, task, block, plan=plan) for task in score.MIRRORED]
    return over_tasks(cells) if all(cells) else ""


def rivals() -> Lines:
    """Methods that find the length themselves, over the mirrored tasks, against VoidExpansion on the same problems."""
    rows = []
    for family, method in product(FAMILIES, ("VOID, expanding", "DAEDAL", "rho-EOS")):
        arm, plan, block = TIMED[method]
        cells = [found(family, arm, task, block, plan=plan) for task in score.MIRRORED]
        grown = [found(family, "void", task, 16, plan="void-expansion") for task in score.MIRRORED]
        if not (all(cells) and all(grown)):
            continue
        pairs = on_same_problems(cells, grown)
        apart = difference(*pairs) if plan != "void-expansion" else ""
        rows.append(
            [FAMILIES[family], method, str(len(pairs[0])), over_tasks(cells), f"{passes(cells):.1f}", apart]
        )
    return table(["family", "method", "problems", "right %", "passes", "against VoidExpansion"], rows)


def wall_time() -> Lines:
    lines = [one for one in records() if one.get("again") == 1]
    first = {one["family"]: one["seconds"] for one in lines if one["method"] == "DAEDAL"}
    rows = [
        [
            FAMILIES[one["family"]],
            one["method"],
            str(one["rows"]),
            f"{one['passes']:.1f}",
            f"{one['seconds']:.2f}",
            f"{first[one['family']] / one['seconds']:.2f}",
            right_of(one["family"], one["method"]),
        ]
        for one in lines
    ]
    return table(
        ["family", "method", "rows", "passes", "seconds", "times as fast as DAEDAL", "right %"], rows
    )


def precision() -> Lines:
    """Cells that were answered in float16 and in float32."""
    rows = []
    for one in (one for one in records() if one.get("control")):
        other = found(one["family"], one["arm"], one["task"], one["block"])
        if other:
            both = list(zip(one["right"], other["right"], strict=False))
            apart = str(sum(a != b for a, b in both))
            rows.append(
                [
                    FAMILIES[one["family"]],
                    f"`{one['task']}`",
                    share(one["right"]),
                    share(other["right"]),
                    apart,
                ]
            )
    return table(["family", "task", "float32", "float16", "verdicts that differ"], rows)


TABLES: dict[str, Callable[[], Lines]] = {
    "tasks-llada": lambda: by_task("llada"),
    "tasks-dream": lambda: by_task("dream"),
    "copying": copying,
    "headline": headline,
    "eos-last": eos_last,
    "expansion": expansion,
    "structured": structured_output,
    "decide": lambda: table(
        ["model", "estimate", "problems", "right %", "calibration error"],
        list(structured.decisions()),
    ),
    "gaps": gaps,
    "speeds": speeds,
    "wall-time": wall_time,
    "precision": precision,
    "rivals": rivals,
}


def picture() -> None:
    """Right answers, tokens and passes by block size, mean of the seven tasks, for both families."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(9, 5.2), layout="constrained")
    grid = figure.subplots(2, 3, sharex=True, sharey="col")
    columns = {
        "right": ("right answers, %", 100),
        "tokens": ("tokens of an answer", 65),
        "passes": ("passes, stopped at EOS", 270),
    }
    for (row, family), (column, name) in product(enumerate(FAMILIES), enumerate(columns)):
        label, top = columns[name]
        axes = grid[row][column]
        for arm, colour in (("instruct", "tab:red"), ("rainbow", "tab:orange"), ("void", "tab:blue")):
            scale = 100 if name == "right" else 1
            means = [
                scale * fmean([fmean(found(family, arm, task, block)[name]) for task in TASKS])
                for block in score.BLOCKS
            ]
            title = {"instruct": "EOS padding", "rainbow": "Rainbow", "void": "VOID padding"}[arm]
            axes.plot(score.BLOCKS, means, marker="o", color=colour, label=title)
        axes.set(xscale="log", xticks=score.BLOCKS, ylim=(0, top))
        axes.set_xticklabels(map(str, score.BLOCKS))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{FAMILIES[family]} family: {label}", fontsize="medium")
        if row:
            axes.set_xlabel("block size (the canvas is 256)")
    grid[0][0].legend(loc="lower left", fontsize="small")
    figure.savefig(DOCS / "img" / "blocks.png", dpi=110)


def shown(page: Path) -> dict[str, str]:
    """The tables of a page by name, as they stand there."""
    return {name: text for _, name, text, _ in SHOWN.findall(page.read_text(encoding="utf-8"))}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.results", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("tables", nargs="*", metavar="table", help=f"some of {', '.join(TABLES)}")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--picture", action="store_true")
    given = parser.parse_args()
    if given.picture:
        return picture()
    if given.write:
        for page in (DOCS / name for name in PAGES):
            text = page.read_text(encoding="utf-8")
            made = SHOWN.sub(lambda m: m[1] + "\n".join(TABLES[m[2]]()) + "\n" + m[4], text)
            page.write_text(made, encoding="utf-8")
        return
    for name in given.tables or TABLES:
        print(f"{name}\n")
        print("\n".join(TABLES[name]()), end="\n\n")


if __name__ == "__main__":
    main()
