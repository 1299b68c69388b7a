"""Run folders with made-up results, written by the evaluation's own writers, for tests of the report."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from voidpad.decode.length import Fixed
from voidpad.decode.presets import describe
from voidpad.engine.cache_policy import CachePolicy
from voidpad.evaluate.folder import VERSION, RunFolder
from voidpad.evaluate.judge import summary
from voidpad.experiments.sweep import begin
from voidpad.experiments.sweep_recipe import SweepCell, read
from voidpad.models import FAMILIES

PROVENANCE = {
    **{"voidpad": "0.1.0", "commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
    **{
        "python": "3.11.9",
        "torch": "2.13.0",
        "transformers": "5.22.2",
        "lm_eval": "0.4.13",
        "math_verify": "0.9.0",
    },
    **{"device": "cpu", "device_count": 1, "dtype": "float32", "rows": 32, "tokens": 16384},
    **{"family": "llada", "padding": None, "data": "local", "probes_counted": False},
    **{"sandbox": {"allowed": True, "weak": False, "layers": {}}, "started": "2026-01-01T00:00:00+00:00"},
}
GRADERS = {"gsm8k": ("flexible-extract", "strict-match")}
Draw = Callable[[SweepCell, int], list[float]]  # for each of so many examples a number in [0, 1): its luck


def drawn(cell: SweepCell, size: int) -> list[float]:
    # Not from the id, which a new setting would change.
    name = f"{cell.model} {cell.method} {cell.task} {sorted(cell.config.fields.items())}"
    digests = [hashlib.sha256(f"{name}:{index}".encode()).digest() for index in range(size)]
    return [int.from_bytes(digest[:6], "big") / 2**48 for digest in digests]


def example(cell: SweepCell, index: int, luck: float, at: Mapping[str, Any]) -> dict[str, Any]:
    """An example as `evaluate` writes it; passes and lengths stay within the canvas."""
    canvas = int(at.get("limit", at["canvas"]))
    passes = 1 + int(luck * (canvas - 1))
    right = float(luck < 0.6)
    graders = GRADERS.get(cell.task, ("voidpad", "authors"))
    return {
        "task": cell.task,
        "index": index,
        "prompt": "question",
        "gold": "answer",
        "prompt_sha256": "0" * 64,
        "output": "text",
        "score": right,
        "scores": {name: right if at_ == 0 else float(luck < 0.5) for at_, name in enumerate(graders)},
        "detail": {},
        "prompt_tokens": 10,
        "passes_decode": passes,
        "passes_probe": 3 if "limit" in at else 0,
        "passes_shared": 1 if "limit" in at else 0,
        "slot_passes": passes * canvas,
        "canvas": canvas,
        "answer_tokens": passes // 2,
        "stop_reason": "eos",
        "eos": luck < 0.9,
        "at_cap": luck >= 0.9,
        "seconds": passes / 10,
    }


def write_run(cell: SweepCell, out: Path, *, size: int = 40, draw: Draw = drawn) -> Path:
    """The run folder of a cell."""
    config = cell.config
    family = "dream" if "dream" in cell.model else "llada"
    plan, at = describe(config.plan, config.fields, defaults=FAMILIES[family].decoding)
    approximations = [
        *([CachePolicy.parse(config.cache).approximation] if config.cache else []),
        *plan.approximations,
    ]
    provenance = {
        **PROVENANCE,
        "approximations": approximations,
        "one_length": isinstance(plan.length, Fixed),
    }
    run = RunFolder(out / cell.folder)
    run.path.mkdir(parents=True, exist_ok=True)
    head = run.begin(config, provenance, json.loads(json.dumps(at)))
    lines = [example(cell, index, luck, at) for index, luck in enumerate(draw(cell, size))]
    graders = GRADERS.get(cell.task, ("voidpad", "authors"))
    entry = {"test_size": 200, "metric": "score", "filter": graders[0], **summary(lines, head), "extra": {}}
    results = {
        "version": VERSION,
        "tasks": {cell.task: entry},
        "mean": {"score": entry["score"], "passes_decode": fmean([one["passes_decode"] for one in lines])},
        "wall_seconds": entry["seconds"],
        "provenance": provenance,
        "finished": "2026-01-01T00:10:00+00:00",
    }
    run.write_results(lines, results)
    return run.path


def write_sweep(recipe: Path, out: Path, **options: Any) -> list[SweepCell]:
    """A finished sweep of a recipe."""
    found = begin(read(recipe), recipe.stem, out)
    for cell in found:
        write_run(cell, out, **options)
    return found
