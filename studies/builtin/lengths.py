"""The answers' lengths, and what a perfect model does with them: `python -m studies.builtin.lengths`.

Two numbers decide whether EOS padding overflows. `creep` is the lowest confidence with which a suffix of EOS
grows by one slot to the left, F(m - 1) / F(m), for one prompt, above the terse answers. `opening` is the best
confidence of any word in the first five slots of an empty canvas. While creep is the larger, the suffix wins.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch

from studies.builtin.oracle import oracle
from voidpad.builtin.problems import Problem, Task
from voidpad.builtin.tasks import CANVAS, TASKS
from voidpad.builtin.tokenizer import ROLES, tokenizer
from voidpad.decode.presets import plan
from voidpad.engine.batching import Engine

# The tasks that mirror the paper's; answers of the others have a certain beginning or nearly certain lengths.
MIRRORED = tuple(TASKS[name] for name in ("tiny_steps", "tiny_expr", "tiny_complete", "tiny_write"))
FEWEST = 4  # steps, below which an answer with steps may be as short as one without
TERSE_BELOW = 32  # slots; every answer with so many steps is at least this long
CELLS = (("eos", "original", CANVAS), ("eos", "original", 32), ("void", "void", CANVAS), ("void", "void", 32))


@dataclass(frozen=True)
class Lengths:
    """Answers of one task with one number of steps."""

    task: str
    steps: int
    share: float
    mean: float
    deviation: float
    terse: float
    over: float  # share that does not fit the canvas
    half: int  # median
    creep: float
    opening: float


def sampled(task: Task, steps: int, *, prompts: int, draws: int, rng: Random) -> list[list[list[str]]]:
    """Answers as pieces, by prompt."""
    encode = tokenizer().backend_tokenizer.encode_batch
    found: list[list[list[str]]] = []
    while len(found) < prompts:
        problem = task.draw(rng)
        if problem.steps == steps:
            found.append([e.tokens for e in encode([task.answer(problem, rng) for _ in range(draws)])])
    return found


def creep(lengths: Sequence[int]) -> float:
    """The lowest F(m - 1) / F(m) above the terse answers."""
    counts, seen, lowest = Counter(lengths), 0, 1.0
    for length in sorted(counts):
        if length >= TERSE_BELOW and seen:
            lowest = min(lowest, seen / (seen + counts[length]))
        seen += counts[length]
    return lowest


def opening(answers: Sequence[list[str]]) -> float:
    """The most frequent piece's share, at the most predictable of the first five slots."""
    shares = []
    for slot in range(5):
        counts = Counter(answer[slot] if slot < len(answer) else "" for answer in answers)
        shares.append(max(counts.values()) / len(answers))
    return max(shares)


def measure(task: Task, *, prompts: int = 8, draws: int = 1500, seed: int = 0) -> list[Lengths]:
    rng = Random(seed)
    sizes = Counter(task.draw(rng).steps for _ in range(4000))
    found = []
    for steps in sorted(size for size in sizes if size >= FEWEST):
        groups = sampled(task, steps, prompts=prompts, draws=draws, rng=rng)
        lengths = torch.tensor([len(a) for group in groups for a in group]).float()
        found.append(
            Lengths(
                task.name,
                steps,
                sizes[steps] / 4000,
                float(lengths.mean()),
                float(lengths.std()),
                float((lengths < TERSE_BELOW).float().mean()),
                float((lengths >= CANVAS).float().mean()),
                int(lengths.median()),
                sum(creep([len(a) for a in group]) for group in groups) / prompts,
                sum(opening(group) for group in groups) / prompts,
            )
        )
    return found


def problem_with_steps(task: Task, rng: Random, *, split: str = "train") -> Problem:
    """A problem with enough steps for an answer that leaves them out to be told apart by its length."""
    while True:
        problem = task.sample(rng, split=split)
        if problem.steps >= FEWEST:
            return problem


def perfect(task: Task, *, prompts: int = 4, draws: int = 1500, seed: int = 0) -> dict[str, list[int]]:
    """Answer lengths of a perfect model, by padding and block."""
    rng, found = Random(seed), defaultdict(list)
    for problem in (problem_with_steps(task, rng) for _ in range(prompts)):
        for policy, name, block in CELLS:
            model = oracle(problem, policy, draws=draws, seed=seed)
            engine = Engine(model, ROLES)
            (outcome,) = engine.run([model.prompt], plan(name, canvas=CANVAS, block=block, stop="eos"))
            found[f"{policy} {block}"].append(len(outcome.tokens) - 1)
    return dict(found)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.lengths", description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument(
        "--perfect", type=int, default=0, help="also decode so many prompts with a perfect model"
    )
    given = parser.parse_args(arguments)
    print("| task | steps | share | mean | sd | median | terse | over | creep | opening |\n|" + "---|" * 10)
    for task in MIRRORED:
        for one in measure(task, prompts=given.prompts):
            shares = f"{one.terse:.3f} | {one.over:.4f} | {one.creep:.2f} | {one.opening:.2f}"
            sizes = f"{one.share:.2f} | {one.mean:.0f} | {one.deviation:.0f} | {one.half}"
            print(f"| {one.task} | {one.steps} | {sizes} | {shares} |")
    for task in MIRRORED if given.perfect else ():
        print(f"{task.name}, answer lengths of a perfect model: {perfect(task, prompts=given.perfect)}")


if __name__ == "__main__":
    main()
