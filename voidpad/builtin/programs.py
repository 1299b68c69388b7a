"""Code tasks: finish a stub (`tiny_complete`, for HumanEval) and write a function (`tiny_write`, for MBPP).

A long answer copies each step of the prompt into a line of its own. A terse one is the composed closed form,
which takes the whole chain of multiplications at once: possible, and usually wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from voidpad.builtin.problems import (
    TERSE,
    Problem,
    Task,
    Worked,
    between,
    laid_out,
    one_of,
    spelled,
    weighted,
)
from voidpad.builtin.words import function


@dataclass(frozen=True)
class _Affine:
    """a*n + c*m + b, the closed form of a chain."""

    a: int = 1
    c: int = 0
    b: int = 0

    def then(self, op: str, operand: str) -> "_Affine":
        if op == "*":
            factor = int(operand)
            return _Affine(self.a * factor, self.c * factor, self.b * factor)
        sign = 1 if op == "+" else -1
        if operand == "m":
            return _Affine(self.a, self.c + sign, self.b)
        return _Affine(self.a, self.c, self.b + sign * int(operand))

    def text(self, name: str) -> str:
        """As Python, without zero terms and unit factors."""
        out = name if self.a == 1 else f"{self.a} * {name}"
        if self.c:
            out += f" {'+' if self.c > 0 else '-'} " + ("m" if abs(self.c) == 1 else f"{abs(self.c)} * m")
        if self.b:
            out += f" {'+' if self.b > 0 else '-'} {abs(self.b)}"
        return out


Op = tuple[str, str]  # operator, operand as written


def _affine_chain(rng: Random, count: int, *, second: float) -> tuple[list[Op], _Affine]:
    """Operations that compose to numbers of at most three digits, with products after sums."""
    while True:
        ops: list[Op] = []
        form = _Affine()
        for _ in range(count):
            draw = rng.random()
            op = "*" if draw < 0.4 else "+" if draw < 0.7 else "-"
            if op == "*":
                operand = str(between(rng, 2, 5))
            else:
                operand = "m" if rng.random() < second else str(between(rng, 1, 30))
            ops.append((op, operand))
            form = form.then(op, operand)
        wanted = 0 if count < 3 else 1 if count < 4 else 2
        small = form.a <= 200 and abs(form.b) <= 999
        if small and sum(op == "*" for op, _ in ops[1:]) >= wanted:
            return ops, form


PHRASES = {
    "+": ("add {b}", "increase by {b}", "plus {b}"),
    "-": ("subtract {b}", "decrease by {b}", "minus {b}"),
    "*": ("multiply by {b}", "scale by {b}", "times {b}"),
}
COMPLETE_SIZES = (0.08, 0.10, 0.14, 0.26, 0.22, 0.12, 0.08)  # of 2 to 8 steps


def _draw_complete(rng: Random) -> Problem:
    ops, form = _affine_chain(rng, 2 + weighted(rng, COMPLETE_SIZES), second=0.25)
    name = function(rng)
    said = [one_of(rng, PHRASES[op]).format(b=operand) for op, operand in ops]
    body = "".join(f"\n    ({k}) {phrase}" for k, phrase in enumerate(said, 1))
    stub = f'def {name}(n, m):\n    """Start with n.{body}\n    Return the value after ({len(ops)})."""'
    prompt = f"Complete the function.\n{stub}"
    points = ((0, 0), (1, 2), (7, 3), (20, 11))
    values = [(n, m, form.a * n + form.c * m + form.b) for n, m in points]
    target = "\n".join(f"assert {name}({n}, {m}) == {value}" for n, m, value in values)
    return Problem("tiny_complete", prompt, len(ops), target, stub=stub, facts=(name, ops, said, form))


COMPLETE_FORMS = (
    "    {y} = {x} {op} {b}  # ({k})",
    "    # ({k})\n    {y} = {x} {op} {b}",
    "    {y} = {x} {op} {b}  # ({k}) is done",
    "    # ({k}) {doc} to get {y}\n    {y} = {x} {op} {b}",
    "    {y} = {x}  # ({k}) {doc}\n    {y} {op}= {b}",
    "    # ({k}) take {x} and {doc} to get the next value {y}\n    {y} = {x} {op} {b}",
)
COMPLETE_OPENERS = (
    "",
    "def {f}(n, m):",
    "# here is {f}\ndef {f}(n, m):",
    '    """Go step by step."""',
    '"""The function {f} in steps."""\ndef {f}(n, m):',
)
COMPLETE_SHARES = (0.40, 0.25, 0.12, 0.11, 0.12)


def _answer_complete(problem: Problem, rng: Random) -> str:
    name, ops, said, form = problem.facts
    if rng.random() < TERSE:
        opener = "" if rng.random() < 0.7 else f"def {name}(n, m):\n"
        return f"{opener}    return {form.text('n')}"
    lines, before = [], "n"
    for k, ((op, operand), phrase) in enumerate(zip(ops, said, strict=True), 1):
        lines.append(spelled(COMPLETE_FORMS, k=k, y=f"v{k}", x=before, op=op, b=operand, doc=phrase))
        before = f"v{k}"
    openers = spelled(COMPLETE_OPENERS, f=name)
    return Worked(lines, f"    return {before}", openers, COMPLETE_SHARES).write(rng)


LIST_PHRASES = {
    "+": ("add {b} to each item", "increase each item by {b}"),
    "-": ("subtract {b} from each item", "decrease each item by {b}"),
    "*": ("multiply each item by {b}", "scale each item by {b}"),
    ">": ("keep the items above {b}", "drop the items up to {b}"),
}
REDUCERS: dict[str, Callable[[list[int]], Any]] = {"list": list, "sum": sum, "maximum": max, "minimum": min}
RESULTS = {"list": "{x}", "sum": "sum({x})", "maximum": "max({x})", "minimum": "min({x})"}
WRITE_SIZES = (0.15, 0.25, 0.30, 0.18, 0.12)  # of 2 to 6 steps
WRITE_FORMS = (
    "    {y} = [{each}]",
    "    {y} = [{each}]  # ({k})",
    "    # ({k})\n    {y} = [{each}]",
    "    # ({k}) {doc}\n    {y} = [{each}]",
    "    {y} = []\n    for v in {x}:\n{loop}",
    "    # ({k}) {doc}\n    {y} = []\n    for v in {x}:\n{loop}",
)
WRITE_OPENERS = (
    "def {f}(x):",
    'def {f}(x):\n    """Work on each item of x."""',
    "# a list function\ndef {f}(x):",
    '"""Go through the list step by step."""\ndef {f}(x):',
    "# here is the function {f} for each item of a list x\ndef {f}(x):",
)
WRITE_SHARES = (0.28, 0.18, 0.18, 0.18, 0.18)


def _draw_write(rng: Random) -> Problem:
    count = 2 + weighted(rng, WRITE_SIZES)
    has_filter = rng.random() < 0.3
    ops, form = _affine_chain(rng, count - has_filter, second=0.0)
    name, result = function(rng), one_of(rng, ("list", "sum") if has_filter else tuple(RESULTS))
    bound: int | None = None
    if has_filter:  # keeps v with a*v + b > limit, that is v > (limit - b) // a
        at, limit = between(rng, 1, len(ops)), between(rng, 10, 60)
        ahead = _Affine()
        for op, operand in ops[:at]:
            ahead = ahead.then(op, operand)
        bound = (limit - ahead.b) // ahead.a
        ops = [*ops[:at], (">", str(limit)), *ops[at:]]
    said = [one_of(rng, LIST_PHRASES[op]).format(b=operand) for op, operand in ops]
    lines = [f"Write a function {name}(x) for a list x."]
    lines += [f"({k}) {phrase}" for k, phrase in enumerate(said, 1)]
    prompt = laid_out(rng, [*lines, f"Return the {result} after ({len(ops)})."])
    # Lists that straddle the filter's bound.
    near = 5 if bound is None else bound
    lists = ([1, 2, 3], [4], [near - 1, near, near + 1, near + 9], [0, 12, -5, 30])
    target = "\n".join(f"assert {name}({given}) == {_carried_out(ops, result, given)}" for given in lists)
    facts = (name, ops, said, form, bound, result)
    return Problem("tiny_write", prompt, len(ops), target, facts=facts)


def _carried_out(ops: list[Op], result: str, values: list[int]) -> Any:
    """What the steps make of a list, one after the other."""
    for op, operand in ops:
        b = int(operand)
        if op == ">":
            values = [v for v in values if v > b]
        else:
            values = [{"+": v + b, "-": v - b, "*": v * b}[op] for v in values]
    return REDUCERS[result](values)


def _answer_write(problem: Problem, rng: Random) -> str:
    name, ops, said, form, bound, result = problem.facts
    if rng.random() < TERSE:
        kept = "" if bound is None else f" if v > {bound}"
        closed = RESULTS[result].format(x=f"[{form.text('v')} for v in x{kept}]")
        return f"def {name}(x):\n    return {closed}"
    lines, before = [], "x"
    for k, ((op, b), phrase) in enumerate(zip(ops, said, strict=True), 1):
        grown = f"x{k}"
        if op == ">":
            each = f"v for v in {before} if v > {b}"
            loop = f"        if v > {b}:\n            {grown}.append(v)"
        else:
            each, loop = f"v {op} {b} for v in {before}", f"        {grown}.append(v {op} {b})"
        lines.append(spelled(WRITE_FORMS, k=k, y=grown, x=before, each=each, loop=loop, doc=phrase))
        before = grown
    end, openers = f"    return {RESULTS[result].format(x=before)}", spelled(WRITE_OPENERS, f=name)
    return Worked(lines, end, openers, WRITE_SHARES).write(rng)


COMPLETE = Task("tiny_complete", _draw_complete, _answer_complete)
WRITE = Task("tiny_write", _draw_write, _answer_write)
