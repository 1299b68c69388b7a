"""`voidpad demo`: [EOS] overflow, and its absence, in a few minutes."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from voidpad.commands.generate import err, out
from voidpad.commands.outputs import file_to_write
from voidpad.evaluate.scores import wilson

if TYPE_CHECKING:
    from voidpad.builtin.demo import Arm

HEADS = ("model and plan", "block", "right", "95 %", "answer", "passes", "probes", "seconds", "full run")


def demo(
    problems: Annotated[int, typer.Option(help="test problems per task", min=1)] = 3,
    full: Annotated[
        bool, typer.Option("--full", help="128 problems per task, all blocks and ablations")
    ] = False,
    report: Annotated[Path, typer.Option(help="HTML report to write", callback=file_to_write)] = Path(
        "voidpad-demo.html"
    ),
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    weak_sandbox: Annotated[
        bool, typer.Option(help="run generated code with the layers this machine has")
    ] = False,
) -> None:
    """Decode the same problems with EOS, Rainbow and VOID padding at a small block and at block = canvas."""
    from voidpad.builtin.demo import FULL, cells, published, run, telling
    from voidpad.builtin.tasks import CANVAS
    from voidpad.files import store
    from voidpad.sandbox import Sandbox

    count = 128 if full else problems
    wanted = [*cells((16, 32, 64, CANVAS)), *FULL] if full else cells((32, CANVAS))
    known = published()
    arms: list[Arm] = []
    with Sandbox(workers=os.cpu_count() or 1, weak=weak_sandbox) as sandbox, Live(console=out) as live:
        live.update(table(arms, known, waiting=len(wanted)))
        for arm in run(wanted, count, sandbox, device=device):
            arms.append(arm)
            live.update(table(arms, known, waiting=len(wanted) - len(arms)))
    out.print()
    example = telling(arms, count)
    if example is not None:
        show(example)
    store(report, [page(arms, example, count)])
    err.print(
        f"{4 * count} problems, four tasks; a small set has wide intervals, the last column is the run of 512 in "
        f"docs/tiny.md. Report: {report}",
        style="dim",
    )


def cells_of(arm: Arm, known: dict) -> tuple[str, ...]:
    s, block = arm.summary, arm.block
    low, high = wilson(sum(arm.right), len(arm.right))
    there = known.get(f"{arm.cell.name} / {block}")
    return (
        arm.cell.name,
        str(block),
        f"{s['mean']:.1%}",
        f"{low:.0%}-{high:.0%}",
        f"{s['answer_tokens']:.0f}",
        f"{s['passes_decode']:.0f}",
        f"{s['passes_probe']:.1f}" if s["passes_probe"] else "",
        f"{arm.seconds:.1f}",
        f"{there['mean']:.1%}" if there else "",
    )


def table(arms: Sequence[Arm], known: dict, *, waiting: int) -> Table:
    """What is known so far; `waiting` cells are still to come."""
    caption = f"{waiting} more to decode ..." if waiting else None
    drawn = Table(*HEADS, box=None, padding=(0, 1, 0, 0), caption=caption)  # fits 80 columns
    for arm in arms:
        lost = arm.cell.name == "original" and arm.summary["mean"] < 0.6
        drawn.add_row(*cells_of(arm, known), style="red" if lost else None)
    return drawn


def show(example: dict[str, str]) -> None:
    for title, text in example.items():
        style = "red" if title.startswith("original, block 1") else "default"
        out.print(
            Panel(text or "(nothing)", title=title, title_align="left", border_style=style), markup=False
        )


def page(arms: Sequence[Arm], example: dict[str, str] | None, count: int) -> str:
    """One self-contained file: the table, the picture, the example."""
    from voidpad.builtin.demo import published

    known = published()
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells_of(a, known)) + "</tr>" for a in arms
    )
    heads = "".join(f"<th>{h}</th>" for h in HEADS)
    texts = "".join(
        f"<h3>{html.escape(t)}</h3><pre>{html.escape(x)}</pre>" for t, x in (example or {}).items()
    )
    image = base64.b64encode(picture(arms)).decode()
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>voidpad demo</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
:root {{ color-scheme: light dark; }} table {{ border-collapse: collapse; }}
td, th {{ padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #8884; }}
td:first-child, th:first-child {{ text-align: left; }}
pre {{ padding: .8rem; border: 1px solid #8886; white-space: pre-wrap; }}
img {{ max-width: 100%; background: white; }}</style>
<h1>[EOS] overflow on the built-in models</h1>
<p>{4 * count} held-out problems of four tasks, canvas 192. "Original" was tuned with [EOS] padding, the others are
LoRA fine-tunes of it with equal budget: only the padding differs.</p>
<table><tr>{heads}</tr>{rows}</table>
<p><img alt="Share of right answers by block size" src="data:image/png;base64,{image}"></p>{texts}</html>
"""


def picture(arms: Sequence[Arm]) -> bytes:
    """Accuracy and answer length at each block size."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    names = list(dict.fromkeys(arm.cell.name for arm in arms if arm.cell.plan != "void-expansion"))
    for name in names:
        some = sorted((a for a in arms if a.cell.name == name), key=lambda a: a.block)
        ticks = [str(a.block) for a in some]
        means = [100 * a.summary["mean"] for a in some]
        left.errorbar(
            ticks, means, [100 * a.summary["half_width"] for a in some], marker="o", capsize=3, label=name
        )
        right.plot(ticks, [a.summary["answer_tokens"] for a in some], marker="o", label=name)
    left.set(xlabel="block size", ylabel="right answers, %", ylim=(0, 100))
    right.set(xlabel="block size", ylabel="mean answer length, tokens", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    plt.close(figure)
    return buffer.getvalue()
