"""Where results come from: versions, commit, device."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import voidpad
from voidpad.evaluate.settings import Resources
from voidpad.models import Model
from voidpad.sandbox import layers

PACKAGES = {
    "voidpad": "voidpad",
    "torch": "torch",
    "transformers": "transformers",
    "lm_eval": "lm_eval",
    "math_verify": "math-verify",
}


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git(*words: str) -> str | None:
    """Git's answer about the checkout voidpad runs from; None for an installed package."""
    folder = Path(voidpad.__file__).parent
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def source() -> dict[str, Any]:
    """The commit, and whether files that git knows have changed since."""
    tracked = git("ls-files", "--error-unmatch", "__init__.py") is not None
    changed = git("status", "--porcelain", "--untracked-files=no", ".") if tracked else None
    return {
        "commit": git("rev-parse", "HEAD") if tracked else None,
        "dirty": bool(changed) if tracked else None,
    }


def provenance(model: Model, tasks: Sequence[str], resources: Resources, *, started: str) -> dict[str, Any]:
    cuda = model.device.type == "cuda"
    return {
        **{name: version(package) for name, package in PACKAGES.items()},
        **source(),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(model.device) if cuda else str(model.device),
        "device_count": torch.cuda.device_count() if cuda else 1,
        "dtype": str(model.net.dtype).removeprefix("torch."),
        "rows": resources.rows,
        "tokens": resources.tokens,
        "family": model.family.name,
        "padding": model.card.padding,
        "data": source_of(tasks, resources),
        "probes_counted": False,
        "sandbox": sandbox(resources),
        "started": started,
    }


def source_of(tasks: Sequence[str], resources: Resources) -> str:
    """Where the items came from; the built-in model's are made."""
    if all(name.startswith("tiny_") for name in tasks):
        return "built in"
    return "local" if resources.data else "hub"


def sandbox(resources: Resources) -> dict[str, Any]:
    allowed = resources.allow_code_execution
    return {"allowed": allowed, "weak": resources.weak_sandbox, "layers": layers() if allowed else {}}
