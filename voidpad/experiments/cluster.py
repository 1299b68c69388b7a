"""A sweep on a Ray cluster: a cell, or a shard of its examples, is one Ray task.

Tasks, not actors: Ray moves a lost task to any worker that is free, while the tasks of a lost actor wait for
resources as large as it had. A worker process keeps its model, so it is loaded once per worker.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, VoidpadError, first_line, install_command
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import RunFolder
from voidpad.evaluate.run import evaluate, join
from voidpad.experiments.sweep import CellOutcome, Loader
from voidpad.experiments.sweep_recipe import SweepCell
from voidpad.files import fresh_folder
from voidpad.models.device import gpus_per_task

LOADER = Loader()  # of this worker process


def _evaluate_shard(config: EvalConfig, resources: Resources) -> tuple[dict[str, bytes], str, int]:
    """What one Ray task does: the files of the run folder, the worker's name, how many models it has loaded so far.

    The files travel back, because nodes need not share a disk.
    """
    model = LOADER(config, resources)
    with tempfile.TemporaryDirectory(prefix="voidpad-") as folder:
        evaluate(config, Path(folder), model=model, resources=resources)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    return files, f"{platform.node()}:{os.getpid()}", LOADER.loads


@dataclass(frozen=True)
class ShardPart:
    """A shard of a cell and where its files go."""

    cell: SweepCell
    at: int
    of: int

    @property
    def config(self) -> EvalConfig:
        config = self.cell.config
        return config if self.of == 1 else config.updated(shard=(self.at, self.of))

    def folder(self, out: Path) -> Path:
        if self.of == 1:
            return out / self.cell.folder
        return out / "shards" / self.cell.id / f"{self.at}-of-{self.of}"


def parts_of(cell: SweepCell, shards: int) -> list[ShardPart]:
    """At most one shard per example that is known to exist; a stream of shots cannot be split."""
    config = cell.config
    count = 1 if config.fewshot == "stream" else min(shards, config.limit or shards)
    return [ShardPart(cell, at, count) for at in range(count)]


def run_ray(
    left: Sequence[SweepCell], out: Path, *, resources: Resources, address: str | None = None, shards: int = 1
) -> Iterator[CellOutcome]:
    """Run the cells on the cluster, in whatever order they end; parts already on disk are not run again."""
    try:
        import ray
    except ImportError:
        raise ConfigError(f"ray is not installed; {install_command('ray')}, or leave out --ray.") from None
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False)
        except (ValueError, ConnectionError) as error:
            where = f"ray-address {address!r}" if address else "ray"
            raise ConfigError(
                f"{where}: no cluster there ({first_line(error)}); check it with `ray status`."
            ) from None
    try:
        yield from _drive(ray, [parts_of(cell, shards) for cell in left], out, resources)
    finally:
        if started:
            ray.shutdown()


def _drive(
    ray: Any, cells: Sequence[Sequence[ShardPart]], out: Path, resources: Resources
) -> Iterator[CellOutcome]:
    left = [[part for part in parts if not RunFolder(part.folder(out)).complete] for parts in cells]
    yield from (_finish(parts, out, resources) for parts, none in zip(cells, left, strict=True) if not none)
    gpus = gpus_per_task(resources.device, ray.cluster_resources())
    remote = ray.remote(max_retries=-1, max_calls=0, num_cpus=1, num_gpus=gpus)(_evaluate_shard)
    jobs = [(part, parts) for parts, some in zip(cells, left, strict=True) for part in some]
    running = {remote.remote(part.config, resources): (part, parts) for part, parts in jobs}
    while running:
        (ready,), _ = ray.wait(list(running))
        part, parts = running.pop(ready)
        try:
            files, worker, loads = ray.get(ready)
        except ray.exceptions.RayTaskError as fault:
            if not isinstance(fault.cause, VoidpadError):
                raise
            yield CellOutcome(part.cell, error=fault.cause)  # what voidpad refused on the worker
            continue
        store(files, part.folder(out))
        if all(RunFolder(one.folder(out)).complete for one in parts):
            yield replace(_finish(parts, out, resources), worker=worker, loads=loads)


def store(files: dict[str, bytes], folder: Path) -> None:
    """A whole folder at once, in the place of whatever an interrupted run left."""
    shutil.rmtree(folder, ignore_errors=True)
    with fresh_folder(folder) as draft:
        for name, content in files.items():
            (draft / name).write_bytes(content)


def _finish(parts: Sequence[ShardPart], out: Path, resources: Resources) -> CellOutcome:
    """Unite a cell's shards and drop them."""
    cell = parts[0].cell
    if len(parts) == 1:
        return CellOutcome(cell, RunFolder(out / cell.folder).results)
    results = join([part.folder(out) for part in parts], out / cell.folder, resources=resources)
    shutil.rmtree(out / "shards" / cell.id)
    if not any((out / "shards").iterdir()):
        (out / "shards").rmdir()
    return CellOutcome(cell, results)
