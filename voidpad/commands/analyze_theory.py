"""`voidpad analyze theory`: the paper's theorems on a distribution of answer lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from voidpad.commands import analyze_inputs as inputs
from voidpad.commands.analyze_tables import json_number, plain_table
from voidpad.commands.generate import out
from voidpad.commands.loading import Device, Dtype
from voidpad.commands.options import TokenLimit
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.diagnose.oracle_lengths import Story
    from voidpad.diagnose.theory import Agreement, Case, LengthModel, LengthShare, Prediction
    from voidpad.models import Model

_Told = tuple[str, str, "Story"]  # a padding, how it was decoded, what happened


def theory(
    lengths: Annotated[
        str | None, typer.Option(help="answer lengths: 2,3,3,5,8 or with weights 1:.35,2:.25,5:.4")
    ] = None,
    data: inputs.Data = None,
    canvas: Annotated[int | None, typer.Option(min=1, help="canvas length")] = None,
    block: Annotated[int | None, typer.Option(min=1, help="block size; default: the canvas")] = None,
    padding: Annotated[
        list[str] | None, typer.Option(help="padding of the oracle model (repeatable); default: all")
    ] = None,
    symbols: Annotated[int, typer.Option(help="words of the oracle model, all equally likely")] = 10,
    model: Annotated[str | None, typer.Option(help="also compare this checkpoint with the theorems")] = None,
    adapter: inputs.Adapter = None,
    tasks: inputs.TaskNames = inputs.EVERY,
    count: Annotated[int, typer.Option(help="prompts for the comparison, or examples of --data", min=1)] = 64,
    draws: Annotated[int, typer.Option(min=1, help="answers drawn for each built-in prompt")] = 400,
    raw: inputs.Raw = False,
    tokens: TokenLimit = 8192,
    as_json: inputs.AsJson = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Theorems 1 and 2 on a length distribution: where EOS starts, how far it spreads, what decoding does."""
    from voidpad.diagnose.questions import speaks_tiny
    from voidpad.diagnose.theory import Case, LengthModel, agree, predict
    from voidpad.training.padding import POLICIES, policy

    if symbols < 1:
        raise ConfigError(f"symbols={symbols} must be at least 1.")
    if model is None and data is not None:
        raise ConfigError("--data needs the model whose tokens it is counted in; add --model NAME.")
    inputs.check_there(data)
    wanted = None if lengths is None else _lengths(lengths)
    policies = padding or list(POLICIES)
    for name in policies:
        policy(name)  # an unknown one is refused before anything is loaded
    loaded, cases = None, list[Case]()
    if model is not None:
        loaded = inputs.load_full_attention(model, adapter, device=device, dtype=dtype)
        cases = _cases(loaded, data, tasks=tasks, count=count, draws=draws, raw=raw)
    if wanted is not None:
        distribution = wanted
    elif cases:
        pooled = [item for case in cases for item in case.lengths.weights]
        distribution = LengthModel.of([length for length, weight in pooled for _ in range(int(weight))])
    else:
        distribution = _lengths("1:.35,2:.25,5:.4")
    longest = distribution.weights[-1][0] + 1
    size = canvas or (192 if loaded is not None and speaks_tiny(loaded) else longest)
    prediction = predict(distribution, size, block or size)
    stories = _stories(distribution, prediction, policies, symbols)
    agreement = None
    if loaded is not None:
        agreement = agree(
            loaded.denoiser(), loaded.roles, cases, canvas=size, block=prediction.block, tokens=tokens
        )
    if as_json:
        print(json.dumps(_theory_json(distribution, prediction, stories, agreement)))
        return
    _print_theorems(distribution, prediction)
    out.print(_story_table(stories, size))
    if agreement is not None:
        out.print(_agreement_table(agreement, len(cases)))


def _lengths(text: str) -> LengthModel:
    """`2,3,3,5,8` (a sample) or `1:.35,2:.25,5:.4` (weights)."""
    from collections import Counter
    from fractions import Fraction

    from voidpad.diagnose.theory import LengthModel

    weights: Counter[int] = Counter()
    for part in inputs.names(text):
        length, _, weight = part.partition(":")
        try:
            weights[int(length)] += Fraction(weight or "1")  # type: ignore[assignment]
        except (ValueError, ZeroDivisionError):
            raise ConfigError(
                f"lengths: {part!r} is not LENGTH or LENGTH:WEIGHT, such as 12 or 12:.4."
            ) from None
    return LengthModel.weighted(weights)


def _cases(model: Model, data: Path | None, *, tasks: str, count: int, draws: int, raw: bool) -> list[Case]:
    """Prompts with lengths: a file's with the file's lengths, or built-in ones with their own."""
    from voidpad.diagnose.questions import speaks_tiny, task_lengths, task_names
    from voidpad.diagnose.theory import Case, LengthModel

    if data is None and speaks_tiny(model):
        chosen = task_names(inputs.names(tasks))
        order = [(chosen[n % len(chosen)], n // len(chosen)) for n in range(count)]
        drawn = [task_lengths(task, index, draws) for task, index in order]
        return [Case(model.encode(prompt), LengthModel.of(lengths)) for prompt, lengths in drawn]
    pairs = inputs.pairs(model, data=data, tasks=tasks, count=count, raw=raw)
    shared = LengthModel.of(pairs.response[pairs.complete].tolist())
    begin, size = pairs.start.tolist(), pairs.prompt.tolist()
    rows = [pairs.tokens[at : at + n].tolist() for at, n in zip(begin, size, strict=True)]
    return [Case(row, shared) for row in rows]


def _stories(
    lengths: LengthModel, prediction: Prediction, paddings: Sequence[str], symbols: int
) -> list[_Told]:
    """The oracle under every padding: (padding, how it was decoded, what happened)."""
    from voidpad.decode.plan import plan
    from voidpad.diagnose.oracle_lengths import LengthOracle, tell
    from voidpad.training.padding import policy

    shape: dict[str, Any] = {"canvas": prediction.canvas, "block": prediction.block}
    half = next(size for size in range(max(1, prediction.block // 2), 0, -1) if not prediction.canvas % size)
    told: list[_Told] = []
    for name in paddings:
        padding = policy(name)
        oracle = LengthOracle(lengths, padding, prediction.canvas, symbols)
        usual = plan(padding.plan, stop="vanilla", **shape)
        if not usual.ban:
            told.append((name, "no ban", tell(oracle, usual)))
            continue
        banned = ", ".join(map(str, usual.ban)).upper()
        early = plan(padding.plan, canvas=prediction.canvas, block=half)
        unbanned = plan(padding.plan, ban="", stop="vanilla", **shape)
        told.append((name, f"{banned} banned", tell(oracle, usual)))
        told.append((name, "no ban", tell(oracle, unbanned)))
        told.append((name, f"{banned} banned, stop at EOS, block {half}", tell(oracle, early)))
    return told


def _story_table(stories: Sequence[_Told], canvas: int) -> Table:
    shown = Table(box=None, padding=(0, 1))
    for head in ("padding", "decoding", "length", "passes", "canvas", "written, with confidence"):
        shown.add_column(head, justify="right" if head in ("length", "passes") else "left", overflow="fold")
    for name, how, story in stories:
        steps = [f"{slot}:{token} {score:.3g}" for slot, token, score in story.commits]
        shown_steps = ", ".join(steps if len(steps) <= 12 else [*steps[:3], "..."])
        line = story.canvas if canvas <= 24 else story.canvas[:8] + "..."
        shown.add_row(name.upper(), how, str(story.length), str(story.passes), line, shown_steps)
    return shown


def _print_theorems(lengths: LengthModel, prediction: Prediction) -> None:
    start, top = prediction.start, float(lengths.share(prediction.start - 1))
    out.print(
        f"Theorem 1: r = {start} (F({start - 1}) = {top:.3f} > 1/2); "
        + (
            f"slots {start}..{prediction.block} of the first block are written as EOS when chosen"
            if prediction.opening
            else f"r lies past the first block of {prediction.block}, so nothing is said of it"
        )
    )
    spread = _runs(prediction.spread)
    out.print(
        f"Theorem 2: once {start}..{prediction.canvas} are EOS, so are {spread}"
        if spread
        else "Theorem 2: nothing spreads"
    )
    if prediction.rounds:
        out.print(
            f"Fixpoint: the suffix reaches slot {prediction.fixpoint} in {len(prediction.rounds)} rounds"
        )
    exact = all(
        lengths.given(i - 1, start - 1) == lengths.share(i - 1) / lengths.share(start - 1)
        for i in range(1, start + 1)
    )
    out.print(f"P(l <= i-1 | l <= r-1) = F(i-1) / F(r-1) at all {start} slots: {'exact' if exact else 'NO'}")


def _runs(slots: Sequence[int]) -> str:
    return "" if not slots else f"slot {slots[0]}" if len(slots) == 1 else f"slots {slots[0]}..{slots[-1]}"


def _agreement_table(agreement: Agreement, prompts: int) -> Table:
    shown = plain_table(f"model, {prompts} prompts", "slots", "are EOS", "|q - theory|")
    for label, share, gap in (
        ("T1: slots r..B, empty canvas", agreement.opening, agreement.opening_gap),
        ("T2: spread set, r..L forced to EOS", agreement.spread, agreement.spread_gap),
        ("    before it (nothing claimed)", agreement.beyond, None),
    ):
        value = "" if share.value is None else f"{share.value:.3f}"
        shown.add_row(label, str(share.slots), value, "" if gap is None else f"{gap:.4f}")
    return shown


def _theory_json(
    lengths: LengthModel, prediction: Prediction, stories: Sequence[_Told], model: Agreement | None
) -> dict[str, Any]:
    cdf = [json_number(float(lengths.share(i - 1)), 6) for i in range(1, prediction.canvas + 1)]
    world = {
        "canvas": prediction.canvas,
        "block": prediction.block,
        "F(i-1)": cdf,
        "r": prediction.start,
        "spread": list(prediction.spread),
        "rounds": [list(part) for part in prediction.rounds],
        "fixpoint": prediction.fixpoint,
    }
    oracle = [{"padding": name, "decoding": how, **asdict(story)} for name, how, story in stories]
    return {**world, "oracle": oracle, "model": None if model is None else _agreement_json(model)}


def _agreement_json(agreement: Agreement) -> dict[str, Any]:
    def plain(share: LengthShare) -> dict[str, Any]:
        return {"slots": share.slots, "hits": share.hits, "share": json_number(share.value)}

    gaps = {
        "opening_gap": json_number(agreement.opening_gap),
        "spread_gap": json_number(agreement.spread_gap),
    }
    return {name: plain(getattr(agreement, name)) for name in ("opening", "spread", "beyond")} | gaps
