"""The text of an answer while it is written: what is sent is never taken back and adds up to the whole."""

import asyncio
import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from voidpad.decode.plan import Plan
from voidpad.models import random_model
from voidpad.serve.answer_text import AnswerText, TextRules, text_rules
from voidpad.serve.live import LiveRequest
from voidpad.serve.logprobs import TokenLogprob
from voidpad.serve.protocol import ChatBody
from voidpad.serve.responses import LiveResponse, ResponsesBody

END, PAD = 256, 257
# A token is a byte, so characters are cut anywhere: decoding half of one gives U+FFFD.
BYTES = TextRules(lambda ids: bytes(ids).decode("utf-8", "replace"), frozenset({END}), frozenset({END, PAD}))
JOINED = replace(BYTES, joins=True)
TEXTS = st.text(alphabet="ab. é→🙂\n", max_size=24)


def pieces(data, tokens):
    """The tokens cut into pieces anywhere."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    return [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]


def fed(parts, rules=BYTES, **fields):
    """The deltas of an answer whose tokens arrive in pieces, and the answer."""
    answer, deltas = AnswerText(rules, **fields), []
    for part in parts:
        answer.feed(part)
        deltas.append(answer.take())
    answer.end()
    return [*deltas, answer.take()], answer


def first_stop(text, stops):
    """Where the first stop string begins that is complete when the text is read character by character."""
    for read in range(1, len(text) + 1):
        complete = [len(stop) for stop in stops if text[:read].endswith(stop)]
        if complete:
            return read - max(complete)
    return None


@settings(max_examples=300, deadline=None)
@given(
    st.data(), TEXTS, st.lists(st.text(alphabet="ab. é", min_size=1, max_size=3), max_size=3), st.booleans()
)
def test_pieces_add_up_to_the_whole_whatever_the_pieces(data, text, stops, ended):
    tokens = [*text.encode(), *([END, *b"more"] if ended else [])]
    parts, stops = pieces(data, tokens), tuple(stops)
    deltas, answer = fed(parts, stops=stops)
    whole, alone = fed([tokens], stops=stops)
    assert fed(parts, JOINED, stops=stops)[0] == deltas
    assert "".join(deltas) == answer.text == "".join(whole)
    assert answer.finish_reason == alone.finish_reason
    cut = first_stop(text, stops)
    assert answer.text == text[:cut]
    assert answer.finish_reason == ("stop" if cut is not None or ended else "length")


@settings(max_examples=100, deadline=None)
@given(st.data(), TEXTS, st.integers(1, 12))
def test_an_answer_is_cut_to_the_tokens_asked_for(data, text, limit):
    tokens = list(text.encode())
    deltas, answer = fed(pieces(data, tokens), limit=limit)
    assert answer.ids == tokens[:limit]
    assert "".join(deltas) == answer.text == BYTES.decode(tokens[:limit])
    assert answer.finish_reason == "length"


@cache
def real_rules(kind):
    """The rules of a tokenizer whose tokens are characters or bytes, and its ids."""
    model = random_model("llada")
    if kind == "bytes":
        backend = Tokenizer(BPE({letter: id for id, letter in enumerate(sorted(ByteLevel.alphabet()))}, []))
        backend.decoder = decoders.ByteLevel()
        model = replace(model, tokenizer=PreTrainedTokenizerFast(tokenizer_object=backend))
    rules = text_rules(model)
    return rules, [id for id in range(len(model.tokenizer)) if id not in rules.ends]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(["characters", "bytes"]))
def test_the_texts_of_real_tokenizers_join(data, kind):
    rules, ids = real_rules(kind)
    assert rules.joins
    tokens = data.draw(st.lists(st.sampled_from(ids), max_size=24))
    deltas, answer = fed(pieces(data, tokens), rules)
    wanted = rules.decode([token for token in tokens if token not in rules.dropped])
    assert "".join(deltas) == answer.text == wanted


ARROW = list("→".encode())


@pytest.mark.parametrize(
    ("parts", "fields", "deltas", "reason"),
    [
        ([[*b"ab", END]], {"limit": 2}, ["ab", ""], "stop"),  # an end right after the last token asked for
        ([b".", b"aa"], {"stops": ("a", ".aa")}, ["", ".", ""], "stop"),  # the one that is complete first
        (
            [ARROW[:1], [*ARROW[1:], *b"x##"], b"y", b"###z"],
            {"stops": ("###",)},
            ["", "→x", "##y", "", ""],
            "stop",
        ),
        ([[PAD, *b"a", END]], {}, ["a", ""], "stop"),  # a token without text
    ],
)
def test_what_waits_and_what_ends_an_answer(parts, fields, deltas, reason):
    found, answer = fed(parts, **fields)
    assert (found, answer.finish_reason) == (deltas, reason)


def test_where_texts_join_each_token_is_decoded_once():
    decoded = []
    rules = replace(JOINED, decode=lambda ids: decoded.extend(ids) or BYTES.decode(ids))
    assert fed([b"a", ARROW[:1], ARROW[1:], b"b"], rules)[0] == ["a", "", "→", "b", ""]
    assert decoded == [*b"a", *ARROW[:1], *ARROW, *b"b"]


def test_logprobs_stay_beside_their_tokens():
    answer = AnswerText(BYTES, limit=2)
    answer.feed(list(b"abc"), [TokenLogprob(token, -float(token)) for token in b"abc"])
    assert [one.id for one in answer.logprobs] == answer.ids == list(b"ab")


async def events_during_which_the_engine_goes_on(live, first):
    """The JSON of all events, and what follows the last; text comes after `first` events and while one is sent."""
    [choice], stream = live.choices, live.events()
    found = [await anext(stream) for _ in range(first)]
    choice.feed(b"sum ")
    live.changed.set()
    found.append(await anext(stream))  # "sum "; the rest comes before the stream is asked to go on
    choice.feed([*b"is 4", END])
    live.records.append((0, {"record": "end"}))
    choice.report = {"passes_decode": 3}
    live.changed.set()
    found += [piece async for piece in stream]
    events = [event.partition(b"data: ")[2] for event in b"".join(found).split(b"\n\n")]
    return [json.loads(event) for event in events if event.startswith(b"{")], events[-2:]


SERVED = SimpleNamespace(rules=BYTES, name="m", fingerprint="vp_0")


def test_a_stream_ends_only_after_all_text_that_came_while_it_was_sent():
    body = ChatBody(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
    live = LiveRequest(body, SERVED, "void", Plan(), 0, [[1]])
    found, ended = asyncio.run(events_during_which_the_engine_goes_on(live, 1))
    assert ended == [b"[DONE]", b""]
    choices = [chunk["choices"][0] for chunk in found if chunk["choices"]]
    assert [choice["delta"].get("content", "") for choice in choices] == ["", "sum ", "is 4", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert [chunk["voidpad"]["record"] for chunk in found if not chunk["choices"]] == ["end"]


def test_the_events_of_a_response_hold_all_text_that_came_while_they_were_sent():
    live = LiveResponse(ResponsesBody(model="m", input="x", stream=True), SERVED, "void", Plan(), 0, [[1]])
    found, _ = asyncio.run(events_during_which_the_engine_goes_on(live, 4))
    assert [one["delta"] for one in found if one["type"] == "response.output_text.delta"] == ["sum ", "is 4"]
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "sum is 4"
