"""`tiny_search`: answers whose length is not known before they are computed. An early end is wrong.

Three kinds: carry out a rule until a condition holds; list the numbers of a range that fit; list the entries of a
table that fit.
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

LONGEST = 14  # units of an answer


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


def _run_lines(pairs: list[tuple[int, int]], odd: tuple[int, int], bound: int) -> list[Forms]:
    lines = []
    for k, (a, c) in enumerate(pairs, 1):
        parity, work = "even", f"{a} / 2"
        if a % 2:
            parity, work = "odd", f"{a} * 3 + 1" if odd[0] == 3 else f"{a} + {odd[1]}"
        end = "below" if c < bound else "not below"
        lines.append(spelled(RUN_FORMS, a=a, c=c, k=k, t=bound, p=parity, w=work, y=end))
    return lines


def _draw_range(rng: Random) -> Problem:
    while True:
        low = between(rng, 1, 60)
        high, of = low + between(rng, 20, 99), between(rng, 3, 12)
        name, fits = one_of(rng, RANGE_RULES)
        digit = between(rng, 0, 9)
        hits = [n for n in range(low, high + 1) if n % of == 0 and fits(n, digit)]
        if len(hits) <= LONGEST:
            break
    rule = f"multiples of {of}{name.format(d=digit)}"
    prompt = one_of(rng, RANGE_ASKS).format(a=low, b=high, r=rule)
    target = ", ".join(map(str, hits)) or "none"
    return Problem("tiny_search", prompt, len(hits), target, facts=("range", hits, of))


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


RANGE_FORMS = (
    "{n}",
    "({k}) {n}",
    "{n} = {q} * {of}",
    "({k}) {n} = {q} * {of}",
    "{n} is {q} * {of}.",
    "({k}) {n} is {q} * {of}.",
)


def _range_lines(hits: list[int], of: int) -> list[Forms]:
    return [spelled(RANGE_FORMS, k=k, n=n, q=n // of, of=of) for k, n in enumerate(hits, 1)]


TABLE_RULES: tuple[tuple[str, Callable[[int, int], bool]], ...] = (
    ("more than {x}", lambda n, x: n > x),
    ("less than {x}", lambda n, x: n < x),
    ("an odd number", lambda n, x: n % 2 == 1),
    ("an even number", lambda n, x: n % 2 == 0),
)
Table = list[tuple[str, int]]


def table(rng: Random, most: int = 10) -> tuple[str, Table, str]:
    """A thing, who has how many of it, and that in words."""
    names = different(rng, person, between(rng, 3, most))
    counts = rng.sample(range(2, 100), len(names))
    item, entries = thing(rng), list(zip(names, counts, strict=True))
    (first, count), *others = entries
    listed = ", ".join([f"{first} has {count}", *(f"{name} {count}" for name, count in others)])
    return item, entries, f"{listed} {item}."


def rule(rng: Random, entries: Table) -> tuple[str, Table]:
    """A condition in words, and the entries that fit; all kinds of counts, none and all included."""
    words, fits = one_of(rng, TABLE_RULES)
    bound = between(rng, 10, 90)
    while any(count == bound for _, count in entries):
        bound = between(rng, 10, 90)
    return words.format(x=bound), [(name, count) for name, count in entries if fits(count, bound)]


def _draw_table(rng: Random) -> Problem:
    item, entries, shown = table(rng)
    words, hits = rule(rng, entries)
    prompt = laid_out(rng, [shown, one_of(rng, TABLE_ASKS).format(r=words)])
    target = ", ".join(name for name, _ in hits) or "none"
    return Problem("tiny_search", prompt, len(hits), target, facts=("table", hits, words, item))


TABLE_ASKS = ("List all who have {r}.", "Who has {r}?", "Find everybody with {r}.")
TABLE_FORMS = (
    "{n}",
    "({k}) {n}",
    "{n} {c}",
    "{n} has {c} {i}.",
    "({k}) {n} has {c}, which is {r}.",
    "({k}) {n} has {c} {i}, and that is {r}.",
)


def _table_lines(hits: Table, words: str, item: str) -> list[Forms]:
    return [spelled(TABLE_FORMS, k=k, n=name, c=c, r=words, i=item) for k, (name, c) in enumerate(hits, 1)]


LINES: dict[str, Callable[..., list[Forms]]] = {
    "run": _run_lines,
    "range": _range_lines,
    "table": _table_lines,
}
KINDS, SHARES = (_draw_run, _draw_range, _draw_table), (0.42, 0.26, 0.32)


def draw(rng: Random) -> Problem:
    return KINDS[weighted(rng, SHARES)](rng)


def answer(problem: Problem, rng: Random) -> str:
    kind, *facts = problem.facts
    lines = LINES[kind](*facts)
    if kind == "run":
        end = f"#### {problem.target}"
        return end if rng.random() < TERSE else Worked(lines, end).write(rng)
    if not lines:
        return "none"
    if rng.random() < 0.3:
        return ", ".join(forms[0] for forms in lines)
    return Worked(lines).write(rng)


def right(problem: Problem, text: str) -> bool:
    """Every unit once, in order, nothing else. Only a run may be answered by its last value alone."""
    kind, *facts = problem.facts
    allowed, lines = LINES[kind](*facts), text.strip("\n").split("\n")
    if kind == "run":
        return lines.pop() == f"#### {problem.target}" and (not lines or _exactly(lines, allowed))
    if not allowed:
        return lines == ["none"]
    return _exactly(lines, allowed) or _exactly(text.strip("\n").split(", "), allowed)


def _exactly(units: list[str], allowed: list[Forms]) -> bool:
    return len(units) == len(allowed) and all(map(tuple.__contains__, allowed, units))


SEARCH = Task("tiny_search", draw, answer, right)
