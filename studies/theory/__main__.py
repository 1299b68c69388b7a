"""`python -m studies.theory`: the paper's theorems on a distribution of answer lengths.

python -m studies.theory                                              # the worked example of the oracle model
python -m studies.theory --lengths 40:.5,80:.3,160:.2 --canvas 192 --block 64 --padding eos --padding void
python -m studies.theory --model tiny-eos --count 8                   # and how far a model follows it
python -m studies.theory --model my-checkpoint --data train.jsonl --count 200 --canvas 512 --device cuda
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from studies.theory.oracle import LengthOracle, OracleDecode, decode_oracle
from studies.theory.theorems import Agreement, Case, LengthModel, LengthShare, Prediction, agree, predict
from voidpad.builtin.tasks import CANVAS, TASKS, heldout
from voidpad.builtin.tokenizer import tokenizer
from voidpad.decode.presets import plan
from voidpad.diagnose.questions import file_pairs, has_builtin_vocab, task_names
from voidpad.errors import ConfigError
from voidpad.models import Model, load
from voidpad.models.card import PLANS
from voidpad.training.padding import POLICIES

out = Console(highlight=False, soft_wrap=True)
Told = tuple[str, str, OracleDecode]  # a padding, how it was decoded, what happened


def theory(
    lengths: Annotated[
        str | None, typer.Option(help="answer lengths: 2,3,3,5,8 or with weights 1:.35,2:.25,5:.4")
    ] = None,
    canvas: Annotated[int | None, typer.Option(min=1, help="canvas length")] = None,
    block: Annotated[int | None, typer.Option(min=1, help="block size; default: the canvas")] = None,
    padding: Annotated[
        list[str] | None, typer.Option(help="padding of the oracle model (repeatable); default: all")
    ] = None,
    symbols: Annotated[int, typer.Option(min=1, help="words of the oracle model, all equally likely")] = 10,
    model: Annotated[str | None, typer.Option(help="also compare this checkpoint with the theorems")] = None,
    data: Annotated[
        Path | None, typer.Option(help="examples for the model: JSON lines, or a prepared file")
    ] = None,
    count: Annotated[int, typer.Option(help="prompts for the comparison, or examples of --data", min=1)] = 64,
    draws: Annotated[int, typer.Option(min=1, help="answers drawn for each built-in prompt")] = 400,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Theorems 1 and 2 on a length distribution: where EOS starts, how far it spreads, what decoding does."""
    loaded = None if model is None else load(model, device=device)
    cases = [] if loaded is None else cases_of(loaded, data, count=count, draws=draws)
    if lengths is not None:
        distribution = parse_lengths(lengths)
    elif cases:
        pooled = [item for case in cases for item in case.lengths.weights]
        distribution = LengthModel.of([length for length, weight in pooled for _ in range(int(weight))])
    else:
        distribution = parse_lengths("1:.35,2:.25,5:.4")
    longest = distribution.weights[-1][0] + 1
    size = canvas or (CANVAS if loaded is not None and has_builtin_vocab(loaded) else longest)
    prediction = predict(distribution, size, block or size)
    stories = oracle_decodes(distribution, prediction, padding or list(POLICIES), symbols)
    agreement = None
    if loaded is not None:
        agreement = agree(loaded.denoiser(), loaded.roles, cases, canvas=size, block=prediction.block)
    if as_json:
        print(json.dumps(as_plain(distribution, prediction, stories, agreement)))
        return
    print_theorems(distribution, prediction)
    out.print(oracle_table(stories, size))
    if agreement is not None:
        out.print(agreement_table(agreement, len(cases)))


def parse_lengths(text: str) -> LengthModel:
    """`2,3,3,5,8` (a sample) or `1:.35,2:.25,5:.4` (weights)."""
    weights: Counter[int] = Counter()
    for part in text.split(","):
        length, _, weight = part.partition(":")
        try:
            weights[int(length)] += Fraction(weight or "1")  # type: ignore[assignment]
        except (ValueError, ZeroDivisionError):
            raise ConfigError(
                f"lengths: {part!r} is not LENGTH or LENGTH:WEIGHT, such as 12 or 12:.4."
            ) from None
    return LengthModel.weighted(weights)


def cases_of(model: Model, data: Path | None, *, count: int, draws: int) -> list[Case]:
    """Prompts with lengths: a file's with the file's lengths, or built-in ones with their own."""
    if data is None and has_builtin_vocab(model):
        tasks = task_names([])
        order = [(tasks[n % len(tasks)], n // len(tasks)) for n in range(count)]
        drawn = [task_lengths(task, index, draws) for task, index in order]
        return [Case(model.encode(prompt), LengthModel.of(lengths)) for prompt, lengths in drawn]
    if data is None:
        raise ConfigError(f"{model.name}: no data; give examples with --data FILE.")
    pairs = file_pairs(model, data, count)
    shared = LengthModel.of(pairs.response[pairs.complete].tolist())
    begin, size = pairs.start.tolist(), pairs.prompt.tolist()
    return [Case(pairs.tokens[at : at + n].tolist(), shared) for at, n in zip(begin, size, strict=True)]


def task_lengths(name: str, index: int, draws: int) -> tuple[Any, list[int]]:
    """What a test problem asks, and the lengths of many answers drawn for it: what its own F is made of."""
    problem = heldout(name, index + 1)[index]
    rng = Random(f"{name} {index}")
    encode = tokenizer().backend_tokenizer.encode_batch
    texts = [TASKS[name].answer(problem, rng) for _ in range(draws)]
    return problem.asked, [len(one.ids) for one in encode(texts)]


def oracle_decodes(
    lengths: LengthModel, prediction: Prediction, paddings: Sequence[str], symbols: int
) -> list[Told]:
    """The oracle under every padding, decoded as usual and with what its plan bans allowed."""
    shape: dict[str, Any] = {"canvas": prediction.canvas, "block": prediction.block}
    half = next(size for size in range(max(1, prediction.block // 2), 0, -1) if not prediction.canvas % size)
    told: list[Told] = []
    for name in paddings:
        oracle = LengthOracle(lengths, POLICIES[name], prediction.canvas, symbols)
        usual = plan(PLANS[name], stop="vanilla", **shape)
        if not usual.ban:
            told.append((name, "no ban", decode_oracle(oracle, usual)))
            continue
        banned = ", ".join(map(str, usual.ban)).upper()
        early = plan(PLANS[name], canvas=prediction.canvas, block=half)
        unbanned = plan(PLANS[name], ban="", stop="vanilla", **shape)
        told.append((name, f"{banned} banned", decode_oracle(oracle, usual)))
        told.append((name, "no ban", decode_oracle(oracle, unbanned)))
        told.append((name, f"{banned} banned, stop at EOS, block {half}", decode_oracle(oracle, early)))
    return told


def oracle_table(stories: Sequence[Told], canvas: int) -> Table:
    shown = Table(box=None, padding=(0, 1))
    for head in ("padding", "decoding", "length", "passes", "canvas", "written, with confidence"):
        shown.add_column(head, justify="right" if head in ("length", "passes") else "left", overflow="fold")
    for name, how, story in stories:
        steps = [f"{slot}:{token} {score:.3g}" for slot, token, score in story.commits]
        shown_steps = ", ".join(steps if len(steps) <= 12 else [*steps[:3], "..."])
        line = story.canvas if canvas <= 24 else story.canvas[:8] + "..."
        shown.add_row(name.upper(), how, str(story.length), str(story.passes), line, shown_steps)
    return shown


def print_theorems(lengths: LengthModel, prediction: Prediction) -> None:
    start, top = prediction.start, float(lengths.share(prediction.start - 1))
    if prediction.opening:
        said = f"slots {start}..{prediction.block} of the first block are written as EOS when chosen"
    else:
        said = f"r lies past the first block of {prediction.block}, so nothing is said of it"
    out.print(f"Theorem 1: r = {start} (F({start - 1}) = {top:.3f} > 1/2); {said}")
    if prediction.spread:
        first, last = prediction.spread[0], prediction.spread[-1]
        slots = f"slot {first}" if first == last else f"slots {first}..{last}"
        out.print(f"Theorem 2: once {start}..{prediction.canvas} are EOS, so are {slots}")
    else:
        out.print("Theorem 2: nothing spreads")
    if prediction.rounds:
        out.print(
            f"Fixpoint: the suffix reaches slot {prediction.fixpoint} in {len(prediction.rounds)} rounds"
        )
    exact = all(
        lengths.given(i - 1, start - 1) == lengths.share(i - 1) / lengths.share(start - 1)
        for i in range(1, start + 1)
    )
    out.print(f"P(l <= i-1 | l <= r-1) = F(i-1) / F(r-1) at all {start} slots: {'exact' if exact else 'NO'}")


def agreement_table(agreement: Agreement, prompts: int) -> Table:
    shown = Table(box=None, padding=(0, 1))
    for place, head in enumerate((f"model, {prompts} prompts", "slots", "are EOS", "|q - theory|")):
        shown.add_column(head, justify="right" if place else "left", no_wrap=True)
    for label, share, gap in (
        ("T1: slots r..B, empty canvas", agreement.opening, agreement.opening_gap),
        ("T2: spread set, r..L forced to EOS", agreement.spread, agreement.spread_gap),
        ("    before it (nothing claimed)", agreement.beyond, None),
    ):
        value = "" if share.value is None else f"{share.value:.3f}"
        shown.add_row(label, str(share.slots), value, "" if gap is None else f"{gap:.4f}")
    return shown


def as_plain(
    lengths: LengthModel, prediction: Prediction, stories: Sequence[Told], model: Agreement | None
) -> dict[str, Any]:
    def share(found: LengthShare) -> dict[str, Any]:
        return {"slots": found.slots, "hits": found.hits, "share": found.value}

    told: dict[str, Any] = {
        "canvas": prediction.canvas,
        "block": prediction.block,
        "F(i-1)": [round(float(lengths.share(i - 1)), 6) for i in range(1, prediction.canvas + 1)],
        "r": prediction.start,
        "spread": list(prediction.spread),
        "rounds": [list(part) for part in prediction.rounds],
        "fixpoint": prediction.fixpoint,
        "oracle": [{"padding": name, "decoding": how, **asdict(story)} for name, how, story in stories],
        "model": None,
    }
    if model is not None:
        told["model"] = {name: share(getattr(model, name)) for name in ("opening", "spread", "beyond")}
        told["model"] |= {"opening_gap": model.opening_gap, "spread_gap": model.spread_gap}
    return told


if __name__ == "__main__":
    typer.run(theory)
