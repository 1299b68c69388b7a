"""CPU seconds (user and system) before a command does its work: the least of five runs, each a process of its own.

    python -m studies.benchmarks.startup
    python -m studies.benchmarks.startup --busy    # and how much longer an answer takes while two others compute

`help` is `voidpad --help`. `answer` is `voidpad generate` with the built-in model and a canvas of 8 tokens that one
pass fills, so that next to nothing of it is decoding. `--busy` times whole answers by the clock, with the threads the
command chooses, on a machine that is otherwise quiet: alone, and beside two processes that keep a core busy each.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
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


PROBLEM = "Ann has 12 apples.\n(1) Ann buys 5.\n(2) Ann makes it 2 times as many.\nHow many apples after (2)?"
SLOWER = 2.0  # aim: times the clock time of a quiet machine


def busy(runs: int = 5, others: int = 2) -> tuple[float, float]:
    """Median clock seconds of an answer of the built-in model, alone and beside so many processes that compute."""
    quiet = statistics.median(_clock_seconds() for _ in range(runs))
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        return quiet, statistics.median(_clock_seconds() for _ in range(runs))
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _clock_seconds() -> float:
    chosen = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY"}  # by the command, not by us
    environment = {name: value for name, value in os.environ.items() if name not in chosen}
    command = [sys.executable, "-m", "voidpad", "generate", "--model", "tiny-void", PROBLEM]
    began = time.perf_counter()
    subprocess.run(command, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--busy", action="store_true", help="time answers on a busy machine instead")
    if parser.parse_args().busy:
        quiet, slow = busy()
        print(
            f"answer: {quiet:.1f} s alone, {slow:.1f} s beside two others: {slow / quiet:.2f} times, at most {SLOWER}"
        )
        return
    for name, seconds in measure().items():
        print(f"{name}: {seconds:.2f} s of CPU time, at most {AIMS[name]} s wanted")


if __name__ == "__main__":
    main()
