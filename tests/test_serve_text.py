"""The text of an answer while it is written: what is sent is never taken back and adds up to the whole."""

import asyncio
import json
from dataclasses import replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from voidpad.decode.plan import Plan
from voidpad.models import random_model
from voidpad.serve.answer_text import Choice, TextRules, TokenLogprob
from voidpad.serve.app import _events
from voidpad.serve.engine_thread import LiveRequest, text_rules
from voidpad.serve.replies import ReplyWriter
from voidpad.serve.requests import GenerationRequest

END, PAD = 256, 257
# A token is a byte, so characters are cut anywhere: decoding half of one gives U+FFFD.
BYTES = TextRules(lambda ids: bytes(ids).decode("utf-8", "replace"), frozenset({END}), frozenset({END, PAD}))
JOINED = replace(BYTES, joins=True)
TEXTS = st.text(alphabet="ab. é→🙂\n", max_size=24)


def fed(tokens, cuts, rules=BYTES, **fields):
    """The deltas of an answer whose tokens arrive in pieces, and the choice."""
    choice, deltas = Choice(rules, **fields), []
    pieces = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    for piece in pieces:
        choice.feed(piece)
        deltas.append(choice.take())
    choice.end()
    return [*deltas, choice.take()], choice


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
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    deltas, choice = fed(tokens, cuts, stops=tuple(stops))
    whole, alone = fed(tokens, [], stops=tuple(stops))
    assert fed(tokens, cuts, JOINED, stops=tuple(stops))[0] == deltas
    assert "".join(deltas) == choice.text == "".join(whole)
    assert choice.finish_reason == alone.finish_reason
    cut = first_stop(text, stops)
    assert choice.text == text[:cut]
    assert choice.finish_reason == ("stop" if cut is not None or ended else "length")


def test_of_two_stop_strings_the_one_that_is_complete_first_counts():
    for cuts in ([], [2]):
        assert fed(list(b".aa"), cuts, stops=("a", ".aa"))[1].text == "."


@settings(max_examples=100, deadline=None)
@given(st.data(), TEXTS, st.integers(1, 12))
def test_an_answer_is_cut_to_the_tokens_asked_for(data, text, limit):
    tokens = list(text.encode())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    deltas, choice = fed(tokens, cuts, limit=limit)
    assert choice.ids == tokens[:limit]
    assert "".join(deltas) == choice.text == BYTES.decode(tokens[:limit])
    assert choice.finish_reason == "length"


def test_an_end_right_after_the_last_token_asked_for_is_a_stop():
    choice = Choice(BYTES, limit=2)
    choice.feed([*b"ab", END])
    assert (choice.text, choice.finish_reason) == ("ab", "stop")


def test_where_texts_join_each_token_is_decoded_once():
    decoded = []

    def decode(ids):
        decoded.extend(ids)
        return BYTES.decode(ids)

    deltas, choice = fed(list("a→b".encode()), [1, 2, 3, 4], replace(JOINED, decode=decode))
    assert (deltas, choice.text) == (["a", "", "", "→", "b", ""], "a→b")
    arrow = list("→".encode())
    assert decoded == [*b"a", *arrow[:1], *arrow[:2], *arrow, *b"b"]


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
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    deltas, choice = fed(tokens, cuts, rules)
    wanted = rules.decode([token for token in tokens if token not in rules.dropped])
    assert "".join(deltas) == choice.text == wanted


def test_half_a_character_and_half_a_stop_string_wait():
    choice = Choice(BYTES, stops=("###",))
    choice.feed(list("é".encode())[:1])
    assert choice.take() == ""
    choice.feed([*list("é".encode())[1:], *b"x##"])
    assert choice.take() == "éx"
    choice.feed(list(b"y"))
    assert choice.take() == "##y"
    choice.feed(list(b"###z"))
    assert (choice.take(), choice.finish_reason) == ("", "stop")


def test_tokens_without_text_count_as_tokens_but_write_nothing():
    choice = Choice(BYTES)
    choice.feed([PAD, *b"a", END])
    assert (choice.text, choice.ids) == ("a", [PAD, *b"a"])


def test_logprobs_stay_beside_their_tokens():
    choice = Choice(BYTES, limit=2)
    scores = [TokenLogprob(token, -float(token)) for token in b"abc"]
    choice.feed(list(b"abc"), scores)
    assert [one.id for one in choice.logprobs] == choice.ids == list(b"ab")


def test_a_tokenizer_that_joins_punctuation_keeps_the_last_characters_back():
    joined = TextRules(
        lambda ids: bytes(ids).decode().replace(" n't", "n't"), frozenset({END}), frozenset(), True
    )
    choice, sent = Choice(joined), ""
    for byte in b"I do n't know":
        choice.feed([byte])
        sent += choice.take()
    choice.end()
    assert sent + choice.take() == "I don't know"


def test_a_stream_ends_only_after_all_text_that_came_while_it_was_sent():
    """While a chunk is being sent the engine may finish the answer: what it wrote then still goes out."""

    async def texts_and_end():
        request = GenerationRequest("chat", ((1,),), "void", Plan(), seed=0, stream=True, canvas_events=True)
        live = LiveRequest(request, [Choice(BYTES)], 1, chr, reports=[{}])
        stream, pieces = _events(live, ReplyWriter(request, "m", "vp_0", chr)), []
        pieces.append(await anext(stream))  # the role
        live.choices[0].feed(b"sum ")
        live.changed.set()
        pieces.append(await anext(stream))  # "sum "; the rest comes before the stream is asked to go on
        live.choices[0].feed([*b"is 4", END])
        live.records.append((0, {"record": "end"}))
        live.reports[0] = {"passes_decode": 3}
        live.changed.set()
        pieces += [piece async for piece in stream]
        chunks = b"".join(pieces).split(b"\n\n")
        assert chunks.pop() == b""
        assert chunks.pop() == b"data: [DONE]"
        return [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks]

    chunks = asyncio.run(texts_and_end())
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert [choice["delta"].get("content", "") for choice in choices] == ["", "sum ", "is 4", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert [chunk["voidpad"]["record"] for chunk in chunks if not chunk["choices"]] == ["end"]
