"""Does a finished turn in the prompt change what EOS padding and VOID padding answer?

    python -m studies.builtin.turns --family llada --count 64

The built-in models were trained on single turns. Here the same held-out questions come alone and as the second turn of
a chat, after a training question of the task and one of its right answers, which the template ends with EOS. Number
tasks alone, since they are judged without running code. `--bound` is the entropy bound of a pass: 0.1 writes about
three tokens.
"""

import argparse
from collections.abc import Sequence
from random import Random
from statistics import fmean

from voidpad import load
from voidpad.builtin.problems import Problem
from voidpad.builtin.tasks import CANVAS, TASKS, check, heldout
from voidpad.evaluate.scores import paired
from voidpad.models import merge
from voidpad.models.locate import BUILT_IN_FAMILIES

NUMBERS = ("tiny_steps", "tiny_expr")
# Model, preset, block, and further fields of the plan.
ARMS = {
    "original, block 32": ("instruct", "original", 32, {"stop": "eos"}),
    "original, block = canvas": ("instruct", "original", CANVAS, {"stop": "eos"}),
    "eos-last, block 32": ("instruct", "eos-last", 32, {}),
    "eos-last, block = canvas": ("instruct", "eos-last", CANVAS, {}),
    "void, block 32": ("void", "void", 32, {"scores": "unbanned"}),
    "void, block = canvas": ("void", "void", CANVAS, {"scores": "unbanned"}),
}
Chat = list[dict[str, str]]


def questions(count: int) -> list[tuple[Problem, Chat]]:
    """Held-out problems of each number task, each with the turn that may come before it."""
    rng, found = Random("first turn"), list[tuple[Problem, Chat]]()
    for name in NUMBERS:
        for problem in heldout(name, count):
            first = TASKS[name].sample(rng)
            answer = TASKS[name].answer(first, rng)
            turn = [{"role": "user", "content": first.prompt}, {"role": "assistant", "content": answer}]
            found.append((problem, turn))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.turns", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--family", choices=BUILT_IN_FAMILIES, default="llada")
    parser.add_argument("--count", type=int, default=64, help="problems of each task")
    parser.add_argument("--bound", type=float, default=0.1, help="entropy bound of a pass")
    given = parser.parse_args(arguments)
    asked = questions(given.count)
    scores: dict[tuple[str, int], list[bool]] = {}
    print("| model and rules | turns | right | answer tokens | passes |\n|---|---|---|---|---|")
    for name, (part, preset, block, fields) in ARMS.items():
        model = load(f"{BUILT_IN_FAMILIES[given.family]}-{part}")
        model = model if part == "instruct" else merge(model)
        for turns in (1, 2):
            chats = [
                [*(turn if turns == 2 else []), {"role": "user", "content": one.prompt}]
                for one, turn in asked
            ]
            plan = {"canvas": CANVAS, "block": block, "entropy_bound": given.bound, **fields}
            results = model.generate(chats, preset, **plan)
            right = [check(one, result.text) for (one, _), result in zip(asked, results, strict=True)]
            words = fmean(
                sum(token not in model.roles.all() for token in result.tokens) for result in results
            )
            passes = fmean(result.passes_decode for result in results)
            scores[name, turns] = right
            shown = f"{sum(right)} of {len(right)}"
            print(f"| {name} | {turns} | {shown} | {words:.1f} | {passes:.1f} |", flush=True)
    for block in ("block 32", "block = canvas"):
        for rival in ("original", "eos-last"):
            pairs = zip(scores[f"{rival}, {block}", 2], scores[f"void, {block}", 2], strict=True)
            points, half = paired([100.0 * (mine - theirs) for theirs, mine in pairs])
            print(f"two turns, {block}: void less {rival} {points:+.1f} ± {half:.1f} points")


if __name__ == "__main__":
    main()
