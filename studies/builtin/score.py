"""Answers of trained models to test problems, judged, with every verdict kept.

    python -m studies.builtin.score --family llada --count 24 --out runs/score/llada.jsonl
    python -m studies.builtin.score --runs runs/tiny --family llada --count 24 --out runs/score/trained.jsonl

One line a problem: arm, block, task, index, text, tokens, passes, right, copied. A run goes on where it stopped; the
table of what is there is printed at the end. Without a folder of trainings, the models that ship answer.
`--stage answer` and `--stage judge` divide the work between a machine with a GPU and one with a sandbox. `tiny_fill` is
decoded with the true length of each gap, one slot a pass.
"""

import argparse
import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch

from voidpad.builtin import fills
from voidpad.builtin.problems import GAP, Problem
from voidpad.builtin.tasks import CANVAS, EVERY, check, heldout
from voidpad.builtin.words import PEOPLE, PLACES, THINGS, VERBS
from voidpad.files import store
from voidpad.models import Model, load, merge
from voidpad.models.locate import BUILT_IN_FAMILIES
from voidpad.sandbox import Sandbox

PLANS = {"instruct": "original", "eos": "original", "rainbow": "original", "void": "void", "void-gap": "void"}
KEYS = ("arm", "block", "task", "index")
OPEN = frozenset(word for words in (PEOPLE, PLACES, THINGS, VERBS) for word in words)
WORD = re.compile(r"[A-Za-z]{3,}")


def copied(problem: Problem, text: str, known: frozenset[str]) -> bool:
    """Whether every word of an answer is a known one (of the tasks' own phrases) or stands in what was asked."""
    given = set(WORD.findall(problem.whole))
    return all(word in given or word in known for word in WORD.findall(text))


def phrases(count: int = 400) -> frozenset[str]:
    """Words of the tasks' own phrases: those that stand in many answers and are no names."""
    rng, seen = Random("phrases"), defaultdict[str, set[int]](set)
    for name, task in EVERY.items():
        for number in range(count):
            problem = task.sample(rng)
            given = {*re.findall(r"[A-Za-z]{3,}", problem.whole)}
            for word in re.findall(r"[A-Za-z]{3,}", task.answer(problem, rng)):
                if word not in given:
                    seen[word].add(hash((name, number)))
    return frozenset(word for word, where in seen.items() if len(where) > 1 or word not in OPEN)


@torch.inference_mode()
def fill(model: Model, problem: Problem, lengths: Sequence[int] | None = None) -> str:
    """The text with its gaps filled, the surest slot first; EOS and padding tokens are never written."""
    given = problem.prompt.split(GAP)
    encode = model.tokenizer.backend_tokenizer.encode
    lengths = lengths or [len(encode(gap).ids) for gap in problem.gaps]
    row, slots = list(encode(given[0]).ids), []
    for length, part in zip(lengths, given[1:], strict=True):
        slots.append(range(len(row), len(row) + length))
        row += [model.roles.mask] * length + encode(part).ids
    ids = torch.tensor([row], device=model.device)
    banned = sorted(model.roles.all())
    while (ids == model.roles.mask).any():
        logits = model.net(ids).logits[0].float()
        logits[:, banned] = -torch.inf
        logits = logits.roll(model.family.shift, 0)
        surest, token = logits.softmax(-1).max(-1)
        surest[ids[0] != model.roles.mask] = -1
        best = int(surest.argmax())
        ids[0, best] = token[best]
    return fills.filled(problem, [model.tokenizer.decode(ids[0, list(gap)].tolist()) for gap in slots])


def wilson(right: int, count: int, z: float = 1.96) -> tuple[float, float]:
    if not count:
        return 0.0, 1.0
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return middle - half, middle + half


def answers(model: Model, arm: str, task: str, block: int, problems: list[Problem]) -> list[dict[str, Any]]:
    if task == "tiny_fill":
        texts = [fill(model, problem) for problem in problems]
        return [{"text": text, "tokens": 0, "passes": 0} for text in texts]
    prompts = [problem.messages for problem in problems]
    results = model.generate(prompts, PLANS[arm], canvas=CANVAS, block=block, stop="eos")
    return [
        {
            "text": one.text,
            "tokens": sum(token not in model.roles.all() for token in one.tokens),
            "passes": one.passes_decode,
        }
        for one in results
    ]


def answer(given: argparse.Namespace) -> None:
    """Decode what is not in the file yet; verdicts come later, because a machine with a GPU may have no sandbox."""
    done = {tuple(one[key] for key in KEYS) for one in read(given.out)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for arm in given.arms:
        name = f"{BUILT_IN_FAMILIES[given.family]}-{arm}"
        if given.runs:
            name = str(given.runs / given.family / arm / "model")
        model = load(name, device=given.device, dtype="float32")
        model = model if arm == "instruct" else merge(model)
        for block in given.blocks:
            for task in given.tasks:
                if task == "tiny_fill" and block != given.blocks[0]:
                    continue
                wanted = [k for k in range(given.count) if (arm, block, task, k) not in done]
                if not wanted:
                    continue
                problems = heldout(task, given.count)
                made = answers(model, arm, task, block, [problems[k] for k in wanted])
                with given.out.open("a") as file:
                    for k, one in zip(wanted, made, strict=True):
                        line = {"arm": arm, "block": block, "task": task, "index": k, **one}
                        file.write(json.dumps(line) + "\n")
                print(time.strftime("%H:%M:%S"), given.family, arm, block, task, len(wanted), flush=True)


def judge(out: Path) -> None:
    """Add the verdicts that are missing."""
    lines, known, sandbox = read(out), phrases(), Sandbox()
    count = max((one["index"] + 1 for one in lines), default=0)
    problems = {task: heldout(task, count) for task in {one["task"] for one in lines}}
    for one in lines:
        if "right" not in one:
            problem = problems[one["task"]][one["index"]]
            one["right"] = check(problem, one["text"], sandbox)
            one["copied"] = copied(problem, one["text"], known)
    store(out, [json.dumps(one) + "\n" for one in lines])


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []


def table(out: Path, **chosen: Any) -> str:
    groups = defaultdict[tuple[str, int, str], list[dict[str, Any]]](list)
    for one in read(out):
        if all(one[key] == value for key, value in chosen.items()):
            groups[one["arm"], one["block"], one["task"]].append(one)
    shown = []
    for (arm, block, task), ones in groups.items():
        right, count = sum(one["right"] for one in ones), len(ones)
        low, high = wilson(right, count)
        same, tokens, passes = (
            sum(one[key] for one in ones) / count for key in ("copied", "tokens", "passes")
        )
        shown.append(
            f"{arm:9} {block:4} {task:14} {100 * right / count:5.1f} ({100 * low:.0f}-{100 * high:.0f}) of {count}"
            f"  copied {100 * same:5.1f}  answer {tokens:5.1f}  passes {passes:5.1f}"
        )
    return "\n".join(shown)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.score", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=Path, help="a folder of studies.builtin.train")
    parser.add_argument("--family", choices=BUILT_IN_FAMILIES, default="llada")
    parser.add_argument(
        "--arms", type=lambda text: text.split(","), default=["instruct", "void", "eos", "rainbow"]
    )
    parser.add_argument(
        "--blocks", type=lambda text: [int(part) for part in text.split(",")], default=[32, CANVAS]
    )
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=list(EVERY))
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stage", choices=["answer", "judge", "both"], default="both")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.stage != "judge":
        answer(given)
    if given.stage != "answer":
        judge(given.out)
        print(table(given.out))


if __name__ == "__main__":
    main()
