"""How the analyses are shown: tables, lines, JSON objects, CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from voidpad.files import store

if TYPE_CHECKING:
    from voidpad.diagnose.eos_prior import Curves
    from voidpad.diagnose.oracle_lengths import Story
    from voidpad.diagnose.overflow import Answer, Trajectory
    from voidpad.diagnose.theory import Agreement, LengthModel, LengthShare, Prediction

Right = Sequence[bool | None]
PAIRS = (("model", "target", "|q - p|"), ("model", "cdf", "|q - F|"), ("target", "cdf", "|p - F|"))


def _table(*heads: str) -> Table:
    shown = Table(box=None, padding=(0, 1))
    for place, head in enumerate(heads):
        shown.add_column(head, justify="right" if place else "left", no_wrap=True)
    return shown


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    store(path, [text.getvalue()])


def _number(value: float | None, digits: int = 4) -> float | None:
    """For JSON, which has no NaN."""
    return None if value is None or value != value else round(value, digits)


# eos-prior


def prior_rows(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"slot": slot, "count": int(n)} for slot, n in enumerate(curves[0].count, start=1)
    ]
    for one in curves:
        for name, values in (("F", one.cdf), ("p", one.target), ("q", one.model)):
            for row, value in zip(rows, values.tolist(), strict=True):
                row[f"{name}_{one.token}"] = "" if value != value else f"{value:.6f}"
    return rows


def prior_table(curves: Sequence[Curves], least: int) -> Table:
    shown = _table("gap", "mean", "max", "slots")
    for one in curves:
        slots = f"{int((one.count >= least).sum())} of {len(one.count)}"
        for first, second, label in PAIRS:
            gaps = (f"{gap:.4f}" for gap in one.gap(first, second, least=least))
            shown.add_row(f"{one.token.upper()} {label}", *gaps, slots)
    return shown


def prior_json(curves: Sequence[Curves], model: str, examples: int, least: int) -> dict[str, Any]:
    result: dict[str, Any] = {"model": model, "examples": examples, "least": least}
    for one in curves:
        gaps = {label: [_number(g) for g in one.gap(a, b, least=least)] for a, b, label in PAIRS}
        curve = {"F": one.cdf, "p": one.target, "q": one.model}
        values = {name: [_number(v, 6) for v in part.tolist()] for name, part in curve.items()}
        result[one.token] = {"gaps (mean, max)": gaps, "count": one.count.tolist(), **values}
    return result


# overflow


def draw(trajectories: Sequence[Trajectory], path: Path) -> None:
    """Heat maps of P(EOS), at most three side by side."""
    from voidpad.diagnose import plots

    some = list(trajectories)[:3]
    plots.save(plots.heat(some, titles=[title(one) for one in some]), path)


def title(one: Trajectory) -> str:
    plan = one.trace.header.plan
    end = "overflow" if one.overflow else f"{one.effective} tokens"
    return f"{one.trace.header.model}, block {plan.get('block', '?')}: {end}"


def trajectory_line(one: Trajectory) -> str:
    first = next((m.number + 1 for m in one.moments if m.first_eos is not None), None)
    seen = f"first EOS in pass {first}" if first else "no EOS"
    stages = f"stage 1 {one.stage1} passes, stage 2 {one.stage2}"
    flag = "overflow" if one.overflow else "no overflow"
    block = one.trace.header.plan.get("block", "?")
    return (
        f"{one.trace.header.model}, row {one.trace.row}, block {block}: {seen}, {stages}; "
        f"effective length {one.effective} of {len(one.trace.result.ids)}, {flag}"
    )


def trajectory_json(one: Trajectory) -> dict[str, Any]:
    return {
        "model": one.trace.header.model,
        "row": one.trace.row,
        "block": one.trace.header.plan.get("block"),
        "canvas": len(one.trace.result.ids),
        "stage1": one.stage1,
        "stage2": one.stage2,
        "first_eos": [None if m.first_eos is None else m.first_eos + 1 for m in one.moments],
        "eos_share": [_number(m.eos_share) for m in one.moments],
        "effective": one.effective,
        "overflow": one.overflow,
    }


def answer_row(answer: Answer, right: bool | None = None) -> dict[str, Any]:
    return {**answer.facts(), "right": "" if right is None else right}


def _percent(hits: int, count: int) -> str:
    return f"{hits}/{count} ({100 * hits / count:.0f} %)"


def rate_table(answers: Sequence[Answer], right: Right) -> Table:
    from voidpad.diagnose.overflow import rates

    shown = _table(
        "block", "overflow", "short", "mean length", "passes", *(["right"] if _known(right) else [])
    )
    for rate in rates(answers):
        cells = [_percent(rate.overflows, rate.answers), _percent(rate.short, rate.answers)]
        cells += [f"{rate.effective:.1f}", f"{rate.passes:.1f}"]
        mine = [r for a, r in zip(answers, right, strict=True) if a.block == rate.block and r is not None]
        cells += [_percent(sum(mine), len(mine))] if mine else []
        shown.add_row(str(rate.block), *cells)
    return shown


def _known(right: Right) -> bool:
    return any(one is not None for one in right)


def overflow_json(
    model: str,
    answers: Sequence[Answer],
    right: Right,
    summary: dict[str, Any],
    trajectories: Sequence[Trajectory],
) -> dict[str, Any]:
    from voidpad.diagnose.overflow import rates

    blocks = [{**asdict(rate), "share": _number(rate.share)} for rate in rates(answers)]
    for rate in blocks:
        mine = [r for a, r in zip(answers, right, strict=True) if a.block == rate["block"] and r is not None]
        rate["right"] = _number(sum(mine) / len(mine)) if mine else None
    each = [{**a.facts(), "right": r} for a, r in zip(answers, right, strict=True)]
    void = _number(summary["void_tail"])
    return {
        "model": model,
        "blocks": blocks,
        "void_tail": void,
        "verdict": summary["verdict"],
        "advice": summary["advice"],
        "trajectories": [trajectory_json(one) for one in trajectories],
        "answers": each,
    }


# attention

Arms = Mapping[str, Sequence["Answer"]]


def arm_rows(arms: Arms, right: Mapping[str, Right]) -> list[dict[str, Any]]:
    return [
        {"arm": arm, **answer_row(answer, judged)}
        for arm, answers in arms.items()
        for answer, judged in zip(answers, right[arm], strict=True)
    ]


def arm_table(arms: Arms, right: Mapping[str, Right]) -> Table:
    shown = _table("EOS keys", "overflow", "mean length", *(["right"] if _known(right["before"]) else []))
    for arm, label in (("before", "seen"), ("after", "hidden")):
        answers, judged = arms[arm], [one for one in right[arm] if one is not None]
        cells = [_percent(sum(a.overflow for a in answers), len(answers))]
        cells.append(f"{sum(a.effective for a in answers) / len(answers):.1f}")
        cells += [_percent(sum(judged), len(judged))] if judged else []
        shown.add_row(label, *cells)
    return shown


def mass_table(mass: Mapping[str, Any]) -> Table:
    shown = _table("attention on EOS", *(str(n + 1) for n in range(len(mass["before"]))), "even")
    shown.add_row("EOS seen", *(f"{value:.3f}" for value in mass["before"]), f"{mass['even']:.3f}")
    shown.add_row("EOS hidden", *(f"{value:.3f}" for value in mass["after"]), "")
    return shown


def print_answers(console: Console, arms: Arms, right: Mapping[str, Right], count: int) -> None:
    for row in range(min(count, len(arms["before"]))):
        for arm in ("before", "after"):
            mark = {True: "right", False: "wrong", None: ""}[right[arm][row]]
            console.print(f"--- {row} {arm} {mark}", style="bold")
            console.print(arms[arm][row].text, markup=False)


def attention_json(
    model: str, queries: str, arms: Arms, right: Mapping[str, Right], mass: Mapping[str, Any]
) -> dict[str, Any]:
    result: dict[str, Any] = {"model": model, "queries": queries}
    for arm, answers in arms.items():
        judged = [one for one in right[arm] if one is not None]
        result[arm] = {
            "overflows": sum(a.overflow for a in answers),
            "effective": _number(sum(a.effective for a in answers) / len(answers)),
            "right": _number(sum(judged) / len(judged)) if judged else None,
            "answers": [{**a.facts(), "right": r} for a, r in zip(answers, right[arm], strict=True)],
        }
    layers = {arm: [_number(v) for v in mass[arm]] for arm in ("before", "after") if mass}
    return {**result, "mass": {**layers, "even": _number(mass["even"]) if mass else None}}


# theory

Told = tuple[str, str, "Story"]


def stories(
    lengths: LengthModel, prediction: Prediction, paddings: Sequence[str], symbols: int
) -> list[Told]:
    """The oracle under every padding: (padding, how it was decoded, what happened)."""
    from voidpad.decode.plan import plan
    from voidpad.diagnose.oracle_lengths import LengthOracle, tell
    from voidpad.training.padding import policy

    shape: dict[str, Any] = {"canvas": prediction.canvas, "block": prediction.block}
    half = next(size for size in range(max(1, prediction.block // 2), 0, -1) if not prediction.canvas % size)
    stories_told: list[Told] = []
    for name in paddings:
        padding = policy(name)
        oracle = LengthOracle(lengths, padding, prediction.canvas, symbols)
        usual = plan(padding.plan, stop="vanilla", **shape)
        if not usual.ban:
            stories_told.append((name, "no ban", tell(oracle, usual)))
            continue
        banned = ", ".join(map(str, usual.ban)).upper()
        early = plan(padding.plan, canvas=prediction.canvas, block=half)
        stories_told.append((name, f"{banned} banned", tell(oracle, usual)))
        stories_told.append(
            (name, "no ban", tell(oracle, plan(padding.plan, ban="", stop="vanilla", **shape)))
        )
        stories_told.append((name, f"{banned} banned, stop at EOS, block {half}", tell(oracle, early)))
    return stories_told


def story_table(stories: Sequence[Told], canvas: int) -> Table:
    shown = Table(box=None, padding=(0, 1))
    for head in ("padding", "decoding", "length", "passes", "canvas", "written, with confidence"):
        shown.add_column(head, justify="right" if head in ("length", "passes") else "left", overflow="fold")
    for name, how, story in stories:
        steps = [f"{slot}:{token} {score:.3g}" for slot, token, score in story.commits]
        shown_steps = ", ".join(steps if len(steps) <= 12 else [*steps[:3], "..."])
        line = story.canvas if canvas <= 24 else story.canvas[:8] + "..."
        shown.add_row(name.upper(), how, str(story.length), str(story.passes), line, shown_steps)
    return shown


def print_theory(console: Console, lengths: LengthModel, prediction: Prediction) -> None:
    start, top = prediction.start, float(lengths.share(prediction.start - 1))
    console.print(
        f"Theorem 1: r = {start} (F({start - 1}) = {top:.3f} > 1/2); "
        + (
            f"slots {start}..{prediction.block} of the first block are written as EOS when chosen"
            if prediction.opening
            else f"r lies past the first block of {prediction.block}, so nothing is said of it"
        )
    )
    spread = _runs(prediction.spread)
    console.print(
        f"Theorem 2: once {start}..{prediction.canvas} are EOS, so are {spread}"
        if spread
        else "Theorem 2: nothing spreads"
    )
    if prediction.rounds:
        console.print(
            f"Fixpoint: the suffix reaches slot {prediction.fixpoint} in {len(prediction.rounds)} rounds"
        )
    exact = all(
        lengths.given(i - 1, start - 1) == lengths.share(i - 1) / lengths.share(start - 1)
        for i in range(1, start + 1)
    )
    console.print(
        f"P(l <= i-1 | l <= r-1) = F(i-1) / F(r-1) at all {start} slots: {'exact' if exact else 'NO'}"
    )


def _runs(slots: Sequence[int]) -> str:
    return "" if not slots else f"slot {slots[0]}" if len(slots) == 1 else f"slots {slots[0]}..{slots[-1]}"


def agreement_table(agreement: Agreement, prompts: int) -> Table:
    shown = _table(f"model, {prompts} prompts", "slots", "are EOS", "|q - theory|")
    for label, share, gap in (
        ("T1: slots r..B, empty canvas", agreement.opening, agreement.opening_gap),
        ("T2: spread set, r..L forced to EOS", agreement.spread, agreement.spread_gap),
        ("    before it (nothing claimed)", agreement.beyond, None),
    ):
        value = "" if share.value is None else f"{share.value:.3f}"
        shown.add_row(label, str(share.slots), value, "" if gap is None else f"{gap:.4f}")
    return shown


def theory_json(
    lengths: LengthModel, prediction: Prediction, stories: Sequence[Told], model: Agreement | None
) -> dict[str, Any]:
    cdf = [_number(float(lengths.share(i - 1)), 6) for i in range(1, prediction.canvas + 1)]
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
        return {"slots": share.slots, "hits": share.hits, "share": _number(share.value)}

    gaps = {"opening_gap": _number(agreement.opening_gap), "spread_gap": _number(agreement.spread_gap)}
    return {name: plain(getattr(agreement, name)) for name in ("opening", "spread", "beyond")} | gaps
