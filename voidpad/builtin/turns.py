"""`tiny_turns`: a second turn that refers to the first: one step more, an earlier value, the same as JSON, a list."""

import json
from random import Random
from typing import Any

from voidpad.builtin import notes, searches
from voidpad.builtin.numbers import EVENTS, STEPS, Step, step, step_lines
from voidpad.builtin.problems import Problem, Task, Worked, between, laid_out, one_of, spelled, weighted

SCHEMA = notes.object_of({"name": notes.STRING, "item": notes.STRING, "count": notes.INTEGER})
AFTER_FORMS = ("After ({k}) it was {c}.", "After ({k}) {n} had {c} {i}.", "{n} had {c} {i} after ({k}).")
MORE = ("And then:", "Go on.", "Now this happens.")


def _story(rng: Random) -> tuple[Problem, tuple[tuple[str, str], ...]]:
    """A word problem, and the first turn: its question and an answer."""
    while True:
        problem = STEPS.draw(rng)
        if problem.steps <= 4:
            return problem, ((problem.prompt, STEPS.answer(problem, rng)),)


def _draw_more(rng: Random) -> Problem:
    """More events of the same story; their numbers go on."""
    first, before = _story(rng)
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
    return Problem("tiny_turns", laid_out(rng, lines), len(added), str(value), before=before, facts=facts)


def _draw_back(rng: Random) -> Problem:
    """An earlier value of the story."""
    first, before = _story(rng)
    name, item, steps = first.facts
    k = between(rng, 1, len(steps))
    value = steps[k - 1][3]
    asks = ("What was it after ({k})?", "How many {i} were there after ({k})?")
    prompt, facts = one_of(rng, asks).format(k=k, i=item), ("back", name, item, value, k)
    return Problem("tiny_turns", prompt, 1, str(value), before=before, facts=facts)


def _draw_json(rng: Random) -> Problem:
    """The end of the story as JSON."""
    first, before = _story(rng)
    name, item, steps = first.facts
    value = {"name": name, "item": item, "count": steps[-1][3]}
    asked = one_of(rng, ("Write that as JSON.", "Now as JSON, please."))
    prompt, facts = f"{asked}\nSchema: {notes.written(SCHEMA)}", ("json", value)
    return Problem("tiny_turns", prompt, 1, json.dumps(value), before=before, schema=SCHEMA, facts=facts)


def _draw_list(rng: Random) -> Problem:
    """A table in the first turn, and another condition on it in the second."""
    item, entries, shown = searches.table(rng, most=7)
    words, hits = searches.rule(rng, entries)
    name, most = max(entries, key=lambda entry: entry[1])
    before = ((f"{shown}\nWho has the most?", f"{name} has the most, {most} {item}."),)
    prompt = one_of(rng, ("And who has {r}?", "Now list all who have {r}.")).format(r=words)
    target = ", ".join(name for name, _ in hits) or "none"
    facts = ("table", hits, words, item)
    return Problem("tiny_turns", prompt, len(hits), target, before=before, facts=facts)


KINDS, SHARES = (_draw_more, _draw_back, _draw_json, _draw_list), (0.35, 0.15, 0.2, 0.3)


def draw(rng: Random) -> Problem:
    return KINDS[weighted(rng, SHARES)](rng)


def _after_forms(name: str, item: str, value: Any, k: int) -> tuple[str, ...]:
    return spelled(AFTER_FORMS, n=name, i=item, c=value, k=k)


def answer(problem: Problem, rng: Random) -> str:
    kind, *facts = problem.facts
    if kind == "table":
        return searches.answer(problem, rng)
    if kind == "json":
        return json.dumps(facts[0], indent=2) if rng.random() < 0.35 else json.dumps(facts[0])
    end = f"#### {problem.target}"
    if kind == "more":
        return Worked(step_lines(*facts), end).write(rng)
    return f"{one_of(rng, _after_forms(*facts))}\n{end}" if rng.random() < 0.85 else end


def right(problem: Problem, text: str) -> bool:
    kind, *facts = problem.facts
    if kind == "table":
        return searches.right(problem, text)
    if kind == "json":
        return notes.right(problem, text)
    lines = step_lines(*facts) if kind == "more" else [_after_forms(*facts)]
    return Worked(lines, f"#### {problem.target}").is_true(text)


TURNS = Task("tiny_turns", draw, answer, right)
