"""Generate training examples into one prepared tensor file: `python -m studies.builtin.prepare --out FILE`.

With `--names`, every example asks for a function and the answer is its first line: a drill in copying the name.
"""

import argparse
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
import torch

from voidpad.builtin.tasks import CANVAS, TASKS
from voidpad.builtin.tokenizer import ROLES, tokenizer, wrap
from voidpad.training import prepared as data
from voidpad.training.padding import Pairs

CHUNK = 4000  # examples per piece of work: small enough to share out evenly
Chunk = tuple[np.ndarray, np.ndarray, np.ndarray]  # tokens, prompt lengths, response lengths


def examples(count: int, rng: Random) -> Iterator[tuple[str, str]]:
    """Training prompts with one answer each, tasks in equal shares; test prompts never occur."""
    tasks = tuple(TASKS.values())
    for index in range(count):
        task = tasks[index % len(tasks)]
        problem = task.sample(rng)
        yield wrap(problem.prompt), task.answer(problem, rng)


def names(count: int, rng: Random) -> Iterator[tuple[str, str]]:
    """Training prompts of `tiny_write`, each answered by the first line of the function."""
    for _ in range(count):
        prompt = TASKS["tiny_write"].sample(rng).prompt
        head = re.search(r"function (\w+\(x\))", prompt)
        assert head is not None
        yield wrap(prompt), f"def {head[1]}:"


def chunk(job: tuple[int, int, int, bool]) -> Chunk:
    """One piece of the file; its content depends on the seed and its index, not on the number of workers."""
    seed, index, count, drill = job
    made = (names if drill else examples)(count, Random(f"tiny train {seed} {index}"))
    prompts, answers = zip(*made, strict=True)
    encode = tokenizer().backend_tokenizer.encode_batch_fast
    pairs = zip(encode(prompts), encode(answers), strict=True)
    # An answer that fills the canvas leaves no room for EOS and padding; a few in ten thousand do.
    rows = [(p.ids, a.ids) for p, a in pairs if len(a.ids) < CANVAS]
    tokens = np.fromiter(chain.from_iterable(chain.from_iterable(rows)), dtype=np.int16)
    lengths = np.array([(len(prompt), len(answer)) for prompt, answer in rows], dtype=np.int32)
    return tokens, lengths[:, 0], lengths[:, 1]


def prepare(out: Path, examples: int, *, seed: int = 0, workers: int = 1, drill: bool = False) -> int:
    """Write the file and return how many examples it holds."""
    jobs = [(seed, i, min(CHUNK, examples - i * CHUNK), drill) for i in range(-(-examples // CHUNK))]
    if workers > 1:
        # Spawned, not forked: the tokenizer's threads do not survive a fork.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            chunks = list(pool.map(chunk, jobs))
    else:
        chunks = [chunk(job) for job in jobs]
    tokens, prompt, response = (torch.from_numpy(np.concatenate(part)) for part in zip(*chunks, strict=True))
    pairs = Pairs(tokens, prompt, response, torch.ones(len(prompt), dtype=torch.bool))
    notes = {"source": "voidpad.builtin", "seed": seed, "examples": len(prompt), "canvas": CANVAS}
    data.write(out, pairs, ROLES, notes=notes)
    return len(prompt)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.prepare", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--names", action="store_true", help="first lines of functions alone")
    given = parser.parse_args(arguments)
    count = prepare(given.out, given.examples, seed=given.seed, workers=given.workers, drill=given.names)
    print(f"{given.out}: {count} examples")


if __name__ == "__main__":
    main()
