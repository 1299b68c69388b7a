"""`tiny_json`: a note about people, things, dates and numbers, a schema, and the answer as JSON.

Fields come in any order, some are optional and missing, the note may say more than is asked, and `total` has to be
added up without room to write the sum down: that part is meant to be hard.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from voidpad.builtin.problems import Problem, Task, between, laid_out, one_of, weighted
from voidpad.builtin.words import different, made_up, person, place, thing

MONTHS: tuple[str, ...] = ("January", "February", "March", "April", "May", "June")
MONTHS += ("July", "August", "September", "October", "November", "December")
DATE = {"type": "string", "format": "date"}
Schema = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """A key of the answer: how its type is written in the prompt, what the note says, and the value."""

    key: str
    written: str
    schema: Schema
    value: Any
    said: str


def _integer(key: str, value: int, said: str) -> Field:
    return Field(key, "integer", {"type": "integer"}, value, said)


def _string(key: str, value: str, said: str) -> Field:
    return Field(key, "string", {"type": "string"}, value, said)


def _choice(key: str, options: tuple[str, ...], value: str, said: str) -> Field:
    written = "|".join(f'"{option}"' for option in options)
    return Field(key, written, {"enum": list(options)}, value, said)


def _object(properties: dict[str, Schema]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _age(rng: Random, who: str) -> Field:
    age = between(rng, 10, 99)
    return _integer(
        "age", age, one_of(rng, ("{n} is {v} years old.", "{n} is now {v}.")).format(n=who, v=age)
    )


def _city(rng: Random, who: str) -> Field:
    city = place(rng)
    return _string("city", city, one_of(rng, ("{n} lives in {v}.", "{n} is from {v}.")).format(n=who, v=city))


def _date(rng: Random) -> tuple[str, str]:
    """A date as JSON has it, and as the note says it."""
    # Up to the 28th: every month has one.
    year, month, day = between(rng, 2010, 2029), between(rng, 1, 12), between(rng, 1, 28)
    name = MONTHS[month - 1]
    said = one_of(rng, (f"{name} {day}, {year}", f"{day} {name} {year}"))
    return f"{year}-{month:02}-{day:02}", said


def _joined(rng: Random, who: str) -> Field:
    date, said = _date(rng)
    return Field("joined", "date", DATE, date, f"{who} joined on {said}.")


def _member(rng: Random, who: str) -> Field:
    value = rng.random() < 0.5
    said = f"{who} is a member." if value else f"{who} is not a member."
    return Field("member", "boolean", {"type": "boolean"}, value, said)


def _plan(rng: Random, who: str) -> Field:
    value = one_of(rng, PLANS)
    return _choice("plan", PLANS, value, f"{who} has the {value} plan.")


PLANS, PETS, STATES = ("free", "basic", "full"), ("cat", "dog", "bird"), ("open", "paid", "sent")


def _pet(rng: Random, who: str) -> Field:
    kind, name = one_of(rng, PETS), person(rng)
    schema = _object({"kind": {"enum": list(PETS)}, "name": {"type": "string"}})
    written = '{"kind": "cat"|"dog"|"bird", "name": string}'
    return Field("pet", written, schema, {"kind": kind, "name": name}, f"{who} has a {kind} called {name}.")


def _friends(rng: Random, who: str) -> Field:
    names = different(rng, person, 1 + weighted(rng, (0.3, 0.3, 0.25, 0.15)))
    schema = {"type": "array", "items": {"type": "string"}}
    return Field("friends", "[string]", schema, names, f"{who} knows {_listed(names)}.")


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _orders(rng: Random, who: str) -> tuple[Field, Field]:
    """What somebody bought, and how much that is together."""
    things = different(rng, thing, 1 + weighted(rng, (0.2, 0.35, 0.3, 0.15)))
    counts = [between(rng, 2, 60) for _ in things]
    bought = [{"item": item, "count": count} for item, count in zip(things, counts, strict=True)]
    listed = _listed([f"{count} {item}" for item, count in zip(things, counts, strict=True)])
    item = _object({"item": {"type": "string"}, "count": {"type": "integer"}})
    orders = Field(
        "orders",
        '[{"item": string, "count": integer}]',
        {"type": "array", "items": item},
        bought,
        f"{who} bought {listed}.",
    )
    return orders, _integer("total", sum(counts), "")


PERSON: tuple[Callable[[Random, str], Field], ...] = (_age, _city, _joined, _member, _plan, _pet, _friends)


def _about_person(rng: Random) -> list[Field]:
    who = person(rng)
    fields = [_string("name", who, "")]
    makers = list(PERSON)
    for _ in range(1 + weighted(rng, (0.3, 0.4, 0.3))):
        fields.append(makers.pop(int(rng.random() * len(makers)))(rng, who))
    if rng.random() < 0.6:
        orders, total = _orders(rng, who)
        fields.append(orders)
        if rng.random() < 0.6:
            fields.append(total)
    return fields


def _about_event(rng: Random) -> list[Field]:
    title, where = made_up(rng).capitalize(), place(rng)
    date, said = _date(rng)
    status = one_of(rng, STATES)
    fields = [
        _string("title", title, ""),
        _string("city", where, f"The {title} is in {where}."),
        Field("date", "date", DATE, date, f"The {title} is on {said}."),
        _choice("status", STATES, status, f"The bill of the {title} is {status}."),
        _integer("price", price := between(rng, 5, 99), f"A ticket of the {title} costs {price}."),
    ]
    fields = [fields[0], *rng.sample(fields[1:], 1 + weighted(rng, (0.3, 0.4, 0.3)))]
    if rng.random() < 0.6:
        names = different(rng, person, 1 + weighted(rng, (0.25, 0.4, 0.35)))
        ages = [between(rng, 10, 99) for _ in names]
        guests = [{"name": name, "age": age} for name, age in zip(names, ages, strict=True)]
        item = _object({"name": {"type": "string"}, "age": {"type": "integer"}})
        written = '[{"name": string, "age": integer}]'
        listed = _listed([f"{name} ({age})" for name, age in zip(names, ages, strict=True)])
        fields.append(
            Field("guests", written, {"type": "array", "items": item}, guests, f"The guests are {listed}.")
        )
    return fields


ASKS = ("Write the note as JSON.", "Give the facts of the note as JSON.", "Fill in the schema from the note.")
MAY_BE_MISSING = {"age", "city", "joined", "plan", "pet", "price", "date", "status", "member"}


def draw(rng: Random) -> Problem:
    """A note and its schema. The test of a field's absence is that the note says nothing of it."""
    fields = _about_person(rng) if rng.random() < 0.65 else _about_event(rng)
    head, rest = fields[0], fields[1:]
    said = [field.said for field in rest if field.said]
    rng.shuffle(rest)
    asked, value, required = [head], {head.key: head.value}, [head.key]
    dropped = ""
    if len(rest) > 2 and rng.random() < 0.2:  # said, but not asked for
        dropped = next((field.key for field in rest if field.key in MAY_BE_MISSING), "")
    written = [f'"{head.key}": {head.written}']
    for field in rest:
        if field.key == dropped:
            continue
        asked.append(field)
        optional = field.key in MAY_BE_MISSING and rng.random() < 0.4
        written.append(f'"{field.key}"{"?" if optional else ""}: {field.written}')
        if optional and len(said) > 1 and rng.random() < 0.5:
            said.remove(field.said)
            continue
        value[field.key] = field.value
        if not optional:
            required.append(field.key)
    rng.shuffle(said)
    lines = [one_of(rng, ASKS), f"Note: {' '.join(said)}", f"Schema: {{{', '.join(written)}}}"]
    prompt = laid_out(rng, lines)
    schema = _object({field.key: field.schema for field in asked}) | {"required": required}
    return Problem("tiny_json", prompt, len(asked), json.dumps(value), schema=schema, facts=value)


def answer(problem: Problem, rng: Random) -> str:
    """On one line, or indented, or without spaces."""
    style = weighted(rng, (0.5, 0.35, 0.15))
    if style == 1:
        return json.dumps(problem.facts, indent=2)
    return json.dumps(problem.facts, separators=(",", ":") if style else None)


def right(problem: Problem, text: str) -> bool:
    """Equal values; the order of keys and the spaces do not matter."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return json.dumps(found, sort_keys=True) == json.dumps(json.loads(problem.target), sort_keys=True)


JSON = Task("tiny_json", draw, answer, is_code=False, right=right)
