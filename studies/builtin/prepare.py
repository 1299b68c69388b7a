"""Generate training examples into one prepared tensor file: `python -m studies.builtin.prepare --out FILE`.

A row with gaps is `text span text ...`: only the spans are ever hidden in padded rows. With `--void-gaps`, spans are
padded with VOID, for the adapter that tells a gap's length (spec/infilling.md), among ordinary examples.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
import torch

from studies.builtin.chat import TRAINED
from voidpad.builtin.problems import GAP, Problem, Task, between, weighted
from voidpad.builtin.tasks import CANVAS
from voidpad.builtin.tokenizer import ROLES, tokenizer, wrap
from voidpad.training import prepared as data
from voidpad.training.prepared import Pairs

CHUNK = 4000  # examples per piece of work: small enough to share out evenly
LONGEST = 480  # tokens of a row: the models' context is 512
# More of what the first training of this edition learnt least; those of vocabulary.py made the tokenizer and stay.
SHARES = {
    "tiny_steps": 0.09,
    "tiny_expr": 0.10,
    "tiny_complete": 0.09,
    "tiny_write": 0.08,
    "tiny_json": 0.17,
    "tiny_fill": 0.12,
    "tiny_search": 0.21,
    "tiny_turns": 0.09,
    "tiny_chat": 0.05,
}
EASY = 0.5  # share of the searches that are the shorter one of two
VOID_GAPS = {"tiny_fill": 0.65}  # shares of the file for void-gap; ordinary tasks share the rest
MOST_VOID = 24  # slots too many in a gap
Chunk = tuple[np.ndarray, ...]  # tokens, fixed; prompt lengths, response lengths, complete


def shares(void_gaps: bool) -> dict[str, float]:
    if not void_gaps:
        return SHARES
    rest = sum(share for name, share in SHARES.items() if name not in VOID_GAPS)
    left = 1 - sum(VOID_GAPS.values())
    return VOID_GAPS | {name: left * share / rest for name, share in SHARES.items() if name not in VOID_GAPS}


def drawn(task: Task, rng: Random) -> tuple[Problem, str]:
    """A training problem and one of its answers. Half of the searches are made easier: they are hardest to learn."""
    problem = task.sample(rng)
    if task.name == "tiny_search" and rng.random() < EASY:
        problem = min(problem, task.sample(rng), key=lambda one: one.steps)
    return problem, task.answer(problem, rng)


def examples(count: int, rng: Random, *, void_gaps: bool = False) -> Iterator[tuple[Problem, list[str]]]:
    """Training problems with their texts: what is given and what is answered, in turn. Test prompts never occur."""
    names, parts = zip(*shares(void_gaps).items(), strict=True)
    for _ in range(count):
        problem, answer = drawn(TRAINED[names[weighted(rng, parts)]], rng)
        if problem.gaps:
            given = problem.prompt.split(GAP)
            yield problem, [*chain.from_iterable(zip(given, problem.gaps, strict=False)), given[-1]]
        else:
            yield problem, [wrap(problem), answer]


def chunk(job: tuple[int, int, int, bool]) -> Chunk:
    """One piece of the file; its content depends on the seed and its index, not on the number of workers."""
    seed, index, count, void_gaps = job
    rng = Random(f"tiny {'void-gap' if void_gaps else 'train'} {seed} {index}")
    made = list(examples(count, rng, void_gaps=void_gaps))
    encoded = iter(
        tokenizer().backend_tokenizer.encode_batch_fast([text for _, texts in made for text in texts])
    )
    tokens: list[int] = []
    fixed: list[int] = []
    lengths: list[tuple[int, int, bool]] = []
    for problem, texts in made:
        parts = [next(encoded).ids for _ in texts]
        if problem.gaps and void_gaps:
            spare = [0 if rng.random() < 0.25 else between(rng, 1, MOST_VOID) for _ in problem.gaps]
            parts[1::2] = [ids + [ROLES.void] * more for ids, more in zip(parts[1::2], spare, strict=True)]
        size = sum(map(len, parts))
        # An answer that fills the canvas leaves no room for EOS and padding; a few in a thousand do.
        if size > LONGEST or (not problem.gaps and len(parts[1]) >= CANVAS) or not all(parts[1::2]):
            continue
        for number, ids in enumerate(parts):
            tokens += ids
            fixed += [int(number > 0 and number % 2 == 0)] * len(ids)
        lengths.append((len(parts[0]), size - len(parts[0]), not problem.gaps))
    table = np.array(lengths, dtype=np.int32)
    return (
        np.array(tokens, dtype=np.int16),
        np.array(fixed, dtype=np.uint8),
        table[:, 0],
        table[:, 1],
        table[:, 2],
    )


def prepare(out: Path, examples: int, *, seed: int = 0, workers: int = 1, void_gaps: bool = False) -> int:
    """Write the file and return how many examples it holds."""
    jobs = [(seed, i, min(CHUNK, examples - i * CHUNK), void_gaps) for i in range(-(-examples // CHUNK))]
    if workers > 1:
        # Spawned, not forked: the tokenizer's threads do not survive a fork.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            chunks = list(pool.map(chunk, jobs))
    else:
        chunks = [chunk(job) for job in jobs]
    parts = [torch.from_numpy(np.concatenate(part)) for part in zip(*chunks, strict=True)]
    tokens, fixed, prompt, response, complete = parts
    pairs = Pairs(tokens, prompt, response, complete.bool(), fixed=fixed.bool())
    notes = {"source": "voidpad.builtin", "seed": seed, "examples": len(prompt), "canvas": CANVAS}
    data.write(out, pairs, ROLES, notes=notes)
    return len(prompt)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.prepare", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--void-gaps", action="store_true", help="gaps padded with VOID, among ordinary examples"
    )
    given = parser.parse_args(arguments)
    count = prepare(
        given.out, given.examples, seed=given.seed, workers=given.workers, void_gaps=given.void_gaps
    )
    print(f"{given.out}: {count} examples")


if __name__ == "__main__":
    main()
