"""`tiny_json`: a note about people, things, dates and numbers, a schema, and the answer as JSON.

Fields come in any order, some are optional and missing, the note may say more than is asked, and `total` has to be
added up without room to write the sum down: that part is meant to be hard.
"""

import json
from collections.abc import Callable, Collection
from random import Random
from typing import Any, NamedTuple

from voidpad.builtin.problems import Problem, Task, between, laid_out, one_of, weighted
from voidpad.builtin.words import different, made_up, person, place, thing

MONTHS: tuple[str, ...] = ("January", "February", "March", "April", "May", "June")
MONTHS += ("July", "August", "September", "October", "November", "December")
Schema = dict[str, Any]

# JSON Schemas, and how a question writes them.
STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
DATE = {"type": "string", "format": "date"}
PLAN, PET, STATUS = (
    {"enum": options}
    for options in (["free", "basic", "full"], ["cat", "dog", "bird"], ["open", "paid", "sent"])
)


def array_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def object_of(properties: dict[str, Schema], optional: Collection[str] = ()) -> Schema:
    required = [key for key in properties if key not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def written(schema: Schema) -> str:
    """A schema as the prompts have it: `{"name": string, "age"?: integer}`."""
    if "enum" in schema:
        return "|".join(f'"{option}"' for option in schema["enum"])
    if schema["type"] == "array":
        return f"[{written(schema['items'])}]"
    if schema["type"] != "object":
        return str(schema.get("format", schema["type"]))
    marks = {key: "" if key in schema["required"] else "?" for key in schema["properties"]}
    parts = [f'"{key}"{marks[key]}: {written(part)}' for key, part in schema["properties"].items()]
    return f"{{{', '.join(parts)}}}"


class Field(NamedTuple):
    """A key of the answer, its value, and what the note says of it."""

    key: str
    schema: Schema
    value: Any
    said: str


def _age(rng: Random, who: str) -> Field:
    age = between(rng, 10, 99)
    return Field("age", INTEGER, age, one_of(rng, (f"{who} is {age} years old.", f"{who} is now {age}.")))


def _city(rng: Random, who: str) -> Field:
    city = place(rng)
    return Field("city", STRING, city, one_of(rng, (f"{who} lives in {city}.", f"{who} is from {city}.")))


def _date(rng: Random) -> tuple[str, str]:
    """A date as JSON has it, and as the note says it."""
    # Up to the 28th: every month has one.
    year, month, day = between(rng, 2010, 2029), between(rng, 1, 12), between(rng, 1, 28)
    name = MONTHS[month - 1]
    said = one_of(rng, (f"{name} {day}, {year}", f"{day} {name} {year}"))
    return f"{year}-{month:02}-{day:02}", said


def _joined(rng: Random, who: str) -> Field:
    date, said = _date(rng)
    return Field("joined", DATE, date, f"{who} joined on {said}.")


def _member(rng: Random, who: str) -> Field:
    value = rng.random() < 0.5
    return Field("member", BOOLEAN, value, f"{who} is a member." if value else f"{who} is not a member.")


def _plan(rng: Random, who: str) -> Field:
    value = one_of(rng, PLAN["enum"])
    return Field("plan", PLAN, value, f"{who} has the {value} plan.")


def _pet(rng: Random, who: str) -> Field:
    value = {"kind": one_of(rng, PET["enum"]), "name": person(rng)}
    said = f"{who} has a {value['kind']} called {value['name']}."
    return Field("pet", object_of({"kind": PET, "name": STRING}), value, said)


def _friends(rng: Random, who: str) -> Field:
    names = different(rng, person, 1 + weighted(rng, (0.3, 0.3, 0.25, 0.15)))
    return Field("friends", array_of(STRING), names, f"{who} knows {_listed(names)}.")


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


PERSON: tuple[Callable[[Random, str], Field], ...] = (_age, _city, _joined, _member, _plan, _pet, _friends)


def _about_person(rng: Random) -> list[Field]:
    who = person(rng)
    fields = [Field("name", STRING, who, "")]
    makers = list(PERSON)
    for _ in range(1 + weighted(rng, (0.3, 0.4, 0.3))):
        fields.append(makers.pop(int(rng.random() * len(makers)))(rng, who))
    if rng.random() < 0.6:
        things = different(rng, thing, 1 + weighted(rng, (0.2, 0.35, 0.3, 0.15)))
        bought = [{"item": item, "count": between(rng, 2, 60)} for item in things]
        said = _listed([f"{one['count']} {one['item']}" for one in bought])
        orders = array_of(object_of({"item": STRING, "count": INTEGER}))
        fields.append(Field("orders", orders, bought, f"{who} bought {said}."))
        if rng.random() < 0.6:
            fields.append(Field("total", INTEGER, sum(one["count"] for one in bought), ""))
    return fields


def _about_event(rng: Random) -> list[Field]:
    title, where = made_up(rng).capitalize(), place(rng)
    date, said = _date(rng)
    status, price = one_of(rng, STATUS["enum"]), between(rng, 5, 99)
    known = [
        Field("city", STRING, where, f"The {title} is in {where}."),
        Field("date", DATE, date, f"The {title} is on {said}."),
        Field("status", STATUS, status, f"The bill of the {title} is {status}."),
        Field("price", INTEGER, price, f"A ticket of the {title} costs {price}."),
    ]
    fields = [Field("title", STRING, title, ""), *rng.sample(known, 1 + weighted(rng, (0.3, 0.4, 0.3)))]
    if rng.random() < 0.6:
        names = different(rng, person, 1 + weighted(rng, (0.25, 0.4, 0.35)))
        guests = [{"name": name, "age": between(rng, 10, 99)} for name in names]
        listed = _listed([f"{one['name']} ({one['age']})" for one in guests])
        schema = array_of(object_of({"name": STRING, "age": INTEGER}))
        fields.append(Field("guests", schema, guests, f"The guests are {listed}."))
    return fields


ASKS = ("Write the note as JSON.", "Give the facts of the note as JSON.", "Fill in the schema from the note.")
MAY_BE_MISSING = {"age", "city", "joined", "plan", "pet", "price", "date", "status", "member"}


def draw(rng: Random) -> Problem:
    """A note and its schema. The test of a field's absence is that the note says nothing of it."""
    head, *rest = _about_person(rng) if rng.random() < 0.65 else _about_event(rng)
    said = [field.said for field in rest if field.said]
    rng.shuffle(rest)
    if len(rest) > 2 and rng.random() < 0.2:  # one that is said, but not asked for
        unasked = next((field for field in rest if field.key in MAY_BE_MISSING), None)
        rest = [field for field in rest if field is not unasked]
    value, optional = {head.key: head.value}, set()
    for field in rest:
        if field.key in MAY_BE_MISSING and rng.random() < 0.4:
            optional.add(field.key)
            if len(said) > 1 and rng.random() < 0.5:
                said.remove(field.said)
                continue
        value[field.key] = field.value
    rng.shuffle(said)
    schema = object_of({field.key: field.schema for field in (head, *rest)}, optional)
    prompt = laid_out(rng, [one_of(rng, ASKS), f"Note: {' '.join(said)}", f"Schema: {written(schema)}"])
    return Problem("tiny_json", prompt, 1 + len(rest), json.dumps(value), schema=schema, facts=value)


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


JSON = Task("tiny_json", draw, answer, right)
