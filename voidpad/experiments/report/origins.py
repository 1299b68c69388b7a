"""Where a table's numbers come from: what was run, with what, on what, over how many examples."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from voidpad.experiments.report.records import CellRecord, plan_label

VERSIONS = ("voidpad", "python", "torch", "transformers", "lm_eval", "math_verify")
COMMON = (
    "dtype",
    "quantize",
    "cache",
    "seed",
    "fewshot",
    "fewshot_seed",
    "parity",
    "system",
    "raw",
    "merge",
    "limit",
)


def provenance(shown: Sequence[CellRecord]) -> list[tuple[str, str]]:
    """Facts under a table, by name. A fact that differs between the runs lists every value."""
    records = [record for record in shown if record.done]
    facts = [
        ("Runs", f"{len({r.folder for r in records})} finished of {len({r.folder for r in shown})}"),
        ("Models", _listed(_model(r.settings) for r in records)),
        (
            "Plans",
            _listed(_plan(records, name) for name in sorted({plan_label(r.settings) for r in records})),
        ),
        ("Settings", _settings_text(records)),
        ("Test sets", _test_sets(records)),
        ("Graders", ", ".join(dict.fromkeys(f"{r.task} {r.result['filter']}" for r in records))),
        ("Passes", _probes(records)),
        ("Versions", ", ".join(f"{name} {_one_of(records, name)}" for name in VERSIONS)),
        ("Commit", _listed(_commit(r.provenance) for r in records)),
        ("Device", _listed(_device(r.provenance) for r in records)),
        (
            "Batching",
            f"at most {_one_of(records, 'rows')} rows and {_one_of(records, 'tokens')} tokens a pass",
        ),
        ("Data", _one_of(records, "data")),
        ("Code execution", _listed(_sandbox(r.provenance) for r in records)),
        ("Intervals", "95 %: Wilson's for a task, combined over independent tasks for a mean"),
    ]
    return facts


def _listed(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


def _one_of(records: Sequence[CellRecord], name: str) -> str:
    return " / ".join(dict.fromkeys(str(r.provenance.get(name) or "none") for r in records))


def _settings_text(records: Sequence[CellRecord]) -> str:
    """What all runs share beside model and plan, defaults included."""
    shown = []
    for name in COMMON:
        values = dict.fromkeys(json.dumps(r.settings.get(name)) for r in records)
        shown.append(f"{name}={' / '.join(values)}")
    return ", ".join(shown)


def _test_sets(records: Sequence[CellRecord]) -> str:
    sizes: dict[str, dict[str, None]] = {}
    for record in records:
        n, size = record.result["n"], record.result["test_size"]
        sizes.setdefault(record.task, {})[f"{n} of {size}"] = None
    return ", ".join(f"{task} {' / '.join(counts)}" for task, counts in sizes.items())


def _probes(records: Sequence[CellRecord]) -> str:
    counted = {bool(r.provenance.get("probes_counted")) for r in records}
    if counted == {False}:
        return "NFE counts decoding passes; probe passes are not counted in it and are listed in the details"
    return (
        "NFE includes probe passes"
        if counted == {True}
        else "runs differ in whether NFE includes probe passes"
    )


def _model(settings: Mapping[str, Any]) -> str:
    adapter = settings.get("adapter")
    return str(settings["model"]) + (f" with adapter {adapter}" if adapter else "")


def _plan(records: Sequence[CellRecord], name: str) -> str:
    """A preset with the fields its runs gave, each with all its values."""
    given: dict[str, dict[str, None]] = {}
    for record in (r for r in records if plan_label(r.settings) == name):
        for field, value in record.settings["fields"].items():
            given.setdefault(field, {})[str(value)] = None
    shown = ", ".join(f"{field} {'/'.join(values)}" for field, values in given.items())
    return f"{name} ({shown})" if shown else name


def _commit(facts: Mapping[str, Any]) -> str:
    commit = facts.get("commit")
    if commit is None:
        return "unknown"
    return f"{commit[:12]}{' with local changes' if facts.get('dirty') else ''}"


def _device(facts: Mapping[str, Any]) -> str:
    count = facts.get("device_count") or 1
    times = f" x {count}" if count > 1 else ""
    rounded = ", float32 products in TF32" if facts.get("tf32") else ""
    return f"{facts.get('device') or 'unknown'}{times}{rounded}"


def _sandbox(facts: Mapping[str, Any]) -> str:
    sandbox = facts.get("sandbox")
    if sandbox is None:
        return "unknown"
    if not sandbox["allowed"]:
        return "off"
    return "sandboxed, weak layers allowed" if sandbox["weak"] else "sandboxed"
