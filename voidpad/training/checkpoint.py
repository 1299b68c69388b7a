"""Checkpoints that are complete or absent: written in a staging folder, renamed into place, rotated."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from voidpad.errors import WeightsError

STAGING = ".staging"
NAME = re.compile(r"checkpoint-(\d+)")
# Words in the RuntimeError that torch.save raises when it cannot write.
TORCH_WRITES = ("iostream", "inline_container", "PytorchStreamWriter")
SCARCE = 1 << 20  # bytes left on a disk that counts as full


def step_of(folder: Path) -> int:
    """The update after which a checkpoint was written; -1 for other folders."""
    match = NAME.fullmatch(folder.name)
    return int(match[1]) if match else -1


def _checkpoints(output: Path) -> list[Path]:
    """Complete checkpoints, oldest first. Staged ones are not among them."""
    if not output.is_dir():
        return []
    folders = [folder for folder in output.iterdir() if folder.is_dir() and step_of(folder) >= 0]
    return sorted(folders, key=step_of)


def latest(output: Path) -> Path | None:
    complete = _checkpoints(output)
    return complete[-1] if complete else None


def publish(staged: Path, final: Path) -> None:
    """Rename a complete folder to its final name. A folder that had the name is moved away before it is deleted."""
    for path in sorted(staged.rglob("*")):
        if path.is_file():
            _sync(path)
    replaced = staged.with_name(f"{final.name}.old")
    if final.exists():
        os.replace(final, replaced)
    os.replace(staged, final)
    _sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def rotate(output: Path, keep: int, *, best: int | None = None) -> None:
    """Delete all but the newest `keep` and that of update `best`, moving each away before its files are deleted."""
    for folder in _checkpoints(output)[:-keep]:
        if step_of(folder) == best:
            continue
        doomed = output / STAGING / f"{folder.name}.old"
        doomed.parent.mkdir(exist_ok=True)
        os.replace(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def explained(output: Path, step: int) -> Iterator[None]:
    """Turn a failed write into a one-line error that names the last good checkpoint."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(word in str(error) for word in TORCH_WRITES):
            raise
        full = shutil.disk_usage(output).free < SCARCE
        shutil.rmtree(output / STAGING, ignore_errors=True)
        last = latest(output)
        kept = f"the last good checkpoint is {last}" if last else "no earlier checkpoint exists"
        reason = "the disk is full" if full else str(error).strip().splitlines()[0]
        raise WeightsError(
            f"{output / f'checkpoint-{step}'}: cannot be written ({reason}); {kept}. "
            "Free some space, then --resume."
        ) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
