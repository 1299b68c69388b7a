"""Structured output over HTTP with the real openai client: schemas, choices, expressions, tools, and refusals."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import openai
import pytest
import torch
from pydantic import BaseModel, Field

from serving import serving
from voidpad.constrain.compile import compile_constraint
from voidpad.models import random_model


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)
    kind: Literal["friend", "guest"]


@pytest.fixture(scope="module")
def client():
    model = random_model("llada", vocab=140, context=1024, seed=5)
    with torch.no_grad():
        model.net.lm_head.weight[[model.roles.eos, model.roles.void]] *= 2
    fields = {"canvas": 256, "block": 32, "threshold": 0.3}
    with serving(model, plan="void", fields=fields, name="mine") as running:
        yield running.client


MESSAGES = [{"role": "user", "content": "Who comes?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "invite",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Oslo", "Rome"]},
                "seats": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "seats"],
        },
    },
}


def ask(client, **fields):
    return client.chat.completions.create(model="mine", messages=MESSAGES, seed=0, **fields)


def test_the_client_gets_a_parsed_object(client):
    reply = client.chat.completions.parse(model="mine", messages=MESSAGES, seed=1, response_format=Person)
    [choice] = reply.choices
    assert isinstance(choice.message.parsed, Person)
    assert choice.finish_reason == "stop"
    report = choice.model_extra["voidpad"]["constraint"]
    assert report["matched"] is True
    assert report["states"] > 0


def test_a_response_of_a_schema_is_parsed(client):
    reply = client.responses.parse(model="mine", input="Who comes?", text_format=Person)
    assert isinstance(reply.output_parsed, Person)


def test_a_streamed_object_is_the_unstreamed_one(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}
    whole = ask(client, response_format=form).choices[0].message.content
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in ask(client, response_format=form, stream=True)
        if chunk.choices
    ]
    assert "".join(pieces) == whole
    Person.model_validate_json(whole)


def test_any_object_choices_and_expressions(client):
    text = ask(client, response_format={"type": "json_object"}, max_tokens=128).choices[0].message.content
    assert isinstance(json.loads(text), dict)

    def wanted(**outputs):
        return ask(client, extra_body={"structured_outputs": outputs}).choices[0].message.content

    assert wanted(choice=["yes", "no", "perhaps"]) in ("yes", "no", "perhaps")
    assert re.fullmatch(r"[0-9]{2}-[a-f]+", wanted(regex=r"[0-9]{2}-[a-f]+"))
    assert json.loads(
        wanted(json={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3})
    )
    plain = client.completions.create(
        model="mine", prompt="a", extra_body={"structured_outputs": {"choice": ["b"]}}, seed=0
    )
    assert plain.choices[0].text == "b"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "invite"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called(client, choice, stream):
    reply = ask(client, tools=[TOOL], tool_choice=choice, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in reply]
        [call] = [one for chunk in chunks for one in chunk.delta.tool_calls or []]
        reason = chunks[-1].finish_reason
    else:
        [call], reason = reply.choices[0].message.tool_calls, reply.choices[0].finish_reason
        assert reply.choices[0].message.content is None
    assert reason == "tool_calls"
    assert call.function.name == "invite"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Oslo", "Rome")
    assert 1 <= arguments["seats"] <= 9


def test_a_tool_loop_is_refused_in_words(client):
    """Both turns that the client sends after a call: its own copy of the message, and the result."""
    called = ask(client, tools=[TOOL], tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "done"}
    for turn in (called.model_dump(exclude_none=True), called.model_dump(), result):
        with pytest.raises(openai.BadRequestError, match="role tool are not supported"):
            client.chat.completions.create(model="mine", messages=[*MESSAGES, turn])


def form(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


BOOLEAN = form({"type": "boolean"})


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        (form({"type": "object", "patternProperties": {}}), "response_format", "patternProperties"),
        (form({"type": "integer", "multipleOf": 3}), "response_format", "multipleOf"),
        ({"extra_body": {"structured_outputs": {"regex": "(?=a)b"}}}, "structured_outputs", None),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "structured_outputs", None),
        ({"tools": [TOOL]}, "tool_choice", None),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "no"}}}, "tool_choice", None),
        ({**form({"const": "x" * 50}), "max_tokens": 8}, "max_tokens", None),
        ({**BOOLEAN, "extra_body": {"voidpad": {"plan": "daedal"}}}, "response_format", None),
        ({**BOOLEAN, "extra_body": {"structured_outputs": {"choice": ["b"]}}}, "response_format", None),
    ],
)
def test_what_cannot_be_honoured_is_a_400_that_names_it(client, fields, param, code):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **fields)
    assert refused.value.param == param, refused.value
    if code:
        assert code in refused.value.message


def nested(depth):
    schema = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE = {
    "huge bounds": {"type": "array", "items": {"type": "string", "maxLength": 10**9}, "maxItems": 10**9},
    "deep": nested(400),
    "alternations": {"type": "string", "pattern": "(a|b|ab|ba){0,400}" * 20},
    "references": {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
}


def test_hostile_schemas_are_refused_while_others_are_answered(client, monkeypatch):
    """The worker is killed after its time, here two seconds (its memory: test_constrain_compile.py)."""
    monkeypatch.setitem(compile_constraint.__kwdefaults__, "seconds", 2.0)

    def attack(schema):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, **form(schema), max_tokens=16)
        return refused.value.param

    with ThreadPoolExecutor(len(HOSTILE)) as attackers:
        attacks = [attackers.submit(attack, schema) for schema in HOSTILE.values()]
        assert ask(client, max_tokens=4).choices[0].message.content is not None
        assert {one.result(600) for one in attacks} == {"response_format"}
