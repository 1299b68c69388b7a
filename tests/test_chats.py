"""Conversations in every format we read: roles, turns, and a named reason for all that is dropped."""

import json

import pytest

from voidpad.errors import ConfigError, DataError
from voidpad.training.chats import REASONS, Dropped, answers, conversation, field_map, read, records


def said(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def sharegpt(*texts):
    return [{"from": who, "value": text} for who, text in zip(("human", "gpt") * 2, texts, strict=False)]


SHORT = said(("user", "q"), ("assistant", "a"))
LONG = said(("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b"))


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        ({"messages": SHORT}, SHORT),
        ({"messages": LONG}, LONG),
        ({"prompt": "q", "response": "a"}, SHORT),
        ({"prompt": "q", "completion": "a", "messages": None}, SHORT),
        ({"instruction": "q", "output": "a"}, SHORT),
        ({"instruction": "q", "input": " ", "output": "a"}, SHORT),
        ({"instruction": "a", "input": "b", "output": "c"}, said(("user", "a\n\nb"), ("assistant", "c"))),
        ({"conversations": sharegpt("q", "a")}, SHORT),
        ({"conversations": sharegpt("q", "a", "r", "b"), "system": "s"}, LONG),
        ({"conversations": SHORT, "system": ""}, SHORT),
        ({"messages": said(("Human", "q"), ("MODEL", "a"))}, SHORT),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, SHORT[1]]}, SHORT),
    ],
)
def test_formats_are_recognised(record, messages):
    assert conversation(record) == messages


@pytest.mark.parametrize(
    ("reason", "record"),
    [
        ("no_answer", {"messages": said(("system", "s"), ("user", "q"))}),
        ("no_answer", {"messages": []}),
        ("role_order", {"messages": said(("assistant", "a"), ("user", "q"))}),
        ("role_order", {"messages": said(("user", "q"), ("user", "r"), ("assistant", "a"))}),
        ("role_order", {"messages": said(("user", "q"), ("assistant", "a"), ("assistant", "b"))}),
        ("role_order", {"messages": said(("user", "q"), ("system", "s"), ("assistant", "a"))}),
        ("tools", {"messages": said(("user", "q"), ("tool", "t"), ("assistant", "a"))}),
        ("tools", {"messages": [SHORT[0], {"role": "assistant", "tool_calls": [{"id": 1}]}]}),
        ("not_text", {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}, SHORT[1]]}),
        ("bad", {"messages": said(("user", "q"), ("narrator", "n"))}),
        ("bad", {"messages": [{"content": "q"}, SHORT[1]]}),
        ("bad", {"messages": said(("user", 3), ("assistant", "a"))}),
        ("bad", {"messages": [1, 2]}),
        ("bad", {"prompt": " ", "response": "a"}),
        ("bad", {"prompt": "\ud800", "response": "a"}),
        ("bad", {"text": "x"}),
        ("bad", "text"),
        ("bad", SHORT),
    ],
)
def test_what_cannot_be_learnt_has_a_reason(reason, record):
    with pytest.raises(Dropped) as caught:
        conversation(record)
    assert caught.value.reason == reason
    assert reason in REASONS


def test_turns_choose_the_answers():
    assert answers(LONG) == [4]
    assert answers(LONG, "every") == [2, 4]
    assert answers([*SHORT, {"role": "user", "content": "r"}]) == [1]  # nobody answered the end
    assert answers(SHORT, "single") == [1]
    with pytest.raises(Dropped, match="5 messages"):
        answers(LONG, "single")


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


def write_lines(path, conversations):
    """JSON lines; None is an empty one."""
    records = ["" if one is None else json.dumps({"messages": one}) for one in conversations]
    path.write_text("\n".join(records) + "\n")


def test_reading_a_file_stops_at_what_gives_no_example(tmp_path):
    path = tmp_path / "x.jsonl"
    write_lines(path, [SHORT, None, LONG, LONG[:2]])
    rows = read(path)
    assert [next(rows)[2] for _ in range(2)] == ["a", "b"]
    with pytest.raises(DataError, match=r"x\.jsonl:4: no assistant message \(roles: system, user\)"):
        next(rows)
    with pytest.raises(DataError, match="no such file"):
        next(read(tmp_path / "nowhere.jsonl"))


def found(path):
    return [(place.removeprefix(str(path)), conversation(record)) for place, record in records(path)]


def test_json_files_hold_lines_or_an_array(tmp_path):
    path, rows = tmp_path / "x.json", [{"messages": SHORT}, {"messages": LONG}]
    for text in (json.dumps(rows, indent=2), "\ufeff" + json.dumps(rows)):
        path.write_text(text)
        assert found(path) == [(" item 1", SHORT), (" item 2", LONG)]
    path.write_text("\ufeff" + "".join(json.dumps(row) + "\n\n" for row in rows))
    assert found(path) == [(":1", SHORT), (":3", LONG)]
