"""Tasks, and the requests of their items, both as lm-evaluation-harness builds them.

Tasks are voidpad's, or YAML files of a user. Such a file can run code on this machine: Python functions that it names,
and templates, which lm-eval does not confine. `choose_tasks` reads it without running anything, and `load_tasks` loads
it only after `Resources.trust_tasks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidpad.errors import ConfigError, VoidpadError, first_line
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRequest
from voidpad.evaluate.tasks import FOLDER, known_tasks
from voidpad.files import readable

if TYPE_CHECKING:
    from voidpad.evaluate.tasks.task import Benchmark

# Generation options of lm-eval that change nothing: stop strings are cut from the text, and the canvas bounds it.
_HARMLESS = {"until", "max_gen_toks"}
_GREEDY = {"do_sample": False, "temperature": 0.0}  # harmless with these values


def choose_tasks(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """From names of tasks and paths of YAML files: all names, and the files of a user's own tasks by name."""
    names, own = [], {}
    for word in words:
        if word.endswith((".yaml", ".yml")):
            path = Path(word).expanduser()
            content = read_task(path)
            if fault := _task_fault(content):
                raise ConfigError(f"{path}: {fault}")
            own[content["task"]] = str(path)
            word = content["task"]
        names.append(word)
    return tuple(names), own


def read_task(path: Path) -> dict[str, Any]:
    """A task's YAML with what it includes. Functions are names in it: nothing is imported."""
    from lm_eval.tasks._yaml_loader import load_yaml

    with readable(path, "YAML", ConfigError):
        content: dict[str, Any] = load_yaml(path, resolve_func=False)
    return content


def _task_fault(content: Mapping[str, Any]) -> str | None:
    """Why an evaluation cannot run a user's task, or None."""
    if "group" in content or not isinstance(content.get("task"), str):
        return "`task` must be one name; name the tasks of a group one by one"
    if content["task"] in known_tasks():
        return f"task {content['task']!r} is voidpad's; give it another name"
    if (kind := content.get("output_type", "generate_until")) != "generate_until":
        return f"output_type is {kind!r}; likelihood tasks go through python -m voidpad.evaluate.lm_eval"
    if not content.get("metric_list"):
        return "metric_list is missing; name the metric that scores an answer"
    if (repeats := content.get("repeats", 1)) != 1:
        return f"repeats is {repeats}, here is one answer an item"
    if content.get("unsafe_code") and "class" not in content:
        return "unsafe_code needs `class: !function voidpad.evaluate.tasks.task.CodeBenchmark`"
    return None


def load_tasks(config: EvalConfig, resources: Resources, *, judging: bool = True) -> dict[str, Benchmark]:
    """The tasks with their data, by name, in the order of the config.

    A user's own must be trusted. For `judging`, tasks that run generated programs must have been allowed to. Both are
    looked at before anything of a file runs.
    """
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    from voidpad.evaluate.tasks.task import Benchmark

    if not config.tasks:
        raise ConfigError(f"tasks: none given; use some of {', '.join(known_tasks())}")
    paths = {name: Path(config.own_tasks.get(name, FOLDER / f"{name}.yaml")) for name in config.tasks}
    for name, path in paths.items():
        if name in config.own_tasks and not resources.trust_tasks:
            raise ConfigError(
                f"{path}: a task's YAML can run code on this machine (functions that it names, templates); "
                "read it, then pass --trust-tasks"
            )
        if judging and not resources.allow_code_execution and read_task(path).get("unsafe_code"):
            raise ConfigError(f"task {name} runs generated code: pass --allow-code-execution to let it")
    options = {
        "data": str(resources.data) if resources.data else None,
        "weak_sandbox": resources.weak_sandbox,
        "workers": resources.workers,
    }
    manager = TaskManager(include_defaults=False, metadata=options)
    tasks = {}
    for name, path in paths.items():
        with naming_errors(f"{path}: task {name}"):
            tasks[name] = manager.load([{"class": Benchmark, **load_yaml(path)}])["tasks"][name]
        if not isinstance(tasks[name], Benchmark):
            raise ConfigError(f"{path}: class must be a subclass of voidpad.evaluate.tasks.task.Benchmark")
    return tasks


def build_requests(tasks: Mapping[str, Benchmark], config: EvalConfig) -> list[AnswerRequest]:
    """The requests of every task's chosen items, with the prompts that lm-eval builds.

    lm-eval draws shots from one stream, so an item's shots depend on every item before it. Keyed shots depend on the
    seed and the item alone.
    """
    requests = []
    part, parts = config.shard or (0, 1)
    for name, task in tasks.items():
        stop = stop_strings(name, task.config.generation_kwargs)
        shots, docs = task.shots(config.num_fewshot), task.eval_docs
        items = range(min(len(docs), config.limit or len(docs)))[part::parts]
        if not items:
            raise ConfigError(f"shard={part}/{parts} of task {name} is empty; use fewer shards")
        task.set_fewshot_seed(config.fewshot_seed)
        for index in items:
            if config.fewshot == "keyed":
                digest = sha256(f"{config.fewshot_seed}:{index}".encode()).digest()
                task.set_fewshot_seed(int.from_bytes(digest[:8], "big"))
            with naming_errors(f"{name}:{index}: no prompt"):
                doc = docs[index]
                prompt = task.fewshot_context(doc, num_fewshot=shots, gen_prefix=task.doc_to_prefix(doc))
                gold = task.doc_to_target(doc)
            requests.append(AnswerRequest(name=f"{name}:{index}", prompt=prompt, stop=stop, gold=gold))
    return requests


def stop_strings(where: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings of lm-eval's generation options; other options are refused, because the plan decides."""
    for option, value in options.items():
        if option not in _HARMLESS and (option, value) not in _GREEDY.items():
            raise ConfigError(
                f"{where}: gen_kwargs {option}={value!r}: decoding is set by the plan; pass it in model_args"
            )
    stops = options.get("until") or []
    return (stops,) if isinstance(stops, str) else tuple(stops)


@contextmanager
def naming_errors(what: str) -> Iterator[None]:
    """Inside, whatever a user's functions, templates and data raise becomes one line that names task and item."""
    try:
        yield
    except VoidpadError:
        raise
    except Exception as error:
        raise ConfigError(f"{what}: {type(error).__name__}: {first_line(error)}") from error
