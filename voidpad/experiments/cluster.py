"""A sweep on a Ray cluster: a cell is one Ray task.

Tasks, not actors: Ray moves a lost task to any worker that is free, while the tasks of a lost actor wait for
resources as large as it had. A worker process keeps its model, so it is loaded once per worker.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from voidpad.errors import ConfigError, VoidpadError, first_line, install_command
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import RunFolder
from voidpad.evaluate.run import evaluate
from voidpad.experiments.sweep import CellOutcome, Loader
from voidpad.experiments.sweep_recipe import SweepCell
from voidpad.files import fresh_folder
from voidpad.models.device import gpus_per_task

LOADER = Loader()  # of this worker process


def _evaluate_cell(config: EvalConfig, resources: Resources) -> tuple[dict[str, bytes], str, int]:
    """What one Ray task does: the files of the run folder, the worker's name, how many models it has loaded so far.

    The files travel back, because nodes need not share a disk.
    """
    model = LOADER(config, resources)
    with tempfile.TemporaryDirectory(prefix="voidpad-") as folder:
        evaluate(config, Path(folder), model=model, resources=resources)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    return files, f"{platform.node()}:{os.getpid()}", LOADER.loads


def run_ray(
    left: Sequence[SweepCell], out: Path, *, resources: Resources, address: str | None = None
) -> Iterator[CellOutcome]:
    """Run the cells on the cluster, in whatever order they end."""
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
        gpus = gpus_per_task(resources.device, ray.cluster_resources())  # type: ignore[no-untyped-call]
        remote = ray.remote(max_retries=-1, max_calls=0, num_cpus=1, num_gpus=gpus)(_evaluate_cell)
        running = {remote.remote(cell.config, resources): cell for cell in left}
        while running:
            (ready,), _ = ray.wait(list(running))
            cell = running.pop(ready)
            try:
                files, worker, loads = ray.get(ready)
            except ray.exceptions.RayTaskError as fault:
                if not isinstance(fault.cause, VoidpadError):
                    raise
                yield CellOutcome(cell, error=fault.cause)  # what voidpad refused on the worker
                continue
            folder = out / cell.folder
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run left
            with fresh_folder(folder) as draft:
                for name, content in files.items():
                    (draft / name).write_bytes(content)
            yield CellOutcome(cell, RunFolder(folder).results, worker=worker, loads=loads)
    finally:
        if started:
            ray.shutdown()
