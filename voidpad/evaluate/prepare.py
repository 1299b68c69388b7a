"""The first stage: lm-evaluation-harness loads the tasks and builds the requests."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import lm_eval.api.task
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from voidpad.errors import ConfigError
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRequest
from voidpad.evaluate.own_tasks import TaskFile, find_tasks, load_task
from voidpad.evaluate.tasks import FOLDER
from voidpad.evaluate.tasks.benchmark_files import ITEM
from voidpad.evaluate.tasks.task import Benchmark

_GREEDY = {"do_sample": False, "temperature": 0.0}  # what the plan does anyway
_NOT_OURS = {"until", "max_gen_toks"}  # stop strings are cut from the text; the plan sets the canvas


def load_tasks(config: EvalConfig, resources: Resources, *, judging: bool = True) -> dict[str, Benchmark]:
    """The tasks with their data, by name, in the order of the config.

    For `judging`, tasks that run generated programs must have been allowed to.
    """
    config.require_tasks()
    files = _own_files(config, resources)
    manager = TaskManager(
        include_path=FOLDER, include_defaults=False, metadata=resources.task_options(config)
    )
    for name in config.tasks if judging and not resources.allow_code_execution else ():
        written = files[name].config if name in files else manager.task_index[name].cfg or {}
        if written.get("unsafe_code", False):
            raise ConfigError(f"task {name} runs generated code: pass --allow-code-execution to let it")
    ours = [name for name in config.tasks if name not in files]
    tasks: dict[str, Any] = manager.load(ours)["tasks"] if ours else {}
    tasks |= {name: load_task(file, config, resources) for name, file in files.items()}
    for task in tasks.values():
        task.set_fewshot_seed(config.fewshot_seed)
        task.set_num_fewshot(config.num_fewshot)
    return {name: tasks[name] for name in config.tasks}


def _own_files(config: EvalConfig, resources: Resources) -> dict[str, TaskFile]:
    """The YAML files of the user's own tasks, trusted and unchanged."""
    if not config.own_tasks:
        return {}
    there = find_tasks(resources.include_path)
    files = {}
    for name, digest in config.own_tasks.items():
        if name not in there:
            raise ConfigError(
                f"task {name} is not voidpad's: pass --include-path with the folder of its YAML file"
            )
        file = files[name] = there[name]
        if file.digest != digest:
            raise ConfigError(f"{file.path}: task {name} has changed since this run began; use another --out")
        if not resources.trust_tasks:
            raise ConfigError(
                f"{file.path}: a task's YAML can run code on this machine (functions that it names, templates); "
                "read it, then pass --trust-tasks"
            )
    return files


def build_requests(tasks: dict[str, Benchmark], config: EvalConfig) -> list[AnswerRequest]:
    """The requests of every task's chosen items, with the prompts that lm-eval builds."""
    instances: list[Instance] = []
    for task in tasks.values():
        task.set_fewshot_seed(config.fewshot_seed)  # a stream of shots starts anew
        with _without_bars():
            task.build_all_requests(samples=chosen_items(task, config))
        instances += [one for one in task.instances for _ in range(one.repeats)]
    golds = [tasks[one.task_name].doc_to_target(one.doc) for one in instances]
    return requests_of(instances, golds=golds)


@contextmanager
def _without_bars() -> Iterator[None]:
    """lm-eval draws a progress bar for building requests, which takes no time and tears our own display."""
    shown = lm_eval.api.task.tqdm
    lm_eval.api.task.tqdm = partial(shown, disable=True)
    try:
        yield
    finally:
        lm_eval.api.task.tqdm = shown


def chosen_items(task: Benchmark, config: EvalConfig) -> list[int]:
    """The items of a task that this run answers."""
    size = len(task.eval_docs)
    part, parts = config.shard or (0, 1)
    items = list(range(min(size, config.limit or size)))[part::parts]
    if not items:
        raise ConfigError(f"shard={part}/{parts} of task {task.task_name} is empty; use fewer shards")
    return items


def requests_of(
    instances: Sequence[Instance], rendered: Collection[str] = (), golds: Sequence[Any] | None = None
) -> list[AnswerRequest]:
    """lm-eval's requests by name; a repeated request for the same example has a name of its own.

    `rendered` holds the prompts to which lm-eval has applied the chat template already.
    """
    seen: Counter[str] = Counter()
    requests = []
    for instance, gold in zip(instances, golds or [None] * len(instances), strict=True):
        prompt, options = instance.args
        name = f"{instance.task_name}:{instance.doc.get(ITEM, instance.doc_id)}"
        repeat = f":{seen[name]}" if seen[name] else ""
        seen[name] += 1
        request = AnswerRequest(
            name=name + repeat,
            prompt=prompt,
            stop=_stop_strings(name, options),
            gold=gold,
            rendered=prompt in rendered,
        )
        requests.append(request)
    return requests


def _stop_strings(name: str, options: dict[str, Any]) -> tuple[str, ...]:
    """The stop strings of lm-eval's generation options; other options are refused, because the plan decides."""
    for option, value in options.items():
        if option not in _NOT_OURS and not (option in _GREEDY and value == _GREEDY[option]):
            raise ConfigError(
                f"{name}: gen_kwargs {option}={value!r}: decoding is set by the plan; pass it in model_args"
            )
    stops = options.get("until") or []
    return (stops,) if isinstance(stops, str) else tuple(stops)
