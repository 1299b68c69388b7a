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
from typing import Any, NamedTuple

from voidpad.errors import ConfigError, VoidpadError, reason
from voidpad.evaluate.folder import RunFolder
from voidpad.evaluate.run import evaluate, join
from voidpad.evaluate.settings import Resources, Settings
from voidpad.experiments.sweep import Ended, Loader
from voidpad.experiments.sweep_recipe import SweepCell
from voidpad.models.place import gpus_per_task

LOADER = Loader()  # of this worker process


class _Parcel(NamedTuple):
    """A finished run folder, and how many models the worker that sends it has loaded so far."""

    files: dict[str, bytes]
    worker: str
    loads: int


def _evaluate_shard(settings: Settings, resources: Resources) -> _Parcel:
    """What one Ray task does. The folder's files travel back, because nodes need not share a disk."""
    model = LOADER(settings, resources)
    with tempfile.TemporaryDirectory(prefix="voidpad-") as folder:
        evaluate(settings, Path(folder), model=model, resources=resources)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    return _Parcel(files, f"{platform.node()}:{os.getpid()}", LOADER.loads)


@dataclass(frozen=True)
class ShardPart:
    """A shard of a cell and where its files go."""

    cell: SweepCell
    at: int
    of: int

    @property
    def settings(self) -> Settings:
        return self.cell.settings if self.of == 1 else replace(self.cell.settings, shard=(self.at, self.of))

    def folder(self, out: Path) -> Path:
        if self.of == 1:
            return out / self.cell.folder
        return out / "shards" / self.cell.id / f"{self.at}-of-{self.of}"


def parts_of(cell: SweepCell, shards: int) -> list[ShardPart]:
    """At most one shard per example that is known to exist; a stream of shots cannot be split."""
    settings = cell.settings
    count = 1 if settings.fewshot == "stream" else min(shards, settings.limit or shards)
    return [ShardPart(cell, at, count) for at in range(count)]


def run_ray(
    left: Sequence[SweepCell], out: Path, *, resources: Resources, address: str | None = None, shards: int = 1
) -> Iterator[Ended]:
    """Run the cells on the cluster, in whatever order they end; parts already on disk are not run again."""
    ray = _ray_module()
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, log_to_driver=False)
        except (ValueError, ConnectionError) as error:
            where = f"ray-address {address!r}" if address else "ray"
            raise ConfigError(
                f"{where}: no cluster there ({reason(error)}); check it with `ray status`."
            ) from None
    try:
        yield from _drive(ray, [parts_of(cell, shards) for cell in left], out, resources)
    finally:
        if started:
            ray.shutdown()


def _ray_module() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "ray is not installed; install voidpad's extra `ray` (from a checkout: pip install '.[ray]'), "
            "or leave out --ray."
        ) from None
    return ray


def _drive(
    ray: Any, cells: Sequence[Sequence[ShardPart]], out: Path, resources: Resources
) -> Iterator[Ended]:
    left = [[part for part in parts if not RunFolder(part.folder(out)).complete] for parts in cells]
    yield from (_finish(parts, out, resources) for parts, none in zip(cells, left, strict=True) if not none)
    gpus = gpus_per_task(resources.device, ray.cluster_resources())
    remote = ray.remote(max_retries=-1, max_calls=0, num_cpus=1, num_gpus=gpus)(_evaluate_shard)
    jobs = [(part, parts) for parts, some in zip(cells, left, strict=True) for part in some]
    running = {remote.remote(part.settings, resources): (part, parts) for part, parts in jobs}
    while running:
        (ready,), _ = ray.wait(list(running))
        part, parts = running.pop(ready)
        parcel = _receive(ray, ready)
        if isinstance(parcel, VoidpadError):
            yield Ended(part.cell, error=parcel)
            continue
        store(parcel.files, part.folder(out))
        if all(RunFolder(one.folder(out)).complete for one in parts):
            yield replace(_finish(parts, out, resources), worker=parcel.worker, loads=parcel.loads)


def _receive(ray: Any, ready: Any) -> _Parcel | VoidpadError:
    """What a task sent; what voidpad refused on the worker comes back as it was."""
    try:
        parcel: _Parcel = ray.get(ready)
        return parcel
    except ray.exceptions.RayTaskError as fault:
        if isinstance(fault.cause, VoidpadError):
            return fault.cause
        raise


def store(files: dict[str, bytes], folder: Path) -> None:
    """A whole folder at once: written beside, then renamed over whatever an interrupted run left."""
    beside = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    for name, content in files.items():
        (beside / name).write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)


def _finish(parts: Sequence[ShardPart], out: Path, resources: Resources) -> Ended:
    """Unite a cell's shards and drop them."""
    cell = parts[0].cell
    if len(parts) == 1:
        return Ended(cell, RunFolder(out / cell.folder).results)
    results = join([part.folder(out) for part in parts], out / cell.folder, resources=resources)
    shutil.rmtree(out / "shards" / cell.id)
    if not any((out / "shards").iterdir()):
        (out / "shards").rmdir()
    return Ended(cell, results)
