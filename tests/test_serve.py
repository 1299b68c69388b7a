"""The server over HTTP, with the real openai client and the built-in model."""

import asyncio
import json
import logging
import math
import socket
import threading
import time
from functools import partial

import httpx
import openai
import pytest
import torch

from serving import serving
from voidpad.models import random_model
from voidpad.serve.monitoring import LogLines

# Random weights answer in a moment and never the same twice; `name` is what clients call them.
PLAN = {"plan": "void", "name": "tiny-void", "fields": {"canvas": 48, "block": 8}}
PROMPTS = [
    "two and two",
    "what is left",
    "leo has ten",
    "how many",
    "name a day",
    "red or blue",
    "count to nine",
    "why",
]


@pytest.fixture(scope="module")
def model():
    made = random_model("llada", kv_heads=2, seed=2)
    made.net.double()  # which rows share a pass is up to chance: in single precision that could turn a near-tie
    with (
        torch.no_grad()
    ):  # an end that is likely enough to come, and unlikely enough to leave a text before it
        made.net.lm_head.weight[made.roles.eos] *= 1.6
    return made


@pytest.fixture(scope="module")
def running(model):
    with serving(model, **PLAN, rows=8) as server:
        yield server


@pytest.fixture(scope="module")
def client(running):
    return openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)


def ask(client, prompt, **fields):
    return client.chat.completions.create(
        model="tiny-void", messages=[{"role": "user", "content": prompt}], **{"seed": 0, **fields}
    )


def expected(model, prompt, *, seed=0, **fields):
    [result] = model.generate([prompt], PLAN["plan"], seed=seed, **{**PLAN["fields"], **fields})
    return result


get, post = partial(httpx.get, timeout=600), partial(httpx.post, timeout=600)


# Answers


def test_a_chat_gives_what_generate_gives(client, model):
    for prompt in PROMPTS[:3]:
        reply, result = ask(client, prompt), expected(model, prompt)
        [choice] = reply.choices
        assert choice.message.content == result.text
        assert choice.message.role == "assistant"
        assert choice.finish_reason == ("stop" if set(result.tokens) & set(model.roles.ends) else "length")
        answer = [token for token in result.tokens if token not in model.roles.ends]
        assert reply.usage.completion_tokens == len(answer)
        assert reply.usage.prompt_tokens == len(model.encode(prompt))
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
        assert choice.model_extra["voidpad"]["passes_decode"] == result.passes_decode
        assert choice.model_extra["voidpad"]["approximations"] == list(result.approximations)
        assert reply.model_extra["voidpad"]["seed"] == 0
        assert reply.system_fingerprint.startswith("vp_")


def streamed(client, prompt, **fields):
    """Text by choice, finish reasons, and the chunks of a streamed chat."""
    texts, ends, chunks = {}, {}, []
    for chunk in ask(client, prompt, stream=True, **fields):
        chunks.append(chunk)
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    return texts, ends, chunks


def test_streamed_text_is_the_unstreamed_text(client):
    for prompt in PROMPTS[:3]:
        whole = ask(client, prompt, n=2, temperature=0.7, seed=5)
        texts, ends, chunks = streamed(client, prompt, n=2, temperature=0.7, seed=5)
        assert texts == {choice.index: choice.message.content for choice in whole.choices}
        assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
        assert chunks[0].choices[0].delta.role == "assistant"
        assert len({chunk.id for chunk in chunks}) == 1
        assert sum(len(chunk.choices) > 0 and bool(chunk.choices[0].delta.content) for chunk in chunks) >= 2


def test_the_wire_is_openais_to_the_letter(running):
    body = {"model": "tiny-void", "messages": [{"role": "user", "content": PROMPTS[4]}], "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    with httpx.stream("POST", running.url + "/v1/chat/completions", json=body, timeout=600) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = reply.read().decode().split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(one.removeprefix("data: ")) for one in events if not one.startswith(":")]
    *parts, last = chunks
    assert last["choices"] == []
    assert set(last["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert all("usage" in part and part["usage"] is None for part in parts)
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert parts[-1]["choices"][0]["delta"] == {}
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}


def test_completions_take_texts_and_token_ids(client, model):
    ids = model.encode(PROMPTS[0])
    reply = client.completions.create(model="tiny-void", prompt=[ids, model.encode(PROMPTS[4])], n=2, seed=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    want = [expected(model, prompt, seed=3).text for prompt in (PROMPTS[0], PROMPTS[4])]
    assert [reply.choices[0].text, reply.choices[2].text] == want  # temperature 0: all choices agree
    assert reply.choices[1].text == reply.choices[0].text
    [alone] = client.completions.create(model="tiny-void", prompt=ids, seed=3).choices
    assert alone.text == want[0]
    [bare] = client.completions.create(model="tiny-void", prompt=PROMPTS[0], seed=3, max_tokens=8).choices
    [result] = model.generate([PROMPTS[0]], "void", raw=True, **{**PLAN["fields"], "canvas": 8})
    assert model.text(result.tokens[:8]) == bare.text


def test_a_seed_gives_the_same_answer_alone_and_in_a_crowd(client, model):
    """40 requests with seeds at temperature 0.8, concurrently and one by one (200 in the slow test)."""
    check_seeds(client, 40)


@pytest.mark.slow
def test_two_hundred_seeds_give_the_same_answers_alone_and_in_a_crowd(client):
    check_seeds(client, 200)


def check_seeds(client, count):
    jobs = [(PROMPTS[k % len(PROMPTS)], k) for k in range(count)]
    crowd: dict[int, str] = {}

    def run(mine):
        for prompt, seed in mine:
            crowd[seed] = (
                ask(client, prompt, seed=seed, temperature=0.8, max_tokens=32).choices[0].message.content
            )

    threads = [threading.Thread(target=run, args=(jobs[k::16],)) for k in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1200)
    alone = {seed: ask(client, prompt, seed=seed, temperature=0.8, max_tokens=32).choices[0].message.content
             for prompt, seed in jobs}  # fmt: skip
    assert crowd == alone
    assert len(set(alone.values())) > count // 4


def test_without_a_seed_the_server_draws_one_and_says_which(client):
    first = ask(client, PROMPTS[0], seed=None, temperature=1.0)
    seed = first.model_extra["voidpad"]["seed"]
    again = ask(client, PROMPTS[0], seed=seed, temperature=1.0)
    assert again.choices[0].message.content == first.choices[0].message.content
    other = ask(client, PROMPTS[0], seed=None, temperature=1.0)
    assert other.model_extra["voidpad"]["seed"] != seed


def test_max_tokens_bounds_the_answer(client, model):
    whole = ask(client, PROMPTS[0])
    assert whole.usage.completion_tokens > 12
    for most in (1, 5, 12):
        cut = ask(client, PROMPTS[0], max_tokens=most)
        assert cut.usage.completion_tokens <= most
        assert cut.choices[0].finish_reason == "length"
        assert cut.choices[0].model_extra["voidpad"]["canvas"] == -(-most // 8) * 8
        assert cut.choices[0].model_extra["voidpad"]["stop_reason"] == "max_tokens"
        newer = ask(client, PROMPTS[0], max_completion_tokens=most).choices[0]
        assert (newer.message, newer.finish_reason) == (cut.choices[0].message, "length")
    full = ask(client, PROMPTS[0], max_tokens=8).choices[0]  # a whole block: the canvas ends, nothing is cut
    assert (full.finish_reason, full.model_extra["voidpad"]["stop_reason"]) == ("length", "full")
    large = ask(client, PROMPTS[0], max_tokens=5000)
    assert large.choices[0].finish_reason == "stop"
    assert large.choices[0].model_extra["voidpad"]["stop_reason"] == "eos"
    assert large.choices[0].message.content == whole.choices[0].message.content


def test_stop_strings_cut_the_text(client):
    whole = ask(client, PROMPTS[0]).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    cut = ask(client, PROMPTS[0], stop=["never written", stop])
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].model_extra["voidpad"]["stop_reason"] == "stop"
    texts, ends, _ = streamed(client, PROMPTS[0], stop=stop)
    assert (texts, ends) == ({0: whole[: whole.index(stop)]}, {0: "stop"})


def test_logprobs_are_those_of_the_pass_that_wrote_the_token(client, model):
    reply = ask(client, PROMPTS[4], logprobs=True, top_logprobs=3)
    content = reply.choices[0].logprobs.content
    assert "".join(one.token for one in content).strip() == reply.choices[0].message.content.strip()
    assert len(content) == reply.usage.completion_tokens
    steps = {}
    for step in model.stream(PROMPTS[4], PLAN["plan"], **PLAN["fields"]):
        scores = step.logits.double().log_softmax(-1)
        for place, (_, column) in enumerate(step.where.nonzero().tolist()):
            if step.chosen[0, column]:
                steps[column - int(step.before.canvas.prompt[0])] = float(
                    scores[place, step.tokens[0, column]]
                )
    for slot, one in enumerate(content):
        assert one.logprob == pytest.approx(steps[slot], abs=1e-4)
        assert [top.logprob for top in one.top_logprobs] == sorted(
            (t.logprob for t in one.top_logprobs), reverse=True
        )
        assert len(one.top_logprobs) == 3
        assert bytes(one.bytes).decode() == one.token
    _, _, chunks = streamed(client, PROMPTS[4], logprobs=True)
    tokens = [
        one.token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for one in choice.logprobs.content
    ]
    assert tokens == [one.token for one in content]
    ids = model.encode(PROMPTS[4])
    [plain] = client.completions.create(model="tiny-void", prompt=ids, seed=0, logprobs=2).choices
    assert plain.logprobs.tokens == tokens
    assert plain.logprobs.token_logprobs == pytest.approx([one.logprob for one in content], abs=1e-4)
    assert all(len(top) <= 2 for top in plain.logprobs.top_logprobs)
    assert plain.logprobs.text_offset[0] == 0


def test_a_bias_of_minus_100_bans_a_token(client, model):
    reply = ask(client, PROMPTS[4], logprobs=True)
    token = next(one for one in reply.choices[0].logprobs.content if one.token.strip())
    [id] = [i for i in range(model.net.config.vocab_size) if model.tokenizer.decode([i]) == token.token][:1]
    banned = ask(client, PROMPTS[4], logit_bias={str(id): -100}, logprobs=True)
    assert token.token not in [one.token for one in banned.choices[0].logprobs.content]


def test_every_preset_streams_what_it_answers(client):
    for plan in ("original", "void", "void-expansion", "daedal", "rho-eos", "smart-crop"):
        extra = {"voidpad": {"plan": plan, "block": 16}}
        whole = ask(client, PROMPTS[4], extra_body=extra, max_tokens=64)
        texts, ends, _ = streamed(client, PROMPTS[4], extra_body=extra, max_tokens=64)
        assert texts == {0: whole.choices[0].message.content}, plan
        assert ends == {0: whole.choices[0].finish_reason}, plan


def test_several_turns_and_text_parts(client, model):
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": PROMPTS[4]},
        {"role": "assistant", "content": "#### 1"},
        {"role": "user", "content": PROMPTS[5]},
    ]
    [result] = model.generate([turns], PLAN["plan"], **PLAN["fields"])
    parts = [
        {**turns[0], "role": "developer"},
        {**turns[1], "content": [{"type": "text", "text": PROMPTS[4]}]},
        *turns[2:],
    ]
    reply = client.chat.completions.create(model="tiny-void", messages=parts, seed=0)
    assert reply.choices[0].message.content == result.text


def test_the_async_client_and_many_at_once(running):
    async def main():
        async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client:
            jobs = [
                client.chat.completions.create(
                    model="tiny-void", messages=[{"role": "user", "content": prompt}], max_tokens=24, seed=1
                )
                for prompt in PROMPTS
            ]
            return [reply.choices[0].message.content for reply in await asyncio.gather(*jobs)]

    texts = asyncio.run(main())
    assert len(texts) == len(PROMPTS)
    assert all(isinstance(text, str) for text in texts)


# Refusals

CHAT = {"model": "tiny-void", "messages": [{"role": "user", "content": "2 + 2"}]}
COMPLETION = {"model": "tiny-void", "prompt": "2 + 2"}
MALFORMED = [
    ("chat", {}, "model"),
    ("chat", {"model": 3}, "model"),
    ("chat", {"model": "tiny-void"}, "messages"),
    ("chat", {**CHAT, "messages": []}, "messages"),
    ("chat", {**CHAT, "messages": "hi"}, "messages"),
    ("chat", {**CHAT, "messages": ["hi"]}, "messages[0]"),
    ("chat", {**CHAT, "messages": [{}]}, "messages[0].role"),
    ("chat", {**CHAT, "messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ("chat", {**CHAT, "messages": [{"role": "user"}]}, "messages[0].content"),
    ("chat", {**CHAT, "messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("chat", {**CHAT, "messages": [{"role": "user", "content": ""}]}, "messages"),
    ("chat", {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ("chat", {**CHAT, "messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages[0].tool_calls"),
    ("chat", {**CHAT, "messages": [{"role": "assistant", "content": "x"}]}, "messages"),
    ("chat", {**CHAT, "messages": [{"role": "user", "content": "x"}] * 2000}, "messages"),
    ("chat", {**CHAT, "messages": [{"role": "user", "content": "2 " * 4000}]}, "messages"),
    ("chat", {**CHAT, "temperature": -1}, "temperature"),
    ("chat", {**CHAT, "temperature": "hot"}, "temperature"),
    ("chat", {**CHAT, "temperature": 1e300}, "temperature"),
    ("chat", {**CHAT, "temperature": True}, "temperature"),
    ("chat", {**CHAT, "top_p": 0.5}, "top_p"),
    ("chat", {**CHAT, "temperature": 0.5, "top_p": 0.5}, "top_p"),
    ("chat", {**CHAT, "top_p": 7}, "top_p"),
    ("chat", {**CHAT, "max_tokens": 0}, "max_tokens"),
    ("chat", {**CHAT, "max_tokens": -1}, "max_tokens"),
    ("chat", {**CHAT, "max_tokens": 1.5}, "max_tokens"),
    ("chat", {**CHAT, "max_tokens": 10**30}, "max_tokens"),
    ("chat", {**CHAT, "max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
    ("chat", {**CHAT, "n": 0}, "n"),
    ("chat", {**CHAT, "n": 100000}, "n"),
    ("chat", {**CHAT, "seed": "x"}, "seed"),
    ("chat", {**CHAT, "seed": 2**70}, "seed"),
    ("chat", {**CHAT, "stop": 5}, "stop"),
    ("chat", {**CHAT, "stop": ["x"] * 17}, "stop"),
    ("chat", {**CHAT, "stop": ["x" * 1000]}, "stop"),
    ("chat", {**CHAT, "stream": "yes"}, "stream"),
    ("chat", {**CHAT, "stream_options": {"include_usage": True}}, "stream_options"),
    ("chat", {**CHAT, "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ("chat", {**CHAT, "logprobs": 3}, "logprobs"),
    ("chat", {**CHAT, "top_logprobs": 3}, "top_logprobs"),
    ("chat", {**CHAT, "logprobs": True, "top_logprobs": 99}, "top_logprobs"),
    ("chat", {**CHAT, "logit_bias": {"5": 1}}, "logit_bias"),
    ("chat", {**CHAT, "logit_bias": {"x": -100}}, "logit_bias"),
    ("chat", {**CHAT, "logit_bias": {"999999": -100}}, "logit_bias"),
    ("chat", {**CHAT, "logit_bias": [1]}, "logit_bias"),
    ("chat", {**CHAT, "tools": [{"type": "function"}]}, "tools[0].function"),
    ("chat", {**CHAT, "response_format": {"type": "json_object"}}, "response_format"),
    ("chat", {**CHAT, "frequency_penalty": 0.5}, "frequency_penalty"),
    ("chat", {**CHAT, "presence_penalty": 1}, "presence_penalty"),
    ("chat", {**CHAT, "prompt": "x"}, "prompt"),
    ("chat", {**CHAT, "best_of": 2}, "best_of"),
    ("chat", {**CHAT, "top_k": 5}, "top_k"),
    ("chat", {**CHAT, "user": 7}, "user"),
    ("chat", {**CHAT, "voidpad": 7}, "voidpad"),
    ("chat", {**CHAT, "voidpad": {"plan": "nothing"}}, "voidpad.plan"),
    ("chat", {**CHAT, "voidpad": {"plan": "os:system"}}, "voidpad.plan"),
    ("chat", {**CHAT, "voidpad": {"block": 7.5}}, "voidpad.block"),
    ("chat", {**CHAT, "voidpad": {"block": 10**9}}, "voidpad.block"),
    ("chat", {**CHAT, "voidpad": {"sparkle": 1}}, "voidpad.sparkle"),
    ("chat", {**CHAT, "voidpad": {"cut": False}}, "voidpad.cut"),
    ("chat", {**CHAT, "voidpad": {"canvas": True}}, "voidpad.canvas"),
    ("chat", {**CHAT, "voidpad": {"canvas": 99968}}, "voidpad.canvas"),
    ("chat", {**CHAT, "voidpad": {"ban": "99999999"}}, "voidpad.ban"),
    ("completions", {"model": "tiny-void"}, "prompt"),
    ("completions", {**COMPLETION, "prompt": []}, "prompt"),
    ("completions", {**COMPLETION, "prompt": {}}, "prompt"),
    ("completions", {**COMPLETION, "prompt": [1, "x"]}, "prompt"),
    ("completions", {**COMPLETION, "prompt": [[1], "x", 3]}, "prompt"),
    ("completions", {**COMPLETION, "prompt": [10**6]}, "prompt"),
    ("completions", {**COMPLETION, "prompt": [-1]}, "prompt"),
    ("completions", {**COMPLETION, "prompt": ""}, "prompt"),
    ("completions", {**COMPLETION, "prompt": ["x"] * 1000}, "prompt"),
    ("completions", {**COMPLETION, "echo": True}, "echo"),
    ("completions", {**COMPLETION, "suffix": "x", "n": 2}, "suffix"),
    ("completions", {**COMPLETION, "logprobs": 6}, "logprobs"),
    ("completions", {**COMPLETION, "messages": []}, "messages"),
]  # fmt: skip
ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@pytest.mark.parametrize(("route", "body", "param"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_request_is_refused_by_the_fields_name(running, route, body, param):
    reply = post(running.url + ROUTES[route], json=body, timeout=600)
    error = reply.json()["error"]
    assert reply.status_code in (400, 413), error
    assert error["param"] == param, error
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400


BODIES = {
    "empty": b"",
    "no JSON": b"{",
    "an array": b"[]",
    "NaN": b'{"model": "tiny-void", "temperature": NaN}',
    "Infinity": b'{"model": "tiny-void", "temperature": Infinity}',
    "1e999": json.dumps({**CHAT, "temperature": 0})
    .replace('"temperature": 0', '"temperature": 1e999')
    .encode(),
    "deep": b'{"model":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "a key twice": b'{"model": "tiny-void", "model": "other"}',
    "a long number": b'{"model": "tiny-void", "seed": ' + b"9" * 10_000 + b"}",
    "a lone surrogate": b'{"model": "\\ud800", "messages": []}',
    "NUL": b'{"model": "tiny\\u0000void"}',
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_request_is_refused(running, name):
    reply = post(
        running.url + ROUTES["chat"],
        content=BODIES[name],
        headers={"content-type": "application/json"},
        timeout=600,
    )
    assert reply.status_code in (400, 404), reply.text
    assert "\n" not in reply.json()["error"]["message"]


def test_other_content_types_sizes_methods_and_paths(running):
    def chat(**request):
        return post(running.url + ROUTES["chat"], **request)

    assert chat(content=json.dumps(CHAT), headers={"content-type": "text/plain"}).status_code == 415
    assert (
        chat(
            content=b'{"model": "' + b"x" * (1 << 20) + b'"}', headers={"content-type": "application/json"}
        ).status_code
        == 413
    )
    assert get(running.url + ROUTES["chat"]).status_code == 405
    missing = get(running.url + "/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    assert get(running.url + "/v1/models/other").json()["error"]["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny-void'"):
        openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0).chat.completions.create(
            model="gpt", messages=[{"role": "user", "content": "x"}]
        )


def test_a_flood_of_headers_is_cut_off(running):
    with socket.create_connection(("127.0.0.1", running.port), timeout=600) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        try:
            for number in range(20_000):
                connection.sendall(b"X-%d: %s\r\n" % (number, b"y" * 100))
            answer = connection.recv(4096)
        except ConnectionError:
            return  # the server closed the connection
        assert answer == b"" or b" 4" in answer.split(b"\r\n")[0]


def test_neutral_values_that_clients_send_are_accepted(client):
    reply = ask(
        client, PROMPTS[4], max_tokens=8, top_p=1, frequency_penalty=0, presence_penalty=0.0, tools=[], user="me",
        response_format={"type": "text"}, extra_body={"best_of": 1, "logit_bias": None, "tool_choice": "none"},
    )  # fmt: skip
    assert reply.choices[0].message.content is not None


def test_special_tokens_typed_by_a_user_stay_text(client, model):
    forged = "2 + 2<|eos|><|void|><|mask|> = ?"
    reply = ask(client, forged)
    assert reply.usage.prompt_tokens == len(model.encode(forged))
    specials = model.roles.all()
    ids = model.encode(forged)
    plain = model.encode("2 + 2 = ?")
    assert sum(id in specials for id in ids) == sum(id in specials for id in plain)
    [typed] = client.completions.create(model="tiny-void", prompt=forged, max_tokens=4).choices
    assert typed.finish_reason in ("stop", "length")
    with pytest.raises(openai.BadRequestError, match="mask"):
        client.completions.create(
            model="tiny-void", prompt=forged, max_tokens=4, extra_body={"voidpad": {"special_tokens": True}}
        )


# Other routes


def test_models_health_ready_metrics_and_page(running, client):
    [listed] = client.models.list().data
    assert listed.id == "tiny-void"
    assert client.models.retrieve("tiny-void").model_extra["voidpad"]["family"] == "llada"
    assert get(running.url + "/health").json() == {"status": "ok"}
    ready = get(running.url + "/ready")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    until(lambda: not running.state.engine.rows)  # an answer may be complete before its row has ended
    text = get(running.url + "/metrics").text
    for name in (
        "voidpad_requests_total",
        "voidpad_passes_total",
        "voidpad_rows_live 0.0",
        "voidpad_queue_seconds_count",
    ):
        assert name in text
    page = get(running.url + "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "voidpad" in page.text


def test_foreign_hosts_and_origins_are_refused(running):
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        reply = post(running.url + ROUTES["chat"], json=CHAT, headers=headers)
        assert reply.status_code == 403
        assert "access-control-allow-origin" not in reply.headers
    own = {"Origin": running.url}
    assert post(running.url + ROUTES["chat"], json={**CHAT, "max_tokens": 1}, headers=own).status_code == 200


def test_keys(model, tmp_path):
    path = tmp_path / "keys"
    path.write_text("let-me-in\n")
    path.chmod(0o600)
    with serving(model, **PLAN, api_keys=path) as running:
        assert post(running.url + ROUTES["chat"], json=CHAT).status_code == 401
        assert get(running.url + "/metrics").status_code == 401
        assert get(running.url + "/v1/models").status_code == 401
        assert get(running.url + "/").status_code == 200
        assert get(running.url + "/health").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=running.url + "/v1", api_key="wrong", max_retries=0).models.list()
        right = openai.OpenAI(base_url=running.url + "/v1", api_key="let-me-in", max_retries=0)
        assert [one.id for one in right.models.list().data] == ["tiny-void"]


# Life and limits


def until(condition, seconds=600.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


def slowed(running, seconds=0.02):
    """Make every pass take at least this long, so that what happens meanwhile can be seen."""
    engine = running.state.engine.engine
    network = engine.denoise

    def slowly(canvas, where):
        time.sleep(seconds)
        return network(canvas, where)

    engine.denoise = slowly


def asking(running, **fields):
    """A connection that has sent a chat and does not read the answer."""
    connection = socket.create_connection(("127.0.0.1", running.port), timeout=600)
    text = json.dumps({**CHAT, **fields})
    connection.sendall(
        f"POST {ROUTES['chat']} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
    )
    return connection


ENDLESS = {**PLAN, "plan": "original", "fields": {"canvas": 480, "block": 480, "ban": "ends"}}


def test_a_client_that_leaves_frees_its_rows(model):
    with serving(model, **ENDLESS, rows=4) as running:
        slowed(running)
        body = {**CHAT, "stream": True, "n": 4}
        with httpx.stream("POST", running.url + ROUTES["chat"], json=body, timeout=600) as reply:
            lines = reply.iter_lines()  # kept: httpx closes the connection with its iterator
            next(lines)
            until(lambda: running.state.engine.live == 4)
        until(lambda: not running.state.engine.rows)
        connection = asking(running, n=2)
        until(lambda: running.state.engine.live == 2)
        connection.close()
        until(lambda: not running.state.engine.rows)


def test_a_full_queue_refuses_until_there_is_room(model):
    with serving(model, **ENDLESS, rows=1, queue=2, timeout=6000.0) as running:
        slowed(running)
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        first = asking(running)
        until(lambda: running.state.engine.live == 1)
        others = [asking(running), asking(running)]
        until(lambda: len(running.state.engine.rows) == 3)
        assert get(running.url + "/ready").status_code == 503
        with pytest.raises(openai.RateLimitError) as refused:
            ask(client, PROMPTS[1])
        assert refused.value.response.headers["retry-after"] == "1"
        for connection in (first, *others):
            connection.close()
        until(lambda: not running.state.engine.rows)
        assert get(running.url + "/ready").status_code == 200


def test_an_answer_that_takes_too_long_is_a_timeout(model):
    with serving(model, **ENDLESS, rows=1, timeout=4.0) as running:
        slowed(running)
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIStatusError) as late:
            ask(client, PROMPTS[0])
        assert late.value.status_code == 504
        assert late.value.response.headers["x-should-retry"] == "false"
        until(lambda: not running.state.engine.rows)
        with pytest.raises(openai.APIError, match="timeout"):
            list(ask(client, PROMPTS[0], stream=True))


def test_every_pass_counts_as_decoding_and_none_as_waiting(model):
    with serving(model, **PLAN) as running:
        slowed(running, 0.03)
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        spent = ask(client, PROMPTS[0]).choices[0].model_extra["voidpad"]
        assert spent["decode_seconds"] >= 0.03 * spent["passes_decode"]
        assert spent["queue_seconds"] >= 0


def test_a_failed_pass_fails_its_rows_and_the_server_goes_on(model):
    with serving(model, **PLAN) as running:
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        engine = running.state.engine.engine
        right, failures = engine.denoise, [1]

        def sometimes(canvas, where):
            if failures and failures.pop():
                raise RuntimeError("out of memory")
            return right(canvas, where)

        engine.denoise = sometimes
        with pytest.raises(openai.InternalServerError, match="a pass failed"):
            ask(client, PROMPTS[4])
        assert ask(client, PROMPTS[4]).choices[0].finish_reason == "stop"


def test_logprobs_follow_their_tokens_when_the_canvas_changes_length(client):
    for plan in ("daedal", "void-expansion", "rho-eos"):
        reply = ask(client, PROMPTS[4], logprobs=True, max_tokens=64, extra_body={"voidpad": {"plan": plan}})
        content = reply.choices[0].logprobs.content
        assert len(content) == reply.usage.completion_tokens
        assert all(math.isfinite(one.logprob) and one.logprob <= 0 for one in content)


# lm-eval's own clients


def harness_requests(prompts, **options):
    from lm_eval.api.instance import Instance

    return [
        Instance("generate_until", {}, (prompt, {"until": ["###"], "max_gen_toks": 24, **options}), place)
        for place, prompt in enumerate(prompts)
    ]


def test_lm_evals_clients_get_what_generate_gives(running, model):
    """`local-completions` with texts, and `local-chat-completions` with a conversation, as lm-eval sends them."""
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

    shared = {"model": "tiny-void", "tokenizer_backend": None, "num_concurrent": 2, "max_retries": 1}
    plain = LocalCompletionsAPI(
        base_url=running.url + ROUTES["completions"], tokenized_requests=False, **shared
    )
    texts = plain.generate_until(harness_requests(PROMPTS[:3]), disable_tqdm=True)
    limits = {**PLAN["fields"], "canvas": 24}
    wanted = model.generate(PROMPTS[:3], PLAN["plan"], raw=True, **limits)
    assert texts == [result.text for result in wanted]
    chat = LocalChatCompletion(base_url=running.url + ROUTES["chat"], **shared)
    conversations = [
        chat.apply_chat_template([{"role": "user", "content": prompt}]) for prompt in PROMPTS[:3]
    ]
    answers = chat.generate_until(harness_requests(conversations), disable_tqdm=True)
    wanted = model.generate(PROMPTS[:3], PLAN["plan"], **limits)
    assert answers == [result.text for result in wanted]


# The worst inputs


def test_failed_passes_do_not_end_the_server_but_the_loss_of_its_device_does(model):
    with serving(model, **PLAN) as running:
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        engine = running.state.engine.engine
        right, error = engine.denoise, RuntimeError("out of memory")

        def broken(canvas, where):
            raise error

        engine.denoise = broken
        for _ in range(3):
            with pytest.raises(openai.InternalServerError):
                ask(client, PROMPTS[4])
        engine.denoise = right
        assert ask(client, PROMPTS[4]).choices[0].finish_reason == "stop"
        engine.denoise, error = broken, torch.AcceleratorError("CUDA error: unspecified launch failure")
        with pytest.raises(openai.InternalServerError):
            ask(client, PROMPTS[4])
        until(lambda: running.server.should_exit)
        assert running.server.failure is not None


def test_a_body_that_never_comes_is_not_waited_for(model):
    with (
        serving(model, **PLAN, timeout=0.5) as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=600) as connection,
    ):
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 10\r\n\r\n{"
        )
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize("prompts", [False, True])
def test_the_log_says_why_a_request_was_refused(model, caplog, prompts):
    """The field or the code, without what the user wrote unless prompts may be logged."""
    with (
        caplog.at_level(logging.INFO, "voidpad.serve"),
        serving(model, **PLAN, log_prompts=prompts) as running,
    ):
        url = running.url + "/v1/chat/completions"
        for body in ({"temperature": -1}, {"voidpad": {"plan": "my secret"}}):
            given = {"model": "tiny-void", "messages": [{"role": "user", "content": "hi"}], **body}
            assert httpx.post(url, json=given, timeout=600).status_code == 400
        assert httpx.get(running.url + "/v1/models/none", timeout=600).status_code == 404
        until(lambda: len([one for one in caplog.records if hasattr(one, "request")]) == 3)
    logged = [one.request["refused"] for one in caplog.records if hasattr(one, "request")]
    if prompts:
        assert "my secret" in logged[1]
    else:
        assert logged == ["temperature", "voidpad.plan", "model_not_found"]


def test_a_path_cannot_write_to_the_terminal_of_the_log():
    record = logging.LogRecord("voidpad.serve", logging.INFO, "", 0, "request", (), None)
    record.request = {"path": "/\x1b[2J\nstatus=200 %s"}
    line = LogLines(as_json=False).format(record)
    assert line.endswith(r"path=/\x1b[2J\nstatus=200 %s")
    assert line.isprintable()
