"""Conversations in every format we read: roles, turns, and a named reason for all that is dropped."""

import json

import pytest

from voidpad.errors import ConfigError, DataError
from voidpad.training.chats import REASONS, Dropped, conversation, examples, field_map, read, records


def said(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


SHORT = said(("user", "q"), ("assistant", "a"))
LONG = said(("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b"))


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        ({"messages": SHORT}, SHORT),
        (SHORT, SHORT),
        ({"messages": LONG}, LONG),
        ({"prompt": "q", "response": "a"}, SHORT),
        ({"prompt": "q", "completion": "a", "messages": None}, SHORT),
        ({"instruction": "q", "output": "a"}, SHORT),
        ({"instruction": "q", "input": " ", "output": "a"}, SHORT),
        (
            {"instruction": "add", "input": "1 2", "output": "3"},
            said(("user", "add\n\n1 2"), ("assistant", "3")),
        ),
        ({"instruction": "r", "output": "b", "history": [["q", "a"]], "system": "s"}, LONG),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, SHORT),
        (
            {
                "system": "s",
                "conversations": [
                    {"from": who, "value": text}
                    for who, text in (("human", "q"), ("gpt", "a"), ("user", "r"), ("chatgpt", "b"))
                ],
            },
            LONG,
        ),
        ({"conversations": SHORT, "system": ""}, SHORT),
        ({"messages": said(("Human", "q"), ("MODEL", "a"))}, SHORT),
        ({"messages": {"role": ["user", "assistant"], "content": ["q", "a"]}}, SHORT),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, SHORT[1]]},
            SHORT,
        ),
    ],
)
def test_formats_are_recognised(record, messages):
    assert conversation(record) == messages


@pytest.mark.parametrize(
    ("record", "reason", "detail"),
    [
        ({"messages": said(("system", "s"), ("user", "q"))}, "no_answer", "roles: system, user"),
        ({"messages": said(("user", "q"))}, "no_answer", "roles: user"),
        ({"messages": []}, "no_answer", "roles: none"),
        ({"messages": said(("assistant", "a"), ("user", "q"))}, "role_order", "user was expected"),
        ({"messages": said(("user", "q"), ("user", "r"), ("assistant", "a"))}, "role_order", "message 2"),
        (
            {"messages": said(("user", "q"), ("assistant", "a"), ("assistant", "b"))},
            "role_order",
            "message 3 is of role assistant",
        ),
        ({"messages": said(("user", "q"), ("system", "s"), ("assistant", "a"))}, "role_order", "system"),
        ({"messages": said(("user", "q"), ("narrator", "n"))}, "bad", "role 'narrator' is unknown"),
        ({"messages": [{"content": "q"}, SHORT[1]]}, "bad", "role None"),
        ({"messages": said(("user", "q"), ("tool", "t"), ("assistant", "a"))}, "tools", r"messages\[1\]"),
        (
            {"messages": [SHORT[0], {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}]},
            "tools",
            r"messages\[1\]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}, SHORT[1]]},
            "not_text",
            "'image'",
        ),
        ({"messages": said(("user", 3), ("assistant", "a"))}, "bad", r"messages\[0\] has no text"),
        ({"prompt": " ", "response": "a"}, "bad", "empty prompt"),
        ({"prompt": "\ud800", "response": "a"}, "bad", "half a character"),
        ({"text": "x"}, "bad", "neither 'messages'"),
        ("text", "bad", "not an object"),
        ([1], "bad", "not an object"),
    ],
)
def test_what_cannot_be_learnt_has_a_reason(record, reason, detail):
    with pytest.raises(Dropped, match=detail) as caught:
        conversation(record)
    assert caught.value.reason == reason
    assert reason in REASONS


def test_turns_choose_the_examples():
    last, every = examples(LONG), examples(LONG, "every")
    assert [one.response for one in every] == ["a", "b"]
    assert [one.prompt for one in every] == [LONG[:2], LONG[:4]]
    assert last == every[1:]
    assert examples([*SHORT, {"role": "user", "content": "r"}]) == examples(SHORT)  # nobody answered the end
    assert examples(SHORT, "single") == examples(SHORT)
    with pytest.raises(Dropped, match="5 messages"):
        examples(LONG, "single")


def test_a_field_map_names_other_fields():
    assert (
        conversation({"question": "q", "answer": "a"}, field_map("prompt=question, response=answer")) == SHORT
    )
    names = field_map("messages=chat,role=speaker,content=text")
    record = {"chat": [{"speaker": "user", "text": "q"}, {"speaker": "assistant", "text": "a"}]}
    assert conversation(record, names) == SHORT
    both = {"prompt": "x", "response": "y", "q": "q", "a": "a"}
    assert conversation(both, field_map("prompt=q,response=a")) == SHORT
    with pytest.raises(Dropped, match=r"no field 'answer' \(--map\); it has 'question'"):
        conversation({"question": "q"}, field_map("prompt=question,response=answer"))
    for text in ("question", "colour=x", "prompt="):
        with pytest.raises(ConfigError, match="write NAME=FIELD"):
            field_map(text)
    with pytest.raises(ConfigError, match="name the field of messages"):
        field_map("prompt=question")


def test_reading_a_file_stops_at_what_gives_no_example(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(SHORT) + "\n" + json.dumps(LONG) + "\n" + json.dumps(LONG[:2]) + "\n")
    rows = read(path, turns="every")
    assert [next(rows)[1].response for _ in range(3)] == ["a", "a", "b"]
    with pytest.raises(DataError, match=r"x\.jsonl:3: no assistant message \(roles: system, user\)"):
        next(rows)
    with pytest.raises(DataError, match="No such file"):
        next(read(tmp_path / "nowhere.jsonl"))


def test_json_files_hold_lines_or_an_array(tmp_path):
    path = tmp_path / "x.json"
    rows = [{"messages": SHORT}, {"messages": LONG}]
    expected = [("x item 1", rows[0]), ("x item 2", rows[1])]
    path.write_text(json.dumps(rows, indent=2))
    assert list(records(path, "x")) == expected
    path.write_text("\ufeff" + json.dumps(rows))
    assert list(records(path, "x")) == expected
    path.write_text(json.dumps(SHORT))
    assert list(records(path, "x")) == [("x item 1", SHORT)]
    path.write_text("\ufeff" + "".join(json.dumps(row) + "\n" for row in rows))
    assert list(records(path, "x")) == [("x:1", rows[0]), ("x:2", rows[1])]
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(SHORT) + "\n" + json.dumps(LONG) + "\n")  # a bare conversation on each line
    assert list(records(path, "x")) == [("x:1", SHORT), ("x:2", LONG)]
    path.write_text("[\n{")
    with pytest.raises(DataError, match="x: not JSON"):
        list(records(path, "x"))
