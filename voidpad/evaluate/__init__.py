"""Evaluation on lm-evaluation-harness, and the run folder it leaves. Format of the folder, version 1:

config.json, written before the first example, never changed by a resumed run
    version, fingerprint (sha256 of settings), settings, provenance
    settings: every field of `Settings` (cache only where there is one), and plan_resolved (every field of the
        plan with its value)
    provenance: voidpad, torch, transformers, lm_eval, math_verify, python (versions), commit, dirty, device,
        device_count, dtype, rows, tokens, family, padding, data (hub or local), probes_counted (false:
        passes_decode leaves probes out), sandbox (allowed, weak, layers), started, approximations (those
        that were on; none by default)

progress.jsonl, the journal: one line per generated example in the order they end, appended and synced; a torn
    last line is dropped. The fields of `Record`. A run that was killed goes on from here.

examples.jsonl, written at the end: one line per example, by task and index
    task, index (place in the whole test set), prompt_sha256 (of the prompt's text), prompt_tokens, output
    (the text that was scored), score (the task's primary metric), scores (by grader), detail (of the primary
    grader), passes_decode, passes_probe, passes_shared, canvas (final length), answer_tokens (before the first
    end), stop_reason, eos (the canvas holds an end), at_cap (it holds none and may not grow), seconds

results.json, written last: its presence means the run is complete
    version, provenance, finished, wall_seconds (generation, without loading the model, over all starts),
    mean (score and passes_decode, unweighted over tasks), tasks: by name
        n, test_size, metric, filter (the primary grader), correct, score and interval (percent, 95 % Wilson),
        scores (the same by grader), means of passes_decode, passes_probe, passes_shared, passes_total
        (decode + probe - shared), canvas, answer_tokens; share_at_cap, share_without_eos, seconds (a sum),
        extra (shares that only this task has, such as math500's fallback_share)

Between an interrupted and an uninterrupted run only seconds, wall_seconds, started and finished differ.
"""

from typing import TYPE_CHECKING, Any

from voidpad.evaluate.folder import Run, read_run
from voidpad.evaluate.scores import wilson
from voidpad.evaluate.settings import Resources, Settings

if TYPE_CHECKING:
    from voidpad.evaluate.run import evaluate, join

__all__ = ["Resources", "Run", "Settings", "evaluate", "join", "read_run", "wilson"]


def __getattr__(name: str) -> Any:
    """`evaluate` and `join` on first use: they bring lm-eval, which readers of run folders do not need."""
    if name not in ("evaluate", "join"):
        raise AttributeError(f"module 'voidpad.evaluate' has no attribute {name!r}")
    from voidpad.evaluate import run

    return getattr(run, name)
