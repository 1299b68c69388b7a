"""`tiny_search`: answers whose length is not known before they are computed. An early end is wrong.

Three kinds: carry out a rule until a condition holds; list the numbers of a range that fit; list the entries of a
table that fit.
"""

from collections.abc import Callable, Sequence
from random import Random

from voidpad.builtin.problems import (
    TERSE,
    Problem,
    Task,
    between,
    laid_out,
    manner,
    one_of,
    weighted,
)
from voidpad.builtin.words import different, person, thing

LONGEST = 14  # units of an answer
Units = list[frozenset[str]]


def _run(start: int, odd: tuple[int, int], bound: int) -> list[tuple[int, int]]:
    """(value, next value) pairs: even values are halved, odd ones become `times * value + add`, down to the bound."""
    times, add = odd
    value, pairs = start, list[tuple[int, int]]()
    while value >= bound and len(pairs) <= LONGEST and value <= 400:
        after = value // 2 if value % 2 == 0 else times * value + add
        pairs.append((value, after))
        value = after
    return pairs


def _draw_run(rng: Random) -> Problem:
    while True:
        odd = (3, 1) if rng.random() < 0.4 else (1, 1 + 2 * between(rng, 1, 14))
        start, bound = between(rng, 20, 99), between(rng, 4, 20)
        pairs = _run(start, odd, bound)
        if 2 <= len(pairs) <= LONGEST and pairs[-1][1] < bound:
            break
    rule = "times 3 plus 1" if odd[0] == 3 else f"plus {odd[1]}"
    prompt = one_of(rng, RUN_ASKS).format(a=start, r=rule, t=bound)
    facts = ("run", pairs, odd, bound)
    return Problem("tiny_search", prompt, len(pairs), str(pairs[-1][1]), facts=facts)


RUN_ASKS = (
    "Start with {a}. If the value is even, take half; if it is odd, take it {r}. Stop when it is below {t}.",
    "Start with {a}. Even: take half. Odd: {r}. Go on until the value is below {t}.",
    "Take half of an even value, and an odd value {r}. Start with {a} and stop below {t}.",
)
RUN_FORMS = (
    "{a} -> {c}",
    "{a} is {p}, so {c}.",
    "({k}) {a} is {p}: {c}",
    "{a} is {p}, so {w} = {c}.",
    "({k}) {a} is {p}, and {w} = {c}, which is {y} {t}.",
    "({k}) the value {a} is {p}, so we take {w} = {c}, and that is {y} {t}.",
)


def _run_forms(problem: Problem) -> list[tuple[str, ...]]:
    _, pairs, (times, add), bound = problem.facts
    lines = []
    for k, (a, c) in enumerate(pairs, 1):
        odd = f"{a} * 3 + 1" if times == 3 else f"{a} + {add}"
        said = {
            "a": a,
            "c": c,
            "k": k,
            "t": bound,
            "p": "odd" if a % 2 else "even",
            "w": odd if a % 2 else f"{a} / 2",
        }
        said["y"] = "below" if c < bound else "not below"
        lines.append(tuple(form.format(**said) for form in RUN_FORMS))
    return lines


def _draw_range(rng: Random) -> Problem:
    while True:
        low = between(rng, 1, 60)
        high, of = low + between(rng, 20, 99), between(rng, 3, 12)
        name, fits = RANGE_RULES[int(rng.random() * len(RANGE_RULES))]
        digit = between(rng, 0, 9)
        hits = [n for n in range(low, high + 1) if n % of == 0 and fits(n, digit)]
        if len(hits) <= LONGEST:
            break
    rule = f"multiples of {of}{name.format(d=digit)}"
    prompt = one_of(rng, RANGE_ASKS).format(a=low, b=high, r=rule)
    return Problem(
        "tiny_search", prompt, len(hits), ", ".join(map(str, hits)) or "none", facts=("range", hits, of)
    )


RANGE_RULES: tuple[tuple[str, Callable[[int, int], bool]], ...] = (
    ("", lambda n, d: True),
    (" and odd", lambda n, d: n % 2 == 1),
    (" and even", lambda n, d: n % 2 == 0),
    (" and have the digit {d}", lambda n, d: str(d) in str(n)),
    (" without the digit {d}", lambda n, d: str(d) not in str(n)),
)
RANGE_ASKS = (
    "List all numbers from {a} to {b} that are {r}.",
    "Which numbers from {a} to {b} are {r}?",
    "Find the {r}, from {a} to {b}.",
)


def _range_forms(problem: Problem) -> list[tuple[str, ...]]:
    _, hits, of = problem.facts
    return [
        (
            f"{n}",
            f"({k}) {n}",
            f"{n} = {n // of} * {of}",
            f"({k}) {n} = {n // of} * {of}",
            f"{n} is {n // of} * {of}.",
            f"({k}) {n} is {n // of} * {of}.",
        )
        for k, n in enumerate(hits, 1)
    ]


TABLE_RULES: tuple[tuple[str, Callable[[int, int], bool]], ...] = (
    ("more than {x}", lambda n, x: n > x),
    ("less than {x}", lambda n, x: n < x),
    ("an odd number", lambda n, x: n % 2 == 1),
    ("an even number", lambda n, x: n % 2 == 0),
)
Table = list[tuple[str, int]]


def table(rng: Random, most: int = 10) -> tuple[str, Table]:
    """Who has how many of a thing."""
    names = different(rng, person, between(rng, 3, most))
    counts = rng.sample(range(2, 100), len(names))
    return thing(rng), list(zip(names, counts, strict=True))


def rule(rng: Random, entries: Table) -> tuple[str, Table]:
    """A condition in words, and the entries that fit; all kinds of counts, none and all included."""
    words, fits = TABLE_RULES[int(rng.random() * len(TABLE_RULES))]
    bound = between(rng, 10, 90)
    while any(count == bound for _, count in entries):
        bound = between(rng, 10, 90)
    return words.format(x=bound), [(name, count) for name, count in entries if fits(count, bound)]


def _draw_table(rng: Random) -> Problem:
    item, entries = table(rng)
    words, hits = rule(rng, entries)
    shown = ", ".join(
        f"{name} has {count}" if not k else f"{name} {count}" for k, (name, count) in enumerate(entries)
    )
    prompt = laid_out(rng, [f"{shown} {item}.", one_of(rng, TABLE_ASKS).format(r=words)])
    target = ", ".join(name for name, _ in hits) or "none"
    return Problem("tiny_search", prompt, len(hits), target, facts=("table", hits, words, item))


TABLE_ASKS = ("List all who have {r}.", "Who has {r}?", "Find everybody with {r}.")


def _table_forms(problem: Problem) -> list[tuple[str, ...]]:
    _, hits, words, item = problem.facts
    return [
        (
            name,
            f"({k}) {name}",
            f"{name} {count}",
            f"{name} has {count} {item}.",
            f"({k}) {name} has {count}, which is {words}.",
            f"({k}) {name} has {count} {item}, and that is {words}.",
        )
        for k, (name, count) in enumerate(hits, 1)
    ]


FORMS = {"run": _run_forms, "range": _range_forms, "table": _table_forms}
KINDS = ((0.42, _draw_run), (0.26, _draw_range), (0.32, _draw_table))


def draw(rng: Random) -> Problem:
    return KINDS[weighted(rng, [share for share, _ in KINDS])][1](rng)


def answer(problem: Problem, rng: Random) -> str:
    lines = FORMS[problem.facts[0]](problem)
    ends = [f"#### {problem.target}"] if problem.facts[0] == "run" else []
    if ends and rng.random() < TERSE:
        return ends[0]
    if not lines:
        return "none"
    if not ends and rng.random() < 0.3:
        return ", ".join(forms[0] for forms in lines)
    style = manner(rng)
    return "\n".join([*(forms[style.pick(rng)] for forms in lines), *ends])


def right(problem: Problem, text: str) -> bool:
    """Every unit once, in order, nothing else. Only a run may be answered by its last value alone."""
    lines = text.strip("\n").split("\n")
    allowed = FORMS[problem.facts[0]](problem)
    if problem.facts[0] == "run":
        if lines.pop() != f"#### {problem.target}":
            return False
        return not lines or _exactly(lines, allowed)
    if not allowed:
        return lines == ["none"]
    return _exactly(lines, allowed) or _exactly(text.strip("\n").split(", "), allowed)


def _exactly(units: Sequence[str], allowed: Sequence[Sequence[str]]) -> bool:
    return len(units) == len(allowed) and all(
        unit in forms for unit, forms in zip(units, allowed, strict=True)
    )


SEARCH = Task("tiny_search", draw, answer, is_code=False, right=right)
