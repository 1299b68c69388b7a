"""`tiny_turns`: a second turn that refers to the first: one step more, an earlier value, the same as JSON, a list."""

import json
from random import Random

from voidpad.builtin import notes, searches
from voidpad.builtin.numbers import EVENTS, STEP_FORMS, STEPS, Step, step
from voidpad.builtin.problems import (
    Problem,
    Task,
    between,
    in_order,
    laid_out,
    last_number,
    manner,
    one_of,
    weighted,
)

SCHEMA = '{"name": string, "item": string, "count": integer}'
AFTER_FORMS = ("After ({k}) it was {c}.", "After ({k}) {n} had {c} {i}.", "{n} had {c} {i} after ({k}).")
MORE = ("And then:", "Go on.", "Now this happens.")


def _first(rng: Random) -> tuple[Problem, str]:
    while True:
        problem = STEPS.draw(rng)
        if problem.steps <= 4:
            return problem, STEPS.answer(problem, rng)


def _draw_more(rng: Random) -> Problem:
    """More events of the same story; their numbers go on."""
    first, said = _first(rng)
    name, item, steps = first.facts
    value, added = steps[-1][3], list[Step]()
    for _ in range(1 + weighted(rng, (0.4, 0.35, 0.25))):
        added.append(step(rng, value))
        value = added[-1][3]
    lines = [one_of(rng, MORE)]
    for k, (_, op, operand, _) in enumerate(added, len(steps) + 1):
        lines.append(f"({k}) {one_of(rng, EVENTS[op]).format(n=name, o=name, b=operand)}.")
    lines.append(one_of(rng, ("How many {i} now?", "What is left now?")).format(i=item))
    facts = ("more", name, item, added, len(steps) + 1)
    prompt = laid_out(rng, lines)
    return Problem("tiny_turns", prompt, len(added), str(value), before=((first.prompt, said),), facts=facts)


def _draw_back(rng: Random) -> Problem:
    """An earlier value of the story."""
    first, said = _first(rng)
    name, item, steps = first.facts
    k = between(rng, 1, len(steps))
    prompt = one_of(rng, ("What was it after ({k})?", "How many {i} were there after ({k})?")).format(
        k=k, i=item
    )
    facts = ("back", name, item, steps[k - 1][3], k)
    return Problem("tiny_turns", prompt, 1, str(steps[k - 1][3]), before=((first.prompt, said),), facts=facts)


def _draw_json(rng: Random) -> Problem:
    first, said = _first(rng)
    name, item, steps = first.facts
    value = {"name": name, "item": item, "count": steps[-1][3]}
    prompt = f"{one_of(rng, ('Write that as JSON.', 'Now as JSON, please.'))}\nSchema: {SCHEMA}"
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "item": {"type": "string"}, "count": {"type": "integer"}},
        "required": list(value),
        "additionalProperties": False,
    }
    before = ((first.prompt, said),)
    return Problem(
        "tiny_turns", prompt, 1, json.dumps(value), before=before, schema=schema, facts=("json", value)
    )


def _draw_list(rng: Random) -> Problem:
    """A table in the first turn, and another condition on it in the second."""
    item, entries = searches.table(rng, most=7)
    words, hits = searches.rule(rng, entries)
    shown = ", ".join(
        f"{name} has {count}" if not k else f"{name} {count}" for k, (name, count) in enumerate(entries)
    )
    most = max(entries, key=lambda entry: entry[1])
    asked, told = f"{shown} {item}.\nWho has the most?", f"{most[0]} has the most, {most[1]} {item}."
    prompt = one_of(rng, ("And who has {r}?", "Now list all who have {r}.")).format(r=words)
    target = ", ".join(name for name, _ in hits) or "none"
    facts = ("table", hits, words, item)
    return Problem("tiny_turns", prompt, len(hits), target, before=((asked, told),), facts=facts)


KINDS = ((0.35, _draw_more), (0.15, _draw_back), (0.2, _draw_json), (0.3, _draw_list))


def draw(rng: Random) -> Problem:
    return KINDS[weighted(rng, [share for share, _ in KINDS])][1](rng)


def _more_lines(problem: Problem) -> list[list[str]]:
    _, name, item, added, start = problem.facts
    return [
        [form.format(k=k, a=a, op=op, b=b, c=c, n=name, i=item) for form in STEP_FORMS]
        for k, (a, op, b, c) in enumerate(added, start)
    ]


def answer(problem: Problem, rng: Random) -> str:
    kind = problem.facts[0]
    if kind == "table":
        return searches.answer(problem, rng)
    if kind == "json":
        value = problem.facts[1]
        return json.dumps(value, indent=2) if rng.random() < 0.35 else json.dumps(value)
    if kind == "back":
        _, name, item, value, k = problem.facts
        said = [one_of(rng, AFTER_FORMS).format(n=name, i=item, c=value, k=k)] if rng.random() < 0.85 else []
    else:
        style = manner(rng)
        said = [forms[style.pick(rng)] for forms in _more_lines(problem)]
    return "\n".join([*said, f"#### {problem.target}"])


def right(problem: Problem, text: str) -> bool:
    kind = problem.facts[0]
    if kind == "table":
        return searches.right(problem, text)
    if kind == "json":
        return notes.right(problem, text)
    *lines, last = text.strip("\n").split("\n")
    if kind == "back":
        _, name, item, value, k = problem.facts
        allowed = [frozenset(form.format(n=name, i=item, c=value, k=k) for form in AFTER_FORMS)]
    else:
        allowed = [frozenset(forms) for forms in _more_lines(problem)]
    return last_number(last) == problem.target and in_order(lines, allowed)


TURNS = Task("tiny_turns", draw, answer, is_code=False, right=right)
