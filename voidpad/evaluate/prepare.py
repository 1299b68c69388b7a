"""Tasks, and the requests of their items, both as lm-evaluation-harness builds them.

Tasks are voidpad's, or YAML files of a user. Such a file can run code on this machine: Python functions that it names,
and templates, which lm-eval does not confine. `find_tasks` reads it without running anything, and `load_tasks` loads it
only after `Resources.trust_tasks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidpad.errors import ConfigError, VoidpadError, first_line
from voidpad.evaluate.config import EvalConfig, Resources, known_tasks
from voidpad.evaluate.folder import AnswerRequest
from voidpad.evaluate.tasks import FOLDER
from voidpad.files import readable

if TYPE_CHECKING:
    from voidpad.evaluate.tasks.task import Benchmark

ENDINGS = (".yaml", ".yml")
_GREEDY = {"do_sample": False, "temperature": 0.0}  # what the plan does anyway
_NOT_OURS = {"until", "max_gen_toks"}  # stop strings are cut from the text; the plan sets the canvas


@dataclass(frozen=True)
class TaskFile:
    """The YAML file of a task, voidpad's or a user's."""

    path: Path
    config: Mapping[str, Any]  # with what it includes; functions are names, nothing is imported

    @property
    def is_own(self) -> bool:
        """Whether it is a user's."""
        return not self.path.is_relative_to(FOLDER)

    @property
    def digest(self) -> str:
        """Changes with the task, the Python files beside it and its local data, not with the folder's place."""
        text = json.dumps(self.config, sort_keys=True, default=str).replace(str(self.path.parent), "")
        data = (self.config.get("dataset_kwargs") or {}).get("data_files") or []
        parts = data.values() if isinstance(data, dict) else [data]
        named = [Path(name) for part in parts for name in ([part] if isinstance(part, str) else part)]
        sources = [*sorted(self.path.parent.rglob("*.py")), *filter(Path.is_file, named)]
        contents = [sha256(path.read_bytes()).hexdigest() for path in sources]
        return sha256("\n".join([text, *contents]).encode()).hexdigest()[:16]

    def faults(self) -> Iterator[str]:
        """Why an evaluation cannot run this task."""
        if "group" in self.config or not isinstance(self.config.get("task"), str):
            yield "`task` must be one name; name the tasks of a group one by one"
        if (kind := self.config.get("output_type", "generate_until")) != "generate_until":
            door = f"python -m voidpad.evaluate.lm_eval --include_path {self.path.parent}"
            yield f"output_type is {kind!r}, here is generate_until only; likelihood tasks go through {door}"
        if not self.config.get("metric_list"):
            yield "metric_list is missing; name the metric that scores an answer"
        if (repeats := self.config.get("repeats", 1)) != 1:
            yield f"repeats is {repeats}, here is one answer an item"
        if self.config.get("unsafe_code") and "class" not in self.config:
            needed = "class: !function voidpad.evaluate.tasks.task.CodeBenchmark"
            yield f"unsafe_code needs `{needed}`, which runs programs in the sandbox"


def find_tasks(places: Sequence[Path]) -> dict[str, TaskFile]:
    """The tasks of YAML files, or of folders with such files, by name."""
    from lm_eval.tasks._yaml_loader import load_yaml

    tasks: dict[str, TaskFile] = {}
    for place in places:
        if not place.exists():
            raise ConfigError(f"{place}: no such file or folder; name a task's YAML file or a folder of them")
        inside = [path for ending in ENDINGS for path in sorted(place.rglob(f"*{ending}"))]
        for path in inside if place.is_dir() else [place]:
            with readable(path, "YAML", ConfigError):
                file = TaskFile(path.resolve(), load_yaml(path, resolve_func=False))
            if "task" in file.config or not place.is_dir():  # others are parts that tasks include
                other = tasks.setdefault(str(file.config.get("task")), file)
                if other.path != file.path:
                    raise ConfigError(
                        f"{path}: task {file.config['task']!r} is in {other.path} too; rename one"
                    )
    return tasks


def choose_tasks(
    words: Sequence[str], include_path: Sequence[Path]
) -> tuple[tuple[str, ...], dict[str, str], tuple[Path, ...]]:
    """Task names from names and paths of YAML files: the names, the digests of own tasks, and where these are."""
    files = {word: Path(word).expanduser() for word in words if word.endswith(ENDINGS)}
    places = (*include_path, *files.values())
    if not places:
        return tuple(words), {}, ()
    found = find_tasks([FOLDER, *places])
    named = {file.path: name for name, file in found.items()}
    names = tuple(named[files[word].resolve()] if word in files else word for word in words)
    own = {name: found[name] for name in names if name in found and found[name].is_own}
    for file in own.values():
        if faults := list(file.faults()):
            raise ConfigError(f"{file.path}: {'; '.join(faults)}")
    return names, {name: file.digest for name, file in own.items()}, places


def load_tasks(config: EvalConfig, resources: Resources, *, judging: bool = True) -> dict[str, Benchmark]:
    """The tasks with their data, by name, in the order of the config.

    A user's own must be trusted and unchanged. For `judging`, tasks that run generated programs must have been allowed
    to. Both are looked at before anything of a file runs.
    """
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    from voidpad.evaluate.tasks.task import Benchmark

    if not config.tasks:
        raise ConfigError(f"tasks: none given; use some of {', '.join(known_tasks())}")
    found = find_tasks([FOLDER, *resources.include_path])
    for name in config.tasks:
        if name not in found:
            raise ConfigError(
                f"task {name} is not voidpad's: pass --include-path with the folder of its YAML file"
            )
        file = found[name]
        if file.is_own and file.digest != config.own_tasks[name]:
            raise ConfigError(f"{file.path}: task {name} has changed since this run began; use another --out")
        if file.is_own and not resources.trust_tasks:
            raise ConfigError(
                f"{file.path}: a task's YAML can run code on this machine (functions that it names, templates); "
                "read it, then pass --trust-tasks"
            )
        if judging and file.config.get("unsafe_code") and not resources.allow_code_execution:
            raise ConfigError(f"task {name} runs generated code: pass --allow-code-execution to let it")
    options = {
        "data": str(resources.data) if resources.data else None,
        "weak_sandbox": resources.weak_sandbox,
        "workers": resources.workers,
    }
    manager = TaskManager(include_defaults=False, metadata=options)
    tasks = {}
    for name in config.tasks:
        path = found[name].path
        with naming(f"{path}: task {name}"):
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
            with naming(f"{name}:{index}: no prompt"):
                doc = docs[index]
                prompt = task.fewshot_context(doc, num_fewshot=shots, gen_prefix=task.doc_to_prefix(doc))
                gold = task.doc_to_target(doc)
            requests.append(AnswerRequest(name=f"{name}:{index}", prompt=prompt, stop=stop, gold=gold))
    return requests


def stop_strings(where: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings of lm-eval's generation options; other options are refused, because the plan decides."""
    for option, value in options.items():
        if option not in _NOT_OURS and not (option in _GREEDY and value == _GREEDY[option]):
            raise ConfigError(
                f"{where}: gen_kwargs {option}={value!r}: decoding is set by the plan; pass it in model_args"
            )
    stops = options.get("until") or []
    return (stops,) if isinstance(stops, str) else tuple(stops)


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Inside, whatever a user's functions, templates and data raise becomes one line that names task and item."""
    try:
        yield
    except VoidpadError:
        raise
    except Exception as error:
        raise ConfigError(f"{what}: {type(error).__name__}: {first_line(error)}") from error
