"""`voidpad analyze eos-prior`: does a model repeat its data's length distribution as P(EOS)?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from voidpad.commands import analyze_inputs as inputs
from voidpad.commands.analyze_tables import json_number, plain_table, write_csv
from voidpad.commands.generate import bar, err, out
from voidpad.commands.loading import Device, Dtype
from voidpad.commands.options import TokenLimit
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.diagnose.eos_prior import Curves

PAIRS = (("model", "target", "|q - p|"), ("model", "cdf", "|q - F|"), ("target", "cdf", "|p - F|"))


def eos_prior(
    model: inputs.ModelName = "tiny-eos",
    adapter: inputs.Adapter = None,
    data: inputs.Data = None,
    tasks: inputs.TaskNames = inputs.EVERY,
    count: Annotated[int, typer.Option(help="examples", min=1)] = 600,
    batch: Annotated[int, typer.Option(help="examples of a mini-batch, padded to its longest")] = 6,
    canvas: Annotated[
        int | None, typer.Option(min=1, help="pad every answer to so many slots instead")
    ] = None,
    least: Annotated[int, typer.Option(min=1, help="examples a slot needs for its gap to count")] = 100,
    seed: Annotated[int, typer.Option(help="of the mini-batches")] = 0,
    raw: inputs.Raw = False,
    tokens: TokenLimit = 8192,
    plot: inputs.PlotFile = None,
    csv: inputs.CsvFile = None,
    as_json: inputs.AsJson = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Does the model repeat its data's length distribution as P(EOS)? F(i-1), p_i and q_i, and VOID's."""
    from voidpad.diagnose.eos_prior import batched, measure, same_canvas, shuffled

    if batch < 1 or count < 1:
        raise ConfigError(f"batch={batch} and count={count} must be at least 1.")
    inputs.check_there(data)
    loaded = inputs.load_full_attention(model, adapter, device=device, dtype=dtype)
    pairs = inputs.pairs(loaded, data=data, tasks=tasks, count=count, raw=raw)
    laid = (
        batched(pairs, shuffled(len(pairs), batch, seed=seed))
        if canvas is None
        else same_canvas(pairs, canvas)
    )
    with bar(len(pairs), shown=not as_json, label="examples") as tick:
        curves = measure(
            loaded.denoiser(), loaded.roles, laid, tokens=tokens, tick=lambda n: _repeat(tick, n)
        )
    if csv is not None:
        write_csv(csv, _rows(curves))
    if plot is not None:
        from voidpad.diagnose import plots

        plots.save(plots.prior(curves, title=f"{loaded.name}, {len(pairs)} examples", least=least), plot)
    if as_json:
        print(json.dumps(_json(curves, loaded.name, len(pairs), least)))
    else:
        out.print(_table(curves, least))
        err.print(f"{len(pairs)} examples; gaps over slots with at least {least} of them", style="dim")
        if not any((one.count >= least).any() for one in curves):
            err.print(
                f"no slot has {least} examples; raise --count, or lower --least below {len(pairs)}",
                style="yellow",
            )


def _repeat(tick: Any, times: int) -> None:
    for _ in range(times):
        tick()


def _rows(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"slot": slot, "count": int(n)} for slot, n in enumerate(curves[0].count, start=1)
    ]
    for one in curves:
        for name, values in (("F", one.cdf), ("p", one.target), ("q", one.model)):
            for row, value in zip(rows, values.tolist(), strict=True):
                row[f"{name}_{one.token}"] = "" if value != value else f"{value:.6f}"
    return rows


def _table(curves: Sequence[Curves], least: int) -> Table:
    shown = plain_table("gap", "mean", "max", "slots")
    for one in curves:
        slots = f"{int((one.count >= least).sum())} of {len(one.count)}"
        for first, second, label in PAIRS:
            gaps = (f"{gap:.4f}" for gap in one.gap(first, second, least=least))
            shown.add_row(f"{one.token.upper()} {label}", *gaps, slots)
    return shown


def _json(curves: Sequence[Curves], model: str, examples: int, least: int) -> dict[str, Any]:
    result: dict[str, Any] = {"model": model, "examples": examples, "least": least}
    for one in curves:
        gaps = {label: [json_number(g) for g in one.gap(a, b, least=least)] for a, b, label in PAIRS}
        curve = {"F": one.cdf, "p": one.target, "q": one.model}
        values = {name: [json_number(v, 6) for v in part.tolist()] for name, part in curve.items()}
        result[one.token] = {"gaps (mean, max)": gaps, "count": one.count.tolist(), **values}
    return result
