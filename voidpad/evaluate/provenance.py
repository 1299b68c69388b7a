"""Where results come from: versions, commit, device. Each stage adds what it knows."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from voidpad.evaluate.config import Resources
from voidpad.models import Model


def answer_provenance(model: Model, resources: Resources) -> dict[str, Any]:
    """The machine and the software that decoded."""
    import torch

    cuda = model.device.type == "cuda"
    float32 = model.net.dtype == torch.float32
    tracked = _git("ls-files", "--error-unmatch", "__init__.py") is not None
    return {
        **{name: installed_version(name) for name in ("voidpad", "torch", "transformers")},
        "commit": _git("rev-parse", "HEAD") if tracked else None,
        # Whether files that git knows have changed since.
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no", ".")) if tracked else None,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(model.device) if cuda else str(model.device),
        "device_count": torch.cuda.device_count() if cuda else 1,
        "dtype": str(model.net.dtype).removeprefix("torch."),
        # The inputs of float32 products are rounded to TF32, which can flip near-ties.
        "tf32": cuda and float32 and torch.get_float32_matmul_precision() != "highest",
        "rows": resources.rows,
        "tokens": resources.tokens,
        "family": model.family.name,
        "padding": model.card.padding,
        "probes_counted": False,
        "started": now(),
    }


def judge_provenance(tasks: Sequence[str], resources: Resources) -> dict[str, Any]:
    """The harness, the data and the sandbox that scored."""
    from voidpad.sandbox import layers

    allowed = resources.allow_code_execution
    made = all(name.startswith("tiny_") for name in tasks)  # the built-in model's items are generated
    return {
        "lm_eval": installed_version("lm_eval"),
        "math_verify": installed_version("math-verify"),
        "data": "built in" if made else "local" if resources.data else "hub",
        "sandbox": {
            "allowed": allowed,
            "weak": resources.weak_sandbox,
            "layers": layers() if allowed else {},
        },
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def installed_version(package: str) -> str | None:
    """The version of an installed package; None for one that is not installed, or for a bare source tree."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*words: str) -> str | None:
    """Git's answer about the checkout voidpad runs from; None for an installed package."""
    folder = Path(__file__).parents[1]
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
