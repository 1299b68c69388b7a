"""Two runs on the same problems: how far their scores are apart, and which answers changed sides."""

from pathlib import Path

from voidpad.errors import ConfigError, DataError, printable
from voidpad.evaluate.folder import read_run
from voidpad.evaluate.intervals import mcnemar, mean, paired_bootstrap
from voidpad.experiments.report.pages import markdown_table, md


def compare_runs(first: Path, second: Path) -> tuple[str, str]:
    """A title, and as Markdown: the settings that differ, a row for each task, and every item that changed sides."""
    runs = [read_run(path) for path in (first, second)]
    for run in runs:
        if not run.complete:
            raise DataError(f"{run.path}: not judged yet; finish the run, then compare.")
    lines = [{(one["task"], one["index"]): one for one in run.examples} for run in runs]
    pairs = [(lines[0][key], lines[1][key]) for key in lines[0] if key in lines[1]]
    if not pairs:
        raise ConfigError(f"compare {first} {second}: no item was answered by both; choose runs of one task.")
    for a, b in pairs:
        if a["prompt_sha256"] != b["prompt_sha256"]:
            raise ConfigError(
                f"compare {first} {second}: item {a['index']} of {a['task']} has two prompts; "
                "use runs with equal shots and templates."
            )
    one, other = map(md, _names(first, second))
    mine, theirs = (run.config.plain() for run in runs)
    text = [f"# {other} against {one}", ""]
    text += [md(f"- {key}: {theirs[key]} against {mine[key]}") for key in mine if mine[key] != theirs[key]]
    heads = ["task", "items", one, other, "difference", "paired 95 %", "lost", "gained", "McNemar p"]
    rows = []
    for task in dict.fromkeys(a["task"] for a, _ in pairs):
        same = [(a["score"], b["score"]) for a, b in pairs if a["task"] == task]
        before, after = (100 * mean(scores) for scores in zip(*same, strict=True))
        low, high = paired_bootstrap([100 * (b - a) for a, b in same])
        lost, gained = sum(b < a for a, b in same), sum(b > a for a, b in same)
        row = [md(task), str(len(same)), f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"]
        row += [f"[{low:+.2f}, {high:+.2f}]", str(lost), str(gained), f"{mcnemar(lost, gained):.3g}"]
        rows.append(row)
    text += ["", *markdown_table(heads, rows)]
    for a, b in pairs:
        if a["score"] == b["score"]:
            continue
        text += ["", f"## {md(a['task'])} {a['index']}: {a['score']:g} to {b['score']:g}"]
        parts = {"prompt": str(a["prompt"]), "gold": str(a["gold"]), one: a["output"], other: b["output"]}
        for title, part in parts.items():
            shown = [printable(line) for line in part.expandtabs().splitlines()] or ["(nothing)"]
            text += ["", f"{title}:", "", *(f"    {line}" for line in shown)]
    return " against ".join(reversed(_names(first, second))), "\n".join(text) + "\n"


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The names of the run folders: the last parts of their paths, as many as make them differ."""
    one, other = first.resolve().parts, second.resolve().parts
    depth = 1
    while one[-depth:] == other[-depth:] and depth < min(len(one), len(other)):
        depth += 1
    return "/".join(one[-depth:]), "/".join(other[-depth:])
