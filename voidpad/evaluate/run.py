"""`evaluate`: tasks, model and folder put together; lm-eval asks the questions and applies the graders."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.tasks import TaskManager

from voidpad.decode.plan import describe
from voidpad.errors import ConfigError, DataError
from voidpad.evaluate import folder as folders
from voidpad.evaluate.answers import Answering
from voidpad.evaluate.harness import Progress, VoidpadLM
from voidpad.evaluate.journal import Journal
from voidpad.evaluate.provenance import provenance
from voidpad.evaluate.scores import mean, summary
from voidpad.evaluate.settings import Resources, Settings
from voidpad.evaluate.tasks import FOLDER
from voidpad.evaluate.tasks.benchmark_files import ITEM
from voidpad.evaluate.tasks.task import Benchmark
from voidpad.evaluate.texts import READERS
from voidpad.models import Model, load
from voidpad.models.families_decoding import DECODING

UNSCORED = ("name", "ids", "attempt", "elapsed")  # of a record, what an example's line leaves out


def evaluate(
    settings: Settings,
    out: Path,
    *,
    model: Model | None = None,
    resources: Resources | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run what is missing in `out`, score all of it, write the files; returns results.json's content."""
    resources = resources or Resources()
    tasks = load_tasks(settings, resources)
    started = now()
    model = model or loaded(settings, resources)
    answers = answering(settings, model, resources)
    origin = {
        **provenance(model, settings.tasks, resources, started=started),
        "accelerated": list(answers.accelerated),
    }
    with folders.writing(out, resolved(settings, model), origin) as journal:
        return score(out, tasks, VoidpadLM(answers, journal, progress=progress), settings=settings)


def loaded(settings: Settings, resources: Resources) -> Model:
    place: dict[str, Any] = (
        {"device_map": "auto"} if resources.device == "auto" else {"device": resources.device}
    )
    return load(settings.model, settings.adapter, dtype=settings.dtype, quantize=settings.quantize, **place)


def join(shards: Sequence[Path], out: Path, *, resources: Resources | None = None) -> dict[str, Any]:
    """One folder from the shards of a run, as if it had never been split; needs no model."""
    runs = [folders.read_run(shard) for shard in shards]
    whole = {**runs[0].config["settings"], "shard": None}
    for shard, run in zip(shards, runs, strict=True):
        folders.refuse_others(shard / "config.json", {**run.config["settings"], "shard": None}, whole)
    given = {name: value for name, value in whole.items() if name != "plan_resolved"}
    settings = Settings(**{**given, "tasks": tuple(given["tasks"])})
    tasks = load_tasks(settings, resources or Resources())
    with folders.writing(out, whole, runs[0].config["provenance"]) as journal:
        for shard in shards:
            records = Journal(shard / "progress.jsonl").records
            journal.append(record for name, record in records.items() if name not in journal.records)
        return score(out, tasks, VoidpadLM(None, journal), settings=settings)


def answering(settings: Settings, model: Model, resources: Resources) -> Answering:
    return Answering(
        model,
        model.plan(settings.plan, **settings.fields),
        seed=settings.seed,
        rows=resources.rows,
        tokens=resources.tokens,
        read=READERS[settings.parity],
        system=settings.system,
        raw=settings.raw,
        cache=settings.cache,
    )


def resolved(settings: Settings, model: Model) -> dict[str, Any]:
    """The settings as JSON, with every field of the plan that this model's family and calibration give."""
    defaults, calibration = DECODING[model.family.name], model.card.calibration
    _, values = describe(settings.plan, defaults=defaults, calibration=calibration, **settings.fields)
    return {**settings.plain(), "plan_resolved": json.loads(json.dumps(values))}


def load_tasks(settings: Settings, resources: Resources) -> dict[str, Benchmark]:
    """The tasks, with the data they need; tasks that run generated code must have been allowed to."""
    options = resources.task_options(settings)
    manager = TaskManager(include_path=FOLDER, include_defaults=False, metadata=options)
    for name in settings.tasks:
        runs_code = (manager.task_index[name].cfg or {}).get("unsafe_code", False)
        if runs_code and not resources.allow_code_execution:
            raise ConfigError(f"task {name} runs generated code: pass --allow-code-execution to let it")
    tasks = manager.load(list(settings.tasks))["tasks"]
    for task in tasks.values():
        task.set_fewshot_seed(settings.fewshot_seed)
    return {name: tasks[name] for name in settings.tasks}


def score(out: Path, tasks: dict[str, Benchmark], lm: VoidpadLM, *, settings: Settings) -> dict[str, Any]:
    """Ask lm-eval, join its scores with the journal, write examples.jsonl and then results.json."""
    graded = lm_evaluate(
        lm,
        {"tasks": tasks},
        samples={name: chosen(task, settings) for name, task in tasks.items()},
        bootstrap_iters=0,
        confirm_run_unsafe_code=True,
    )
    assert lm.journal is not None
    assert graded is not None
    found = {name: examples(task, graded["samples"][name], lm.journal) for name, task in tasks.items()}
    folders.write(out / "examples.jsonl", (json.dumps(one) for lines in found.values() for one in lines))
    results = {
        "version": folders.VERSION,
        "tasks": {
            name: task_results(tasks[name], lines, graded["samples"][name]) for name, lines in found.items()
        },
        "wall_seconds": lm.journal.wall_seconds,
        "provenance": folders.read_run(out).config["provenance"],
        "finished": now(),
    }
    results["mean"] = {
        name: mean([task[name] for task in results["tasks"].values()]) for name in ("score", "passes_decode")
    }
    folders.write(out / "results.json", [json.dumps(results, indent=1)])
    return results


def chosen(task: Benchmark, settings: Settings) -> list[int]:
    """The items of a task that this run answers."""
    size = len(task.eval_docs)
    part, parts = settings.shard or (0, 1)
    items = list(range(min(size, settings.limit or size)))[part::parts]
    if not items:
        raise ConfigError(f"shard={part}/{parts} of task {task.task_name} is empty; use fewer shards")
    return items


def examples(task: Benchmark, samples: Sequence[dict[str, Any]], journal: Journal) -> list[dict[str, Any]]:
    """A line per item: what was generated, and every grader's score of it."""
    metric, primary = task.primary
    lines: dict[int, dict[str, Any]] = {}
    for sample in samples:
        index = sample["doc"][ITEM]
        line = lines.setdefault(index, {"task": task.task_name, "index": index, "scores": {}})
        line["scores"][sample["filter"]] = sample[metric]
        if sample["filter"] == primary:
            line["score"] = sample[metric]
            line["detail"] = task.detail(sample["doc"], sample["filtered_resps"][0])
    for index, line in lines.items():
        record = journal.records.get(f"{task.task_name}:{index}")
        if record is None:
            raise DataError(f"{journal.path}: no answer to item {index} of {task.task_name}")
        kept = {name: value for name, value in asdict(record).items() if name not in UNSCORED}
        lines[index] = {**line, **kept, "canvas": len(record.ids)}
    return [lines[index] for index in sorted(lines)]


def task_results(
    task: Benchmark, lines: Sequence[dict[str, Any]], samples: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A task's entry in results.json; shares that only its primary grader knows come as `extra`."""
    metric, primary = task.primary
    mine = [sample for sample in samples if sample["filter"] == primary]
    others = [entry["metric"] for entry in task.config.metric_list[1:]]
    return {
        "test_size": len(task.eval_docs),
        "metric": metric,
        "filter": primary,
        **summary(lines),
        "extra": {f"{name}_share": mean([sample[name] for sample in mine]) for name in others},
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def shard_of(settings: Settings, part: int, parts: int) -> Settings:
    return replace(settings, shard=(part, parts))
