"""Structured output on the built-in models: right answers, matches and passes, with and without a constraint.

    python -m studies.structured run --out runs/structured         # goes on where it stopped
    python -m studies.structured calibrate --out runs/structured   # how well `decide` knows what it knows
    python -m studies.structured keep --out runs/structured        # pack the verdicts into docs/results
    python -m studies.structured table                             # the tables of docs/structured-output.md
    python -m studies.structured picture                           # its picture of `decide`

A cell is a task, a model, a commit rule, a block size and a tail: `free` is decoding without a constraint; under a
constraint, `padding` weighs a slot after the end of the text by the model's belief that nothing stands there, and `one`
by 1, so that ending is free. Every problem has its verdict, one JSON line in the file of its cell, which also names the
commit of the run. Cheap cells come first: decoding one token a pass takes ten times as long as the others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import voidpad
from voidpad.builtin.tasks import check, heldout
from voidpad.constrain.messages import TokenTables
from voidpad.evaluate.intervals import mean, paired_bootstrap

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "results" / "tiny-structured.jsonl.gz"
STEPS = r"(\([0-9]\) [0-9]+ [*+\-] [0-9]+ = [0-9]+\n)+#### [0-9]+"
MODELS = ("tiny-void", "tiny-dream-void", "tiny-eos", "tiny-dream-eos")
RULES: dict[str, dict[str, float]] = {
    "threshold 0.9": {"threshold": 0.9},
    "entropy 0.1": {"entropy_bound": 0.1},
    "one token": {},
}
TAILS = ("padding", "free", "one")
CANVAS = 256
NUMBERS = ("right", "valid", "matched", "passes", "tokens")  # of a verdict, as they are kept
Verdict = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One way to answer the problems of a task."""

    task: str
    model: str
    rule: str
    block: int
    tail: str

    @property
    def file(self) -> str:
        return "_".join(map(str, astuple(self))).replace(" ", "-") + ".jsonl"


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for rule, block, model, tail in product(options.rules, options.blocks, options.models, options.tails):
        yield Cell(options.task, model, rule, block, tail)


def run(options: argparse.Namespace) -> None:
    """Answer the problems that have no verdict yet."""
    options.out.mkdir(parents=True, exist_ok=True)
    problems = heldout(options.task, options.problems)
    load = cache(voidpad.load)
    for cell in cells(options):
        path = options.out / cell.file
        done = len(read(path))
        plan = "void" if "void" in cell.model else "original"
        fields: dict[str, Any] = {"stop": "eos", "canvas": CANVAS, "block": cell.block, **RULES[cell.rule]}
        for first in range(done, len(problems), options.batch):
            model = load(cell.model)
            part = problems[first : first + options.batch]
            asked = [constraint_of(problem) for problem in part]
            with tail_of_weight_one() if cell.tail == "one" else nullcontext():
                results = model.generate(
                    [problem.prompt for problem in part],
                    plan,
                    constraint=None if cell.tail == "free" else asked,
                    **fields,
                )
            verdicts = [
                {
                    "right": int(check(problem, result.text)),
                    "valid": int(valid(problem, wanted, result.text)),
                    "matched": int(wanted.matches(result.text)),
                    "passes": result.passes_decode,
                    "tokens": sum(token not in model.roles.all() for token in result.tokens),
                    "text": result.text,
                }
                for problem, wanted, result in zip(part, asked, results, strict=True)
            ]
            append(path, asdict(cell), verdicts)
        print(row(cell, pack(read(path)), None), flush=True)


def tail_of_weight_one() -> AbstractContextManager[Any]:
    """Inside, a slot after the end of a text weighs 1."""
    measured = TokenTables.beliefs

    def free(tables: TokenTables, log_p: Any) -> Any:
        found = measured(tables, log_p)
        found[:, -1] = 0.0
        return found

    return patch.object(TokenTables, "beliefs", free)


def constraint_of(problem: Any) -> voidpad.constrain.Constraint:
    """What the answer must look like: the problem's schema, or steps in the short form."""
    schema = getattr(problem, "schema", None)
    return voidpad.json_schema(schema) if schema else voidpad.regex(STEPS)


def valid(problem: Any, wanted: voidpad.constrain.Constraint, text: str) -> bool:
    """Whether a text is JSON that the schema allows, in any spelling: `matched` asks for the one that we write."""
    if not getattr(problem, "schema", None):
        return wanted.matches(text)
    import jsonschema  # judging alone needs it

    try:
        return bool(jsonschema.Draft202012Validator(problem.schema).is_valid(json.loads(text)))
    except ValueError:
        return False


def calibrate(options: argparse.Namespace) -> None:
    """Decide between four numbers, one of them the answer: how probable was the choice, and was it right?

    The model has to name the result of several steps at once, without room to write them down, so it is often unsure.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    problems = heldout("tiny_steps", options.problems)
    for name, estimate in product(options.models, ("product", "chain")):
        path = options.out / f"decide_{name}_{estimate}.jsonl"
        model = voidpad.load(name)
        for number in range(len(read(path)), len(problems)):
            target, draw = problems[number].target, random.Random(number)
            others = [str(n) for n in draw.sample(range(10, 100), 4) if str(n) != target][:3]
            choices = [f"#### {text}" for text in draw.sample([target, *others], 4)]
            decision = model.decide(problems[number].prompt, choices, exact=estimate == "chain")
            verdict = {
                "right": int(decision.best == f"#### {target}"),
                "probability": round(decision.probabilities[decision.best], 4),
            }
            append(path, {"task": "decide", "model": name, "estimate": estimate}, [verdict])
        print(decision_row(pack(read(path))), flush=True)


# Verdicts


def append(path: Path, cell: dict[str, Any], verdicts: Sequence[Verdict]) -> None:
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True).strip()
    with path.open("a") as file:
        for verdict in verdicts:
            file.write(json.dumps({**cell, "commit": commit, **verdict}) + "\n")


def read(path: Path) -> list[Verdict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pack(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdicts of a cell as one record: what they share, and a list for each number."""
    lists = [name for name in (*NUMBERS, "probability") if name in verdicts[0]]
    shared = {name: value for name, value in verdicts[0].items() if name not in (*lists, "text", "commit")}
    commits = sorted({one["commit"] for one in verdicts})
    return {**shared, "commits": commits, **{name: [one[name] for one in verdicts] for name in lists}}


def keep(options: argparse.Namespace) -> None:
    records = [pack(read(path)) for path in sorted(options.out.glob("*.jsonl"))]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    KEPT.write_bytes(gzip.compress(lines.encode(), mtime=0))


def kept() -> list[Verdict]:
    return [json.loads(line) for line in gzip.decompress(KEPT.read_bytes()).splitlines()]


# Tables


def row(cell: Cell, found: Verdict, free: Verdict | None) -> str:
    """A line of the table; with the free cell, differences on the problems that both have, and their 95 % interval."""
    right, valid, matched = (100 * mean(found[name]) for name in ("right", "valid", "matched"))
    passes, tokens = mean(found["passes"]), mean(found["tokens"])
    against = " | "
    if free is not None:
        pairs = list(zip(found["right"], free["right"], strict=False))
        changes = [100.0 * (one - other) for one, other in pairs]
        low, high = paired_bootstrap(changes)
        fewer = sum(free["passes"][: len(pairs)]) / sum(found["passes"][: len(pairs)])
        against = f"{mean(changes):+.1f} [{low:+.1f}, {high:+.1f}] | {fewer:.1f}"
    return (
        f"| `{cell.model}` | {cell.rule} | {cell.block} | {cell.tail} | {len(found['right'])} | {right:.1f} "
        f"| {valid:.1f} | {matched:.1f} | {passes:.1f} | {tokens / passes:.1f} | {against} |"
    )


def decision_row(found: Verdict) -> str:
    right, error = 100 * mean(found["right"]), calibration_error(found)
    return f"| `{found['model']}` | {found['estimate']} | {len(found['right'])} | {right:.1f} | {error:.3f} |"


def calibration_error(found: Verdict) -> float:
    """The expected calibration error: how far probability and share of right decisions are apart, over ten bins."""
    return sum(abs(sure - right) * count / len(found["right"]) for sure, right, count in reliability(found))


def reliability(found: Verdict, bins: int = 10) -> list[tuple[float, float, int]]:
    """Mean probability, share of right decisions and their number, for each range of probabilities."""
    groups: dict[int, list[tuple[float, int]]] = {}
    for sure, right in zip(found["probability"], found["right"], strict=True):
        groups.setdefault(min(int(sure * bins), bins - 1), []).append((sure, right))
    return [
        (mean([sure for sure, _ in group]), mean([right for _, right in group]), len(group))
        for _, group in sorted(groups.items())
    ]


def tables() -> Iterator[str]:
    """The lines of the tables that the page shows, from the kept verdicts."""
    records = kept()
    found = {
        Cell(*(one[name] for name in ("task", "model", "rule", "block", "tail"))): one
        for one in records
        if one["task"] != "decide"
    }
    tails = ("free", "padding", "one")
    order = product(("tiny_json", "tiny_steps"), MODELS, RULES, (32, CANVAS), tails)
    yield from (
        row(cell, found[cell], None if cell.tail == "free" else found.get(replace(cell, tail="free")))
        for cell in (Cell(*parts) for parts in order)
        if cell in found
    )
    yield from (decision_row(one) for one in records if one["task"] == "decide")


def picture() -> None:
    """The share of right decisions against their probability; a dot is as large as the number of decisions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    models = [one for one in kept() if one["task"] == "decide"]
    names = sorted({one["model"] for one in models})
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        for found in (one for one in models if one["model"] == name):
            sure, right, counts = zip(*reliability(found), strict=True)
            (line,) = axes.plot(sure, right, label=f"{found['estimate']} ({calibration_error(found):.2f})")
            axes.scatter(sure, right, s=[4 * count for count in counts], color=line.get_color())
        axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
        axes.set(title=name, xlabel="probability of the decision", ylabel="share of right decisions")
        axes.legend(loc="lower right", title="estimate (error)", fontsize="small", title_fontsize="small")
    figure.savefig(ROOT / "docs" / "img" / "decide.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m studies.structured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["run", "calibrate", "keep", "table", "picture"])
    parser.add_argument("--task", default="tiny_json", choices=["tiny_json", "tiny_steps"])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--blocks", nargs="+", type=int, default=[32, CANVAS])
    parser.add_argument("--tails", nargs="+", default=list(TAILS), choices=TAILS)
    parser.add_argument("--problems", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "structured")
    options = parser.parse_args()
    if options.what == "table":
        print("\n".join(tables()))
    elif options.what == "picture":
        picture()
    else:
        {"run": run, "calibrate": calibrate, "keep": keep}[options.what](options)


if __name__ == "__main__":
    main()
