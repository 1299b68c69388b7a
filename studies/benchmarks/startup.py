"""CPU seconds (user and system) before a command does its work: the least of five runs, each a process of its own.

    python -m studies.benchmarks.startup

`help` is `voidpad --help`. `answer` is `voidpad generate` with the built-in model and a canvas of 8 tokens that one
pass fills, so that next to nothing of it is decoding.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
AIMS = {"help": 0.5, "answer": 4.0}
COMMANDS = {
    "help": ["--help"],
    "answer": [
        "generate",
        "What is 2 + 2?",
        "--plan",
        "original",
        "--canvas",
        "8",
        "--block",
        "8",
        "--steps",
        "1",
    ],
}


def measure(runs: int = 5) -> dict[str, float]:
    """The least CPU seconds of each command."""
    return {name: min(_cpu_seconds(words) for _ in range(runs)) for name, words in COMMANDS.items()}


def _cpu_seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "voidpad", *words]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    for name, seconds in measure().items():
        print(f"{name}: {seconds:.2f} s of CPU time, at most {AIMS[name]} s wanted")


if __name__ == "__main__":
    main()
