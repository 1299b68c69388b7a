"""Evaluation on lm-evaluation-harness in three stages, and the run folder they share.

*prepare* (`prepare.py`) has the harness build the requests, *answer* (`answer.py`) decodes them and needs neither the
harness nor a sandbox, *judge* (`judge.py`) grades. `run.py` does all three. Format of the folder, version 2:

config.json, written by *prepare*, completed by *answer*; after the first answer its settings never change
    version, fingerprint (sha256 of settings), settings, provenance
    settings: the fields of `Settings` (cache, hide_eos, merge, weights, num_fewshot and own_tasks only where they are
        set), and plan_resolved (every field of the plan with its value). `weights` is the fingerprint of model and
        adapter, own_tasks the digest of each task that is not voidpad's.
    provenance: lm_eval, math_verify (versions), data (hub, local or built in) and sandbox (allowed, weak, layers) of
        the harness; voidpad, torch, transformers, python (versions), commit, dirty, device, device_count, dtype, tf32
        (float32 products rounded), rows, tokens, family, padding, probes_counted (false: passes_decode leaves probes
        out), started and approximations (none by default) of the machine that answered; devices, where there were
        several

requests.jsonl, written by *prepare*: one line per request, the fields of `AnswerRequest`
    name (task:index), prompt, stop (strings), gold, rendered (the chat template is in the prompt already)

progress.jsonl, the journal of *answer*: one line per answer in the order they end, appended and synced; a torn last
    line is dropped. The fields of `AnswerRecord`. A run that was killed goes on from here.

examples.jsonl, written by *judge*: one line per example, by task and index
    task, index (in the whole test set), prompt, gold, prompt_sha256 (of the prompt's text), prompt_tokens, output
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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voidpad.evaluate.folder import AnswerRequest, RunFolder, read_run
    from voidpad.evaluate.journal import AnswerRecord
    from voidpad.evaluate.run import evaluate, join
    from voidpad.evaluate.scores import wilson
    from voidpad.evaluate.settings import Resources, Settings

# Resolved on first use: readers of run folders need no lm-eval, and the processes that grade answers need no torch.
_HOMES = {
    "AnswerRecord": "journal",
    "AnswerRequest": "folder",
    "Resources": "settings",
    "RunFolder": "folder",
    "Settings": "settings",
    "evaluate": "run",
    "join": "run",
    "read_run": "folder",
    "wilson": "scores",
}
__all__ = [
    "AnswerRecord",
    "AnswerRequest",
    "Resources",
    "RunFolder",
    "Settings",
    "evaluate",
    "join",
    "read_run",
    "wilson",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'voidpad.evaluate' has no attribute {name!r}")
    return getattr(import_module(f"voidpad.evaluate.{_HOMES[name]}"), name)
