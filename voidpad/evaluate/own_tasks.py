"""Tasks that are not voidpad's: YAML files of lm-evaluation-harness from a user's folder.

Such a file can run code on this machine: Python functions that it names, and templates, which lm-eval does not
confine. It is therefore read here without running anything, and loaded only after `Resources.trust_tasks`.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from lm_eval.tasks import TaskManager

from voidpad.errors import ConfigError, VoidpadError, first_line
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.tasks.task import Benchmark
from voidpad.files import readable

ENDINGS = (".yaml", ".yml")
_CLASS = "voidpad.evaluate.tasks.task.OwnBenchmark"


class _Reader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Reads `!function a.b` as `_Function("a.b")` and imports nothing."""


class _Function(str):
    __slots__ = ()


_Reader.add_constructor("!function", lambda reader, node: _Function(reader.construct_scalar(node)))


@dataclass(frozen=True)
class TaskFile:
    """A task's YAML file, with what it includes merged in, and the files that decide what the task is."""

    path: Path
    config: Mapping[str, Any]
    sources: tuple[Path, ...]  # the YAML files, the Python files they name, local files of data

    @property
    def name(self) -> str:
        return str(self.config["task"])

    @property
    def digest(self) -> str:
        """Changes with the contents of the sources, not with the folder's place."""
        lines = sorted(
            f"{os.path.relpath(path, self.path.parent)} {sha256(path.read_bytes()).hexdigest()}"
            for path in self.sources
        )
        return sha256("\n".join(lines).encode()).hexdigest()[:16]


def choose_tasks(
    words: Sequence[str], include_path: Sequence[Path]
) -> tuple[tuple[str, ...], dict[str, str], tuple[Path, ...]]:
    """Task names from names and paths of YAML files: the names, the digests of own tasks, and where these are."""
    files = [Path(word).expanduser() for word in words if word.endswith(ENDINGS)]
    places = (*include_path, *files)
    there = find_tasks(places)
    named = {file.path: file.name for file in there.values()}
    names = tuple(
        named[Path(word).expanduser().resolve()] if word.endswith(ENDINGS) else word for word in words
    )
    return names, {name: there[name].digest for name in names if name in there}, places


def find_tasks(include_path: Sequence[Path]) -> dict[str, TaskFile]:
    """The tasks of YAML files, or of folders with such files, by name."""
    tasks: dict[str, TaskFile] = {}
    for place in include_path:
        if place.is_dir():
            paths = [path for ending in ENDINGS for path in sorted(place.rglob(f"*{ending}"))]
        elif place.is_file():
            paths = [place]
        else:
            raise ConfigError(f"{place}: no such file or folder; name a task's YAML file or a folder of them")
        for path in paths:
            file = _read(path.resolve())
            if "task" not in file.config and place.is_dir():  # a part that others include
                continue
            _refuse(file)
            other = tasks.setdefault(file.name, file)
            if other.path != file.path:
                raise ConfigError(f"{path}: task {file.name!r} is in {other.path} too; rename one")
    return tasks


def load_task(file: TaskFile, config: EvalConfig, resources: Resources) -> Benchmark:
    """The task, built by lm-eval's TaskManager. Runs the code of the file: call it for trusted files only."""
    manager = TaskManager(include_defaults=False, metadata=resources.task_options(config))
    with tempfile.TemporaryDirectory() as folder:
        path = file.path
        if "class" not in file.config:
            path = Path(folder) / "task.yaml"
            path.write_text(f"include: {json.dumps(str(file.path))}\nclass: !function {_CLASS}\n", "utf-8")
        try:
            task = manager.load([str(path)])["tasks"][file.name]
        except VoidpadError:
            raise
        except Exception as error:  # whatever the user's functions, templates and data raise
            raise ConfigError(
                f"{file.path}: task {file.name}: {type(error).__name__}: {first_line(error)}"
            ) from error
    if not isinstance(task, Benchmark):
        raise ConfigError(f"{file.path}: class: must be a subclass of voidpad.evaluate.tasks.task.Benchmark")
    return task


def _read(path: Path, seen: tuple[Path, ...] = ()) -> TaskFile:
    if path in seen:
        raise ConfigError(f"{path}: includes itself")
    with readable(path, "YAML", ConfigError):
        config = yaml.load(path.read_text("utf-8"), Loader=_Reader)  # a subclass of SafeLoader
        if not isinstance(config, dict):
            raise ConfigError(f"{path}: holds no task; it must be a YAML mapping with a key `task`")
        sources = [path, *filter(Path.is_file, _sources(config, path.parent))]
    merged: dict[str, Any] = {}
    includes = config.pop("include", [])
    for include in includes if isinstance(includes, list) else [includes]:
        part = _read((path.parent / str(include)).resolve(), (*seen, path))
        merged |= part.config
        sources += part.sources
    return TaskFile(path, {**merged, **config}, tuple(dict.fromkeys(sources)))


def _sources(config: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """The Python files beside the YAML whose functions it names, and local files of `dataset_kwargs: data_files:`."""
    for part in _parts(config):
        if isinstance(part, _Function):  # a function of an installed module has no file here
            yield (folder / f"{part.rpartition('.')[0].replace('.', '/')}.py").resolve()
    for part in _parts((config.get("dataset_kwargs") or {}).get("data_files")):
        if isinstance(part, str):
            yield Path(part).resolve()


def _parts(value: Any) -> Iterator[Any]:
    """Everything inside lists and mappings that is neither."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part)
    else:
        yield value


def _refuse(file: TaskFile) -> None:
    """What an evaluation cannot do with a task."""
    config, where = file.config, file.path
    if "group" in config or not isinstance(config.get("task"), str):
        raise ConfigError(f"{where}: `task` must be one name; name the tasks of a group one by one")
    kind = config.get("output_type", "generate_until")
    if kind != "generate_until":
        raise ConfigError(
            f"{where}: task {file.name} has output_type {kind!r}, here is generate_until only; likelihood tasks go "
            f"through python -m voidpad.evaluate.lm_eval --include_path {where.parent}"
        )
    if not config.get("metric_list"):
        raise ConfigError(
            f"{where}: task {file.name} has no metric_list; name the metric that scores an answer"
        )
    if config.get("repeats", 1) != 1:
        raise ConfigError(
            f"{where}: task {file.name} has repeats={config['repeats']}, here is one answer an item"
        )
    if config.get("unsafe_code") and "class" not in config:
        raise ConfigError(
            f"{where}: task {file.name} runs generated code; name `class: !function "
            "voidpad.evaluate.tasks.task.CodeBenchmark`, which runs it in the sandbox"
        )
