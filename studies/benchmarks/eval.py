"""What the evaluation harness costs beside the engine alone, start-up aside. Prints the ratio.

    python studies/benchmarks/eval.py --model tiny-void --examples 1000

Both sides answer the same prompts with the same plan, rows and weights. The harness side also builds requests,
writes and syncs the journal, grades, and writes the result files; loading the model and making the tasks' items
is left out on both sides. Sides alternate; the ratios are of the best rounds, by the wall clock and by CPU time
(the one to read on a busy machine).
"""

import argparse
import tempfile
import time
from pathlib import Path

from voidpad.evaluate import EvalConfig, Resources, evaluate
from voidpad.evaluate.prepare import load_tasks
from voidpad.models import Model, load

TASKS = ("tiny_steps", "tiny_expr")
Seconds = tuple[float, float]  # wall clock, CPU


def clock() -> Seconds:
    return time.perf_counter(), time.process_time()


def since(start: Seconds) -> Seconds:
    wall, cpu = clock()
    return wall - start[0], cpu - start[1]


def engine_alone(config: EvalConfig, model: Model, resources: Resources, prompts: list[str]) -> Seconds:
    """For the prompts, text included."""
    start = clock()
    engine = model.engine(rows=resources.rows, tokens=resources.tokens)
    plan = model.plan(config.plan, **config.fields)
    for key, prompt in enumerate(prompts):
        engine.submit(model.encode(prompt), plan, key=key)
    texts = []
    texts += [model.text(outcome.tokens) for _, outcome in engine.outcomes()]
    return since(start)


def through_harness(config: EvalConfig, model: Model, resources: Resources) -> Seconds:
    with tempfile.TemporaryDirectory() as name:
        start = clock()
        evaluate(config, Path(name), model=model, resources=resources)
        return since(start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny-void")
    parser.add_argument("--plan", default="void")
    parser.add_argument("--canvas", type=int, default=256)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument(
        "--threshold", type=float, default=0.0, help="fewer passes: a harder test for the harness"
    )
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    fields = {"canvas": given.canvas, "block": given.block, "threshold": given.threshold}
    limit = given.examples // len(TASKS)
    config = EvalConfig(model=given.model, tasks=TASKS, plan=given.plan, fields=fields, limit=limit)
    resources = Resources(device=given.device, rows=given.rows)
    model = load(given.model, device=given.device)
    docs = [task.eval_docs for task in load_tasks(config, resources).values()]
    prompts = [doc["prompt"] for part in docs for doc in part.select(range(limit))]
    alone, wrapped = [], []
    for _ in range(given.rounds):
        alone.append(engine_alone(config, model, resources, prompts))
        wrapped.append(through_harness(config, model, resources))
        print(f"wall, CPU seconds: engine alone {alone[-1]}, through the harness {wrapped[-1]}", flush=True)
    wall, cpu = (min(w[i] for w in wrapped) / min(a[i] for a in alone) for i in (0, 1))
    print(f"{len(prompts)} examples: harness / engine = {wall:.3f} wall, {cpu:.3f} CPU (target < 1.05)")


if __name__ == "__main__":
    main()
