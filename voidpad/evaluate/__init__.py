"""Evaluation on lm-evaluation-harness in three stages, and the run folder that they leave.

*prepare* has the harness build the requests, *answer* decodes them and needs neither the harness nor a sandbox, *judge*
grades. `run.py` has the stages, alone and together, and `prepare.py`, `answer.py` and `judge.py` their parts.
Format of the folder, version 4:

config.json, written by *prepare*, completed by *answer*; after the first answer its config never changes
    version, config (the fields of `EvalConfig`), plan (every field of the plan with its value; null until known),
    provenance: lm_eval, math_verify (versions), data (hub, local or built in) and sandbox (allowed, weak, layers) of
        the harness; voidpad, torch, transformers, python (versions), commit, dirty, device, device_count, dtype, tf32
        (float32 products rounded), rows, tokens, family, padding, probes_counted (false: passes_decode leaves probes
        out), started, approximations (none by default), one_length (every canvas has the length that the plan says) of
        the machine that answered

requests.jsonl, written by *prepare*: one line per request, the fields of `AnswerRequest`
    name (task:index), prompt, stop (strings), gold, rendered (the chat template is in the prompt already)

progress.jsonl, the journal of *answer*: one line per answer in the order they end, appended and synced; a torn last
    line is dropped. The fields of `AnswerRecord`. A run that was killed goes on from here.

examples.jsonl.gz, written by *judge*: one line per example, by task and index
    task, index (in the whole test set), scores (by grader), score (the task's primary grader), detail (what the primary
    grader extracted, or its verdict and reason), prompt, gold, prompt_sha256 (of the prompt's text), prompt_tokens,
    output (the text that was scored), passes_decode, passes_probe, passes_shared, slot_passes (canvas slots summed over
    all passes), canvas (final length), answer_tokens (before the first end), stop_reason, eos (the canvas holds an
    end), at_cap (it holds none and may not grow), seconds

results.json, written last: its presence means the run is complete
    version, provenance, finished, wall_seconds (generation, without loading the model, over all starts),
    mean (score and passes_decode, unweighted over tasks), tasks: by name
        n, test_size, metric, filter (the primary grader), correct, score and interval (percent, 95 % Wilson),
        scores (the same by grader), means of passes_decode, passes_probe, passes_shared, passes_total
        (decode + probe - shared), canvas, answer_tokens; slot_passes (a mean; null with a cache), share_at_cap,
        share_without_eos, seconds (a sum),
        extra (shares that only this task has, such as math500's fallback_share)

Between an interrupted and an uninterrupted run only seconds, wall_seconds, started and finished differ.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voidpad.evaluate.config import EvalConfig, Resources
    from voidpad.evaluate.folder import AnswerRecord, AnswerRequest, RunFolder, read_run
    from voidpad.evaluate.run import evaluate, join

__all__ = [
    "AnswerRecord",
    "AnswerRequest",
    "EvalConfig",
    "Resources",
    "RunFolder",
    "evaluate",
    "join",
    "read_run",
]


def __getattr__(name: str) -> Any:
    """Imported on first use: the processes that grade need no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'voidpad.evaluate' has no attribute {name!r}")
    return getattr(import_module("voidpad.evaluate.run"), name)
