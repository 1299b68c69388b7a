"""The first stage: lm-evaluation-harness builds the requests of a run into its folder."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import lm_eval.api.task
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from voidpad.errors import ConfigError
from voidpad.evaluate.folder import AnswerRequest, RunFolder
from voidpad.evaluate.own_tasks import TaskFile, find_tasks, load_task
from voidpad.evaluate.provenance import judge_provenance
from voidpad.evaluate.run_weights import with_weights
from voidpad.evaluate.settings import Resources, Settings
from voidpad.evaluate.tasks import FOLDER
from voidpad.evaluate.tasks.benchmark_files import ITEM
from voidpad.evaluate.tasks.task import Benchmark

_GREEDY = {"do_sample": False, "temperature": 0.0}  # what the plan does anyway
_NOT_OURS = {"until", "max_gen_toks"}  # stop strings are cut from the text; the plan sets the canvas


def prepare(
    settings: Settings,
    folder: RunFolder,
    *,
    resources: Resources | None = None,
    tasks: dict[str, Benchmark] | None = None,
) -> list[AnswerRequest]:
    """Write config.json and requests.jsonl. The model need not be on this machine."""
    resources = resources or Resources()
    tasks = tasks or load_tasks(settings, resources)
    requests = build_requests(tasks, settings)
    settings = settings if settings.weights else with_weights(settings)
    with folder.writing():
        folder.begin(settings.plain(), judge_provenance(settings.tasks, resources))
        folder.write_requests(requests)
    return requests


def load_tasks(settings: Settings, resources: Resources) -> dict[str, Benchmark]:
    """The tasks, with the data they need. Tasks of the user's own must be the ones that the settings name."""
    files = _own_files(settings, resources)
    tasks: dict[str, Any] = {}
    ours = [name for name in settings.tasks if name not in files]
    if ours:
        tasks |= _manager(settings, resources).load(ours)["tasks"]
    tasks |= {name: load_task(file, settings, resources) for name, file in files.items()}
    for task in tasks.values():
        task.set_fewshot_seed(settings.fewshot_seed)
        task.set_num_fewshot(settings.num_fewshot)
    return {name: tasks[name] for name in settings.tasks}


def refuse_code(settings: Settings, resources: Resources) -> None:
    """Tasks that run code must have been allowed to: generated programs, and what a user's YAML names."""
    files = _own_files(settings, resources)
    manager = _manager(settings, resources)
    for name in settings.tasks:
        config = files[name].config if name in files else manager.task_index[name].cfg or {}
        if config.get("unsafe_code", False) and not resources.allow_code_execution:
            raise ConfigError(f"task {name} runs generated code: pass --allow-code-execution to let it")


def _own_files(settings: Settings, resources: Resources) -> dict[str, TaskFile]:
    """The YAML files of the user's own tasks, trusted and unchanged."""
    if not settings.own_tasks:
        return {}
    there = find_tasks(resources.include_path)
    files = {}
    for name, digest in settings.own_tasks.items():
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


def _manager(settings: Settings, resources: Resources) -> TaskManager:
    return TaskManager(include_path=FOLDER, include_defaults=False, metadata=resources.task_options(settings))


def build_requests(tasks: dict[str, Benchmark], settings: Settings) -> list[AnswerRequest]:
    """The requests of every task's chosen items, as lm-eval builds them."""
    instances: list[Instance] = []
    for task in tasks.values():
        task.set_fewshot_seed(settings.fewshot_seed)  # a stream of shots starts anew
        with without_bars():
            task.build_all_requests(samples=chosen_items(task, settings))
        instances += [one for one in task.instances for _ in range(one.repeats)]
    gold = {id(one): tasks[one.task_name].doc_to_target(one.doc) for one in instances}
    requests = requests_of(instances)
    return [
        AnswerRequest(name=request.name, prompt=request.prompt, stop=request.stop, gold=gold[id(instance)])
        for request, instance in zip(requests, instances, strict=True)
    ]


@contextmanager
def without_bars() -> Iterator[None]:
    """lm-eval draws a progress bar for building requests, which takes no time and tears our own display."""
    shown = lm_eval.api.task.tqdm
    lm_eval.api.task.tqdm = partial(shown, disable=True)
    try:
        yield
    finally:
        lm_eval.api.task.tqdm = shown


def chosen_items(task: Benchmark, settings: Settings) -> list[int]:
    """The items of a task that this run answers."""
    size = len(task.eval_docs)
    part, parts = settings.shard or (0, 1)
    items = list(range(min(size, settings.limit or size)))[part::parts]
    if not items:
        raise ConfigError(f"shard={part}/{parts} of task {task.task_name} is empty; use fewer shards")
    return items


def requests_of(instances: Sequence[Instance], rendered: Collection[str] = ()) -> list[AnswerRequest]:
    """lm-eval's requests by name; a repeated request for the same example has a name of its own.

    `rendered` holds the prompts to which lm-eval has applied the chat template already.
    """
    seen: Counter[str] = Counter()
    requests = []
    for instance in instances:
        prompt, options = instance.args
        name = f"{instance.task_name}:{instance.doc.get(ITEM, instance.doc_id)}"
        repeat = f":{seen[name]}" if seen[name] else ""
        seen[name] += 1
        try:
            stop = stop_strings(options)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        requests.append(
            AnswerRequest(name=name + repeat, prompt=prompt, stop=stop, rendered=prompt in rendered)
        )
    return requests


def stop_strings(options: dict[str, Any]) -> tuple[str, ...]:
    """The stop strings of lm-eval's generation options; other options are refused, because the plan decides."""
    for name, value in options.items():
        if name not in _NOT_OURS and not (name in _GREEDY and value == _GREEDY[name]):
            raise ConfigError(
                f"gen_kwargs {name}={value!r}: decoding is set by the plan; pass it in model_args"
            )
    stops = options.get("until") or []
    return (stops,) if isinstance(stops, str) else tuple(stops)
