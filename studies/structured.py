"""Structured output on the built-in models: parts of `studies.builtin.score`, and how well `decide` is calibrated.

    python -m studies.builtin.score answer --only tiny_json        # right answers, matches and passes: the table
    python -m studies.structured decide --out runs/structured      # goes on where it stopped
    python -m studies.structured keep --out runs/structured        # pack its verdicts into docs/results
    python -m studies.structured picture                           # the picture of `decide`

Under a constraint, the tail `padding` weighs a slot after the end of the text by the model's belief that nothing stands
there, and `one` by 1, so that ending is free.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import voidpad
from voidpad.builtin.tasks import heldout
from voidpad.constrain.messages import TokenTables

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "results" / "tiny-decide.jsonl.gz"
RULES: dict[str, dict[str, float]] = {
    "threshold 0.9": {"threshold": 0.9},
    "entropy 0.1": {"entropy_bound": 0.1},
    "one token": {},
}
Verdict = dict[str, Any]


def constraint_of(problem: Any) -> voidpad.constrain.Constraint:
    """What the answer must look like."""
    return voidpad.json_schema(problem.schema)


def valid(problem: Any, text: str) -> bool:
    """Whether a text is JSON that the schema allows, in any spelling: `matched` asks for the one that we write."""
    import jsonschema  # judging alone needs it

    try:
        return bool(jsonschema.Draft202012Validator(problem.schema).is_valid(json.loads(text)))
    except ValueError:
        return False


def tail_of_weight_one() -> AbstractContextManager[Any]:
    """Inside, a slot after the end of a text weighs 1."""
    measured = TokenTables.beliefs

    def free(tables: TokenTables, log_p: Any) -> Any:
        found = measured(tables, log_p)
        found[:, -1] = 0.0
        return found

    return patch.object(TokenTables, "beliefs", free)


def decide(options: argparse.Namespace) -> None:
    """Decide between four numbers, one of them the answer: how probable was the choice, and was it right?

    The model has to name the result of several steps at once, without room to write them down, so it is often unsure.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    problems = heldout("tiny_steps", options.problems)
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True).strip()
    for name, estimate in product(options.models, ("product", "chain")):
        path = options.out / f"decide_{name}_{estimate}.jsonl"
        model = voidpad.load(name)
        for number in range(len(read(path)), len(problems)):
            target, draw = problems[number].target, random.Random(number)
            others = [str(n) for n in draw.sample(range(10, 100), 4) if str(n) != target][:3]
            choices = [f"#### {text}" for text in draw.sample([target, *others], 4)]
            decision = model.decide(problems[number].prompt, choices, exact=estimate == "chain")
            verdict = {
                "model": name,
                "estimate": estimate,
                "commit": commit,
                "right": int(decision.best == f"#### {target}"),
                "probability": round(decision.probabilities[decision.best], 4),
            }
            with path.open("a") as file:
                file.write(json.dumps(verdict) + "\n")


def read(path: Path) -> list[Verdict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(options: argparse.Namespace) -> None:
    """A record for each model and estimate: what its verdicts share, and a list for each number."""
    records = []
    for path in sorted(options.out.glob("decide_*.jsonl")):
        lines = read(path)
        lists = {name: [one[name] for one in lines] for name in ("right", "probability")}
        records.append({**lines[0], "commits": sorted({one["commit"] for one in lines}), **lists})
    KEPT.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in records).encode(), mtime=0))


def kept() -> list[Verdict]:
    return [json.loads(line) for line in gzip.decompress(KEPT.read_bytes()).splitlines()]


def decisions() -> Iterator[Sequence[str]]:
    """The rows of the table."""
    for one in kept():
        right, error = f"{100 * fmean(one['right']):.1f}", f"{calibration_error(one):.3f}"
        yield f"`{one['model']}`", one["estimate"], str(len(one["right"])), right, error


def calibration_error(found: Verdict) -> float:
    """The expected calibration error: how far probability and share of right decisions are apart, over ten bins."""
    return sum(abs(sure - right) * count / len(found["right"]) for sure, right, count in reliability(found))


def reliability(found: Verdict, bins: int = 10) -> list[tuple[float, float, int]]:
    """Mean probability, share of right decisions and their number, for each range of probabilities."""
    groups: dict[int, list[tuple[float, int]]] = {}
    for sure, right in zip(found["probability"], found["right"], strict=True):
        groups.setdefault(min(int(sure * bins), bins - 1), []).append((sure, right))
    return [
        (fmean([sure for sure, _ in group]), fmean([right for _, right in group]), len(group))
        for _, group in sorted(groups.items())
    ]


def picture(options: argparse.Namespace) -> None:
    """The share of right decisions against their probability; a dot is as large as the number of decisions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    names = sorted({one["model"] for one in kept()})
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        for found in (one for one in kept() if one["model"] == name):
            sure, right, counts = zip(*reliability(found), strict=True)
            (line,) = axes.plot(sure, right, label=f"{found['estimate']} ({calibration_error(found):.2f})")
            axes.scatter(sure, right, s=[4 * count for count in counts], color=line.get_color())
        axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
        axes.set(title=name, xlabel="probability of the decision", ylabel="share of right decisions")
        axes.legend(loc="lower right", title="estimate (error)", fontsize="small", title_fontsize="small")
    figure.savefig(ROOT / "docs" / "img" / "decide.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.structured", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=["decide", "keep", "picture"])
    parser.add_argument("--models", nargs="+", default=["tiny-void", "tiny-dream-void"])
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "structured")
    options = parser.parse_args()
    {"decide": decide, "keep": keep, "picture": picture}[options.what](options)


if __name__ == "__main__":
    main()
