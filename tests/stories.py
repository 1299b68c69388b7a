"""Small made-up decodes in the real trace format: an answer that overflows, and one that ends well."""

import math
from dataclasses import dataclass, replace

import numpy as np

from voidpad.decode.outcome import Result
from voidpad.diagnose.trace import Edit, Header, Pass, Prompt, Trace
from voidpad.roles import Roles


def split(text: str) -> list[str]:
    return text.split()


ASK = split("A baker has 12 trays with 8 rolls each and sells 57 rolls . How many rolls are left ?")
FULL = split("The baker has 12 trays of 8 rolls , so there are 12 * 8 = 96 rolls .") + split(
    "She sells 57 , so 96 - 57 = 39 rolls are left . #### 39"
)
TERSE = split("#### 41")
MASK, EOS, VOID = 0, 1, 2
HOSTILE = "</script><img src=x onerror=window.hacked=1><!--"
WORDS = list(dict.fromkeys([*ASK, *FULL, *TERSE]))
ID = {word: number for number, word in enumerate(WORDS, start=10)}
PIECES = {MASK: "<mask>", EOS: "<eos>", VOID: "<void>"} | {number: word for word, number in ID.items()}


@dataclass(frozen=True)
class Belief:
    """What the made-up model thinks of every slot."""

    eos: np.ndarray  # (length,)
    void: np.ndarray  # (length,)
    words: np.ndarray  # (length,) ids of the likeliest words
    sure: np.ndarray  # (length,) their probabilities


def wave(at: np.ndarray, middle: float, width: float) -> np.ndarray:
    return 1 / (1 + np.exp(-(at - middle) / width))


def answer_at(length: int, words: list[str]) -> np.ndarray:
    """The answer's ids over the canvas, then filler."""
    ids = [ID[word] for word in words][:length]
    return np.array(ids + [ID["rolls"]] * (length - len(ids)))


def context(canvas: np.ndarray) -> np.ndarray:
    """How much of each slot's neighbourhood is already written."""
    seen = np.pad((canvas != MASK).astype(float), 3, constant_values=1.0)
    return sum(seen[3 + d : 3 + d + len(canvas)] for d in (-3, -2, -1, 1, 2, 3)) / 6


def eos_padded(canvas: np.ndarray) -> Belief:
    """Padding taught it that EOS fills the tail, and every EOS it sees drags its guess of the end left."""
    at, ends = np.arange(len(canvas)), np.flatnonzero(canvas == EOS)
    middle = 0.78 * (ends[0] if len(ends) else len(canvas)) - 2.5
    eos = np.clip(wave(at, max(middle, 1.5), 3.0 if middle > 6 else 0.9), 0.001, 0.985)
    short = middle < 8
    words = answer_at(len(canvas), TERSE if short else FULL)
    return Belief(eos, np.zeros(len(canvas)), words, (1 - eos) * (0.22 + 0.6 * context(canvas)))


def void_padded(canvas: np.ndarray) -> Belief:
    """The tail is VOID, the end is one EOS behind the answer."""
    at, end = np.arange(len(canvas)), len(FULL)
    void = wave(at, end + 3.0, 1.6) * 0.97
    eos = (
        np.exp(-(((at - end) / 0.6) ** 2)) * (0.45 + 0.5 * float((canvas[:end] != MASK).mean())) * (1 - void)
    )
    ripple = 0.22 * np.sin(at * 2.3) * np.sin(at * 0.9)
    return Belief(
        eos, void, answer_at(len(canvas), FULL), (1 - eos - void) * (0.36 + ripple + 0.4 * context(canvas))
    )


def measured(belief: Belief, detail: str) -> dict[str, np.ndarray]:
    if detail == "commits":
        return {}
    top = np.maximum(np.maximum(belief.eos, belief.void), belief.sure)
    arrays = {"p_eos": belief.eos, "p_void": belief.void, "top": top}
    return arrays | (five(belief) if detail == "top5" else {})


def five(belief: Belief) -> dict[str, np.ndarray]:
    spare = np.array([ID["of"], ID["rolls"]])
    rest = np.clip(1 - belief.eos - belief.void - belief.sure, 0, 1)
    ids = np.stack([np.full_like(belief.words, EOS), np.full_like(belief.words, VOID), belief.words], axis=1)
    ids = np.concatenate([ids, np.broadcast_to(spare, (len(ids), 2))], axis=1)
    p = np.stack([belief.eos, belief.void, belief.sure, 0.5 * rest, 0.2 * rest], axis=1)
    order = np.argsort(-p, axis=1, kind="stable")
    return {"top5_ids": np.take_along_axis(ids, order, 1), "top5_p": np.take_along_axis(p, order, 1)}


def counted(canvas: np.ndarray) -> dict[str, int | None]:
    ends = np.flatnonzero(canvas == EOS)
    return {"masks": int((canvas == MASK).sum()), "first_eos": int(ends[0]) if len(ends) else None}


def chosen(canvas: np.ndarray, belief: Belief) -> tuple[int, int, float]:
    """The most confident masked slot, VOID banned."""
    score = np.where(canvas == MASK, np.maximum(belief.eos, belief.sure), -math.inf)
    slot = int(score.argmax())
    token = EOS if belief.eos[slot] >= belief.sure[slot] else int(belief.words[slot])
    return slot, token, float(score[slot])


def decode_pass(n: int, canvas: np.ndarray, belief: Belief, *, detail: str) -> tuple[Pass, np.ndarray]:
    slot, token, score = chosen(canvas, belief)
    after = canvas.copy()
    after[slot] = token
    shape = {"n": n, "phase": "decode", "length": len(canvas), "open": 0, "window": len(canvas)}
    return Pass(**shape, commits=((slot, token, score),), **counted(after), **measured(belief, detail)), after


def stops(canvas: np.ndarray) -> bool:
    end = counted(canvas)["first_eos"]
    return end is not None and not (canvas[:end] == MASK).any()


def probe_pass(n: int, length: int, *, grow: int, detail: str) -> Pass:
    canvas = np.full(length, MASK)
    belief = void_padded(canvas)
    tail = slice(length - 16, None)
    other = np.maximum(belief.eos, belief.sure)[tail]
    signal = {"s_nonvoid": float(other.mean()), "s_gap": float((belief.void[tail] - other).mean())}
    edits = (Edit("append", length, grow, MASK),) if grow else ()
    after = np.full(length + grow, MASK)
    shape = {"n": n, "phase": "probe", "length": length, "open": 0, "window": length}
    return Pass(**shape, edits=edits, signal=signal, **counted(after), **measured(belief, detail))


def ended(head: Header, passes: list[Pass], canvas: np.ndarray) -> Trace:
    end = counted(canvas)["first_eos"]
    tokens = canvas.tolist() if end is None else canvas[: end + 1].tolist()
    probes = sum(step.phase == "probe" for step in passes)
    result = Result(
        key=0,
        text=" ".join(PIECES[token] for token in tokens if token > VOID),
        tokens=tokens,
        ids=canvas.tolist(),
        passes_decode=len(passes) - probes,
        passes_probe=probes,
        stop_reason="eos" if (canvas == MASK).any() else "full",
    )
    return Trace(0, head, tuple(passes), result, PIECES)


def header(model: str, plan: str, detail: str) -> Header:
    prompt = Prompt(" ".join(ASK), tuple(ID[word] for word in ASK))
    roles = Roles(MASK, EOS, void=VOID)
    return Header(model=model, family="llada", plan_name=plan, roles=roles, prompt=prompt, detail=detail)


def overflow(length: int = 64, detail: str = "top5") -> Trace:
    """EOS padding, block = canvas, no early stop: the answer collapses to its shortest form."""
    canvas, passes = np.full(length, MASK), []
    while (canvas == MASK).any():
        step, canvas = decode_pass(len(passes), canvas, eos_padded(canvas), detail=detail)
        passes.append(step)
    return ended(header("tiny-eos", "original", detail), passes, canvas)


def expansion(detail: str = "top5") -> Trace:
    """VOID padding: three probes grow the canvas, then a decode that stops at its EOS."""
    passes = [probe_pass(n, 32 + 16 * n, grow=16 if n < 2 else 0, detail=detail) for n in range(3)]
    canvas = np.full(64, MASK)
    while not stops(canvas):
        step, canvas = decode_pass(len(passes), canvas, void_padded(canvas), detail=detail)
        passes.append(step)
    return ended(header("tiny-void", "void-expansion", detail), passes, canvas)


def hostile() -> Trace:
    """The overflow story with markup wherever a trace holds text."""
    trace = overflow(16)
    odd = dict(trace.pieces) | {token: HOSTILE for token in trace.result.tokens if token > VOID}
    first = replace(trace.passes[0], signal={HOSTILE: 0.5})
    prompt = replace(trace.header.prompt, text=HOSTILE)
    head = replace(trace.header, model=HOSTILE, plan_name=HOSTILE, family=HOSTILE, prompt=prompt)
    result = replace(trace.result, text=HOSTILE, stop_reason=HOSTILE)
    odd[trace.header.prompt.ids[0]] = "\u2028\u2029 \ud800 \x00 ${data} $script &amp; ]]>"
    return Trace(0, head, (first, *trace.passes[1:]), result, odd)
