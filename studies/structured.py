"""Structured output on the built-in models: right answers, matches and passes, with and without a constraint.

    python studies/structured.py run --task tiny_json --out build/structured
    python studies/structured.py table --out build/structured
    python studies/structured.py calibrate --out build/structured

Every verdict is kept, one JSON line for each problem in a file for each cell; a run that was interrupted goes on where
it stopped. A cell is a task, a model, a way to decode, a block size and, under a constraint, the weight of the slots
after the end of the text: `padding` is the belief of the model that nothing stands there, `one` is 1: ending is free.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jsonschema

import voidpad
from voidpad.builtin.tasks import check, heldout
from voidpad.decode import constrained

STEPS = r"(\([0-9]\) [0-9]+ [*+\-] [0-9]+ = [0-9]+\n)+#### [0-9]+"
MODELS = (
    "tiny-void",
    "tiny-eos",
    "tiny-instruct",
    "tiny-dream-void",
    "tiny-dream-eos",
    "tiny-dream-instruct",
)
RULES = {"one token": {}, "threshold 0.9": {"threshold": 0.9}, "entropy 0.1": {"entropy_bound": 0.1}}
CANVAS = 256


@dataclass(frozen=True)
class Cell:
    """One way to answer the problems of a task."""

    task: str
    model: str
    rule: str
    block: int
    tail: str  # padding or one; "" without a constraint

    @property
    def name(self) -> str:
        parts = (self.task, self.model, self.rule, str(self.block), self.tail or "free")
        return "_".join(parts).replace(" ", "-")


def cells(task: str, models: tuple[str, ...]) -> Iterator[Cell]:
    for model in models:
        for block in (32, CANVAS):
            for rule in RULES:
                for tail in ("", "padding", "one"):
                    yield Cell(task, model, rule, block, tail)


@contextmanager
def tail_of_weight_one() -> Iterator[None]:
    """Inside, a slot after the end of a text weighs 1."""
    measured = constrained._reduced

    def free(*arguments):  # type: ignore[no-untyped-def]
        found = measured(*arguments)
        found[:, -1] = 0.0
        return found

    constrained._reduced = free
    try:
        yield
    finally:
        constrained._reduced = measured


def constraint_of(problem):  # type: ignore[no-untyped-def]
    """What the answer must look like: the problem's schema, or steps in the short form."""
    schema = getattr(problem, "schema", None)
    return voidpad.json_schema(schema) if schema else voidpad.regex(STEPS)


def valid(problem, text: str) -> bool | None:  # type: ignore[no-untyped-def]
    """Whether a text is JSON that the schema allows, in any spelling: `matched` asks for the one that we write."""
    schema = getattr(problem, "schema", None)
    if not schema:
        return None
    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)))
    except ValueError:
        return False


def answer(model: voidpad.Model, cell: Cell, problems: list, folder: Path, *, batch: int) -> None:
    """Answer the problems of a cell that have no verdict yet."""
    path = folder / f"{cell.name}.jsonl"
    done = len(path.read_text().splitlines()) if path.exists() else 0
    plan = "void" if "void" in cell.model else "original"
    fields = {"stop": "eos", "canvas": CANVAS, "block": cell.block, **RULES[cell.rule]}
    for first in range(done, len(problems), batch):
        part = problems[first : first + batch]
        asked = [constraint_of(problem) for problem in part]
        held = asked if cell.tail else None
        results = model.generate([problem.prompt for problem in part], plan, constraint=held, **fields)
        with path.open("a") as file:
            for problem, wanted, result in zip(part, asked, results, strict=True):
                verdict = {
                    "right": bool(check(problem, result.text)),
                    "matched": wanted.matches(result.text),
                    "valid": valid(problem, result.text),
                    "passes": result.passes_decode,
                    "tokens": sum(token not in model.roles.all() for token in result.tokens),
                    "text": result.text,
                }
                file.write(json.dumps(verdict) + "\n")


def run(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    problems = heldout(options.task, options.problems)
    loaded: dict[str, voidpad.Model] = {}
    for cell in cells(options.task, tuple(options.models)):
        if cell.rule not in options.rules:
            continue
        if cell.model not in loaded:
            loaded = {cell.model: voidpad.load(cell.model)}
        model = loaded[cell.model]
        (options.out / f"{cell.name}.json").write_text(json.dumps(asdict(cell)))
        if cell.tail == "one":
            with tail_of_weight_one():
                answer(model, cell, problems, options.out, batch=options.batch)
        else:
            answer(model, cell, problems, options.out, batch=options.batch)
        print(row(cell, options.out), flush=True)


def calibrate(options: argparse.Namespace) -> None:
    """How well the probabilities of `Model.decide` say how often it is right: four numbers, one of them the answer.

    The model has to name the result of several steps at once, without room to write them down, so it is often unsure.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    problems = heldout("tiny_steps", options.problems)
    for name in options.models:
        model = None
        for exact in (False, True):
            path = options.out / f"decide_{name}_{'chain' if exact else 'product'}.jsonl"
            done = len(path.read_text().splitlines()) if path.exists() else 0
            for number, problem in list(enumerate(problems))[done:]:
                model = model or voidpad.load(name)
                draw = random.Random(number)
                others = [str(n) for n in draw.sample(range(10, 100), 4) if str(n) != problem.target][:3]
                choices = [f"#### {text}" for text in draw.sample([problem.target, *others], 4)]
                decision = model.decide(problem.prompt, choices, exact=exact, canvas=options.canvas)
                verdict = {
                    "right": decision.best == f"#### {problem.target}",
                    "probability": decision.probabilities[decision.best],
                }
                with path.open("a") as file:
                    file.write(json.dumps(verdict) + "\n")
            print(reliability(f"{name}, {'chain' if exact else 'product'}", path), flush=True)


def reliability(title: str, path: Path, bins: int = 10) -> str:
    """Share of right decisions for each range of probability, and the expected calibration error."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    groups: dict[int, list[dict]] = {}
    for one in found:
        groups.setdefault(min(int(one["probability"] * bins), bins - 1), []).append(one)
    parts, error = [], 0.0
    for number, group in sorted(groups.items()):
        sure, right = (sum(one[name] for one in group) / len(group) for name in ("probability", "right"))
        error += abs(sure - right) * len(group) / len(found)
        parts.append(f"{number / bins:.1f}: {right:.2f} of {len(group)}")
    share = sum(one["right"] for one in found) / len(found)
    return f"{title}: {share:.3f} right of {len(found)}, calibration error {error:.3f}; {', '.join(parts)}"


def verdicts(cell: Cell, folder: Path) -> list[dict]:
    path = folder / f"{cell.name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def row(cell: Cell, folder: Path) -> str:
    """A line of the table; under a constraint with the paired difference from free decoding, 95 % interval."""
    found = verdicts(cell, folder)
    if not found:
        return ""
    count = len(found)
    right, matched = (100 * sum(one[name] for one in found) / count for name in ("right", "matched"))
    passes, tokens = (sum(one[name] for one in found) / count for name in ("passes", "tokens"))
    legal = "" if found[0].get("valid") is None else f"{100 * sum(one['valid'] for one in found) / count:.1f}"
    difference = ""
    free = verdicts(replace(cell, tail=""), folder)
    if cell.tail and len(free) == count:
        changes = [one["right"] - other["right"] for one, other in zip(found, free, strict=True)]
        low, high = bootstrap(changes)
        fewer = sum(one["passes"] for one in free) / sum(one["passes"] for one in found)
        difference = (
            f"{100 * sum(changes) / count:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}), {fewer:.1f}x"
        )
    return (
        f"| {cell.model} | {cell.rule} | {cell.block} | {cell.tail or 'free'} | {count} "
        f"| {right:.1f} | {legal} | {matched:.1f} | {passes:.1f} | {tokens / passes:.1f} | {difference} |"
    )


def bootstrap(changes: list[int], rounds: int = 10_000) -> tuple[float, float]:
    """The 95 % interval of a mean of paired differences."""
    draw = random.Random(0)
    means = sorted(sum(draw.choices(changes, k=len(changes))) / len(changes) for _ in range(rounds))
    return means[int(0.025 * rounds)], means[int(0.975 * rounds)]


def table(options: argparse.Namespace) -> None:
    found = [Cell(**json.loads(path.read_text())) for path in sorted(options.out.glob("*.json"))]
    for task in sorted({cell.task for cell in found}):
        print(f"\n{task}, canvas {CANVAS}\n")
        names = "model, rule, block, tail, problems, right %, valid %, matches %, passes, tokens a pass, against free"
        print(f"| {names.replace(', ', ' | ')} |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for cell in sorted((one for one in found if one.task == task), key=lambda one: one.name):
            print(row(cell, options.out))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table", "calibrate"])
    parser.add_argument("--task", default="tiny_json", choices=["tiny_json", "tiny_steps"])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--problems", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--canvas", type=int, help="of decisions; the longest choice and the end by default")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    {"run": run, "table": table, "calibrate": calibrate}[options.what](options)


if __name__ == "__main__":
    main()
