"""Number tasks: word problems (`tiny_steps`, for GSM8K) and chained expressions (`tiny_expr`, for MATH500).

Every running value has two digits. The length of an answer then depends on its manner and on what the prompt
shows, never on results the model has yet to compute: an end placed early leaves a valid way to reach it.
"""

from collections.abc import Callable
from random import Random

from voidpad.builtin.problems import (
    TERSE,
    Forms,
    Problem,
    Task,
    Worked,
    between,
    laid_out,
    one_of,
    spelled,
    weighted,
)
from voidpad.builtin.words import different, person, thing

LOW, HIGH = 10, 99
EVENTS = {
    "+": ("{n} finds {b} more", "{n} buys {b}", "{o} brings {b}"),
    "-": ("{n} loses {b}", "{n} sells {b}", "{o} takes {b}"),
    "*": ("{n} makes it {b} times as many", "the pile grows {b} times", "now there are {b} times as many"),
}
QUESTIONS = ("How many {i} after ({k})?", "What is left after ({k})?", "Count the {i} after ({k}).")
SIZES = (0.07, 0.09, 0.12, 0.16, 0.18, 0.16, 0.12, 0.10)  # of 1 to 8 steps
Step = tuple[int, str, int, int]  # before, operator, operand, after


def step(rng: Random, value: int) -> Step:
    """One operation that keeps the value at two digits; a product wherever one fits, about half the time."""
    if value * 2 <= HIGH and rng.random() < 0.55:
        factor = between(rng, 2, min(5, HIGH // value))
        return value, "*", factor, value * factor
    room_up, room_down = HIGH - value, value - LOW
    if rng.random() * (room_up + room_down) < room_up:
        amount = between(rng, 1, room_up)
        return value, "+", amount, value + amount
    amount = between(rng, 1, room_down)
    return value, "-", amount, value - amount


def products(count: int) -> int:
    """How many products after the first step make a chain of so many steps hard to do at once."""
    return 0 if count < 3 else 1 if count < 5 else 2


def chain(rng: Random, count: int) -> list[Step]:
    """Operations on a running value."""
    while True:
        value = between(rng, LOW, 40)
        steps: list[Step] = []
        for _ in range(count):
            steps.append(step(rng, value))
            value = steps[-1][3]
        if sum(s[1] == "*" for s in steps[1:]) >= products(count):
            return steps


def _draw_steps(rng: Random) -> Problem:
    steps = chain(rng, 1 + weighted(rng, SIZES))
    (name, other), item = different(rng, person, 2), thing(rng)
    lines = [f"{name} has {steps[0][0]} {item}."]
    for k, (_, op, operand, _) in enumerate(steps, 1):
        event = one_of(rng, EVENTS[op]).format(n=name, o=other, b=operand)
        lines.append(f"({k}) {event}.")
    lines.append(one_of(rng, QUESTIONS).format(i=item, k=len(steps)))
    facts = (name, item, steps)
    return Problem("tiny_steps", laid_out(rng, lines), len(steps), str(steps[-1][3]), facts=facts)


STEP_FORMS = (
    "({k}) {a} {op} {b} = {c}",
    "({k}) so {a} {op} {b} = {c}.",
    "({k}) that makes it {a} {op} {b} = {c}.",
    "({k}) {a} {op} {b} = {c}, so now {n} has {c} {i}.",
    "({k}) {n} had {a} {i} before, then {a} {op} {b} = {c}.",
    "({k}) {a} {op} {b} = {c}, which means that there are {c} {i} here.",
)
STEP_OPENERS = (
    "",
    "We count.",
    "Here is how it goes.",
    "Let us count the {i} of {n}.",
    "The {i} change like this, step by step.",
)
OPENER_SHARES = (0.36, 0.14, 0.14, 0.20, 0.16)


def step_lines(name: str, item: str, steps: list[Step], first: int = 1) -> list[Forms]:
    """The line of each step; the first has this number."""
    return [
        spelled(STEP_FORMS, k=k, a=a, op=op, b=b, c=c, n=name, i=item)
        for k, (a, op, b, c) in enumerate(steps, first)
    ]


def _steps_worked(problem: Problem) -> Worked:
    name, item, _ = problem.facts
    openers = spelled(STEP_OPENERS, n=name, i=item)
    return Worked(step_lines(*problem.facts), f"#### {problem.target}", openers, OPENER_SHARES)


LETTERS = "abcdefgh"
EXPR_QUESTIONS = ("What is {x}?", "Find {x}.", "Evaluate {x}.")
EXPR_SIZES = (0.08, 0.12, 0.18, 0.22, 0.18, 0.13, 0.09)  # of 2 to 8 definitions


def _definitions(rng: Random, count: int) -> list[tuple[Step, str, str]]:
    """Steps with their operands as written: each starts from the value before, some also use an older one."""
    value = between(rng, LOW, 40)
    written: list[tuple[Step, str, str]] = []
    for k in range(count):
        left = LETTERS[k - 1] if k else str(value)
        fitting: list[tuple[Step, str]] = []
        if rng.random() < 0.35:
            older = [(name, made[3]) for name, (made, _, _) in zip(LETTERS, written[:-1], strict=False)]
            fitting = [((value, "+", b, value + b), name) for name, b in older if value + b <= HIGH]
            fitting += [((value, "-", b, value - b), name) for name, b in older if value - b >= LOW]
        if fitting:
            made, right = one_of(rng, fitting)
        else:
            made = step(rng, value)
            right = str(made[2])
        written.append((made, left, right))
        value = made[3]
    return written


def _draw_expr(rng: Random) -> Problem:
    count = 2 + weighted(rng, EXPR_SIZES)
    while True:  # products make the direct answer hard; one that comes first does not
        written = _definitions(rng, count)
        if sum(s[1] == "*" for s, _, _ in written[1:]) >= products(count):
            break
    lines = [f"{LETTERS[k]} = {left} {s[1]} {right}" for k, (s, left, right) in enumerate(written)]
    lines.append(one_of(rng, EXPR_QUESTIONS).format(x=LETTERS[count - 1]))
    return Problem("tiny_expr", laid_out(rng, lines, "; "), count, str(written[-1][0][3]), facts=written)


EXPR_FORMS = (
    "{x} = {a} {op} {b} = {c}",
    "so {x} = {a} {op} {b} = {c}.",
    "then {x} is {a} {op} {b}, so {c}.",
    "{x} = {a} {op} {b} = {c}, so {x} is now {c}.",
    "for {x} we take {p} {op} {q}, so {x} = {a} {op} {b} = {c}.",
    "{x} = {a} {op} {b} = {c}, and that is the value of {x} = {p} {op} {q}.",
)
EXPR_OPENERS = (
    "",
    "We need {x}.",
    "Go from line to line.",
    "Take the values in order to get {x}.",
    "Here we find one value after the other.",
)
EXPR_OPENER_SHARES = (0.40, 0.15, 0.15, 0.15, 0.15)  # without an opener the first word is open already


def _expr_worked(problem: Problem) -> Worked:
    lines = [
        spelled(EXPR_FORMS, x=x, a=a, op=op, b=b, c=c, p=p, q=q)
        for x, ((a, op, b, c), p, q) in zip(LETTERS, problem.facts, strict=False)
    ]
    openers = spelled(EXPR_OPENERS, x=LETTERS[len(lines) - 1])
    return Worked(lines, f"#### {problem.target}", openers, EXPR_OPENER_SHARES)


def _task(name: str, draw: Callable[[Random], Problem], worked: Callable[[Problem], Worked]) -> Task:
    """An answer is worked out, or the number alone. It is right when all that it says is true, names included."""

    def answer(problem: Problem, rng: Random) -> str:
        return f"#### {problem.target}" if rng.random() < TERSE else worked(problem).write(rng)

    return Task(name, draw, answer, lambda problem, text: worked(problem).is_true(text))


STEPS = _task("tiny_steps", _draw_steps, _steps_worked)
EXPR = _task("tiny_expr", _draw_expr, _expr_worked)
