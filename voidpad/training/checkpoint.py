"""Checkpoints that are whole or absent: written beside, renamed into place, rotated."""

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
TORCH_WRITES = (
    "iostream",
    "inline_container",
    "PytorchStreamWriter",
)  # how torch.save reports a failed write
SCARCE = 1 << 20  # bytes


def step_of(folder: Path) -> int:
    found = NAME.fullmatch(folder.name)
    return int(found[1]) if found else -1


def checkpoints(output: Path) -> list[Path]:
    """Complete checkpoints, oldest first. Staged ones are not among them."""
    if not output.is_dir():
        return []
    found = [folder for folder in output.iterdir() if folder.is_dir() and step_of(folder) >= 0]
    return sorted(found, key=step_of)


def latest(output: Path) -> Path | None:
    found = checkpoints(output)
    return found[-1] if found else None


def publish(staged: Path, final: Path) -> None:
    """Move a complete folder to its name; what had the name is moved away first, never half deleted in place."""
    for path in sorted(staged.rglob("*")):
        if path.is_file():
            _sync(path)
    replaced = staged.with_name(f"{final.name}.old")
    if final.exists():
        os.replace(final, replaced)
    os.replace(staged, final)
    _sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def rotate(output: Path, keep: int) -> None:
    """Delete all but the newest `keep`, moving each out of sight before its files go."""
    for folder in checkpoints(output)[:-keep]:
        doomed = output / STAGING / f"{folder.name}.old"
        doomed.parent.mkdir(exist_ok=True)
        os.replace(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def explained(output: Path, step: int) -> Iterator[None]:
    """Turn a failed write into one line that says what is still good."""
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
