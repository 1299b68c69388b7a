"""How long grading takes: the reference answers of four benchmarks through their graders. Prints seconds.

    python studies/benchmarks/golds.py --data DATA/benchmarks
    python studies/benchmarks/golds.py --data DATA/benchmarks --before WORKTREE --rounds 5

Every measurement is a process of its own, from the loaded task to the last score. CPU time counts all child
processes and is the one to read on a busy machine. With `--before`, the folder of another checkout (commit 6bd19ce or
later), rounds alternate between the two and the ratios are of the best rounds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Doc = dict[str, Any]
GOLDS: dict[
    str, tuple[str, Callable[[Doc], str]]
] = {  # by name, the task and the reference answer to an item
    "humaneval": ("humaneval", lambda doc: doc["canonical_solution"]),
    "humaneval whole functions": (
        "humaneval",
        lambda doc: f"Sure:\n```python\n{doc['prompt']}{doc['canonical_solution']}\n```\nThat does it.",
    ),
    "math500": ("math500", lambda doc: f"It is $\\boxed{{{doc['gold']}}}$."),
    "mbpp 974": ("mbpp_974", lambda doc: doc["code"]),
    "gsm8k": ("gsm8k", lambda doc: doc["answer"]),
}


def measure(name: str, data: Path) -> dict[str, float]:
    """Grade the reference answers in this process: wall clock, CPU seconds and percent correct."""
    from voidpad.evaluate import EvalConfig, Resources
    from voidpad.evaluate.prepare import load_tasks

    task_name, answer = GOLDS[name]
    resources = Resources(data=data, allow_code_execution=True, workers=2)
    task: Any = load_tasks(EvalConfig(model="none", tasks=(task_name,)), resources)[task_name]
    metric, grader = task.primary
    task.build_all_requests()
    for instance in task.instances:
        instance.resps.append(answer(instance.doc))
    wall, cpu = time.perf_counter(), cpu_seconds()
    task.apply_filters()
    scores = [task.process_results(one.doc, [one.filtered_resps[grader]])[metric] for one in task.instances]
    return {
        "wall": time.perf_counter() - wall,
        "cpu": cpu_seconds() - cpu,
        "correct": 100 * sum(scores) / len(scores),
    }


def cpu_seconds() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def in_child(name: str, data: Path, tree: Path) -> dict[str, float]:
    """`measure` in a process that imports voidpad from `tree`."""
    command = [sys.executable, __file__, "--data", str(data), "--measure", name]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tree, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(name: str, data: Path, trees: list[Path], rounds: int) -> str:
    runs: dict[Path, list[dict[str, float]]] = {tree: [] for tree in trees}
    for _ in range(rounds):
        for tree in trees:
            runs[tree].append(in_child(name, data, tree))
    best = [
        {key: min(run[key] for run in runs[tree]) for key in ("wall", "cpu", "correct")} for tree in trees
    ]
    now = best[-1]
    line = f"{name:26} wall {now['wall']:6.2f} s  cpu {now['cpu']:6.2f} s  correct {now['correct']:5.1f} %"
    if len(best) > 1:
        ratios = [now[key] / best[0][key] for key in ("wall", "cpu")]
        line += (
            f"  before {best[0]['wall']:6.2f} {best[0]['cpu']:6.2f}  ratio {ratios[0]:.2f} {ratios[1]:.2f}"
        )
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the benchmark files")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=GOLDS, action="append", help="these alone")
    parser.add_argument("--measure", choices=GOLDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.data)))
        return
    here = Path(__file__).resolve().parents[2]
    trees = [options.before.resolve(), here] if options.before else [here]
    for name in options.only or GOLDS:
        print(compare(name, options.data.resolve(), trees, options.rounds), flush=True)


if __name__ == "__main__":
    main()
