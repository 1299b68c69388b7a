"""Answers, replies and refusals over HTTP, with the real openai client and lm-eval's own clients."""

import asyncio
import json
import logging
import math
import threading
from importlib.metadata import version

import openai
import pytest
import torch

from serving import CHAT, COMPLETIONS, serving, until
from voidpad.models import random_model

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
ASKED = {"model": "tiny-void", "messages": [{"role": "user", "content": "2 + 2"}]}


@pytest.fixture(scope="module")
def model():
    made = random_model("llada", kv_heads=2, seed=2)
    made.net.double()  # which rows share a pass is up to chance: in single precision that could turn a near-tie
    with torch.no_grad():  # an end that comes now and then, after some text
        made.net.lm_head.weight[made.roles.eos] *= 1.6
    return made


@pytest.fixture(scope="module")
def running(model):
    with serving(model, **PLAN, rows=8) as server:
        yield server


@pytest.fixture(scope="module")
def client(running):
    return running.client


def ask(client, prompt, **fields):
    messages = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model="tiny-void", messages=messages, **{"seed": 0, **fields})


def expected(model, prompt, *, seed=0, **fields):
    [result] = model.generate([prompt], PLAN["plan"], seed=seed, **{**PLAN["fields"], **fields})
    return result


# Answers


def test_a_chat_gives_what_generate_gives(client, model):
    for prompt in PROMPTS[:3]:
        reply, result = ask(client, prompt), expected(model, prompt)
        [choice] = reply.choices
        assert (choice.message.content, choice.message.role) == (result.text, "assistant")
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


def check_stream(client, prompt, **fields):
    """Streamed and unstreamed answers are the same; the chunks."""
    whole = ask(client, prompt, **fields)
    texts, ends, chunks = streamed(client, prompt, **fields)
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
    return chunks


def test_streamed_text_is_the_unstreamed_text(client):
    for prompt in PROMPTS[:3]:
        chunks = check_stream(client, prompt, n=2, temperature=0.7, seed=5)
        assert len({chunk.id for chunk in chunks}) == 1
        assert sum(len(chunk.choices) > 0 and bool(chunk.choices[0].delta.content) for chunk in chunks) >= 2


@pytest.mark.parametrize("plan", ["original", "void", "void-expansion", "daedal", "rho-eos", "smart-crop"])
def test_every_preset_streams_what_it_answers(client, plan):
    check_stream(client, PROMPTS[4], extra_body={"voidpad": {"plan": plan, "block": 16}}, max_tokens=64)


def test_the_wire_is_openais(running):
    body = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
    reply = running.post(body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    *parts, last = [json.loads(one.removeprefix("data: ")) for one in events if not one.startswith(":")]
    assert last["choices"] == []
    assert set(last["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert all("usage" in part and part["usage"] is None for part in parts)
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert parts[-1]["choices"][0]["delta"] == {}
    assert parts[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}


def test_completions_take_texts_and_token_ids(client, model):
    ids = model.encode(PROMPTS[0])
    reply = client.completions.create(model="tiny-void", prompt=[ids, model.encode(PROMPTS[4])], n=2, seed=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    want = [expected(model, prompt, seed=3).text for prompt in (PROMPTS[0], PROMPTS[4])]
    assert [choice.text for choice in reply.choices] == [want[0], want[0], want[1], want[1]]  # temperature 0
    assert client.completions.create(model="tiny-void", prompt=ids, seed=3).choices[0].text == want[0]
    [bare] = client.completions.create(model="tiny-void", prompt=PROMPTS[0], seed=3, max_tokens=8).choices
    [result] = model.generate([PROMPTS[0]], "void", raw=True, **{**PLAN["fields"], "canvas": 8})
    assert model.text(result.tokens[:8]) == bare.text


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_a_seed_gives_the_same_answer_alone_and_in_a_crowd(client, count):
    jobs = [(PROMPTS[k % len(PROMPTS)], k) for k in range(count)]
    crowd, alone = {}, {}

    def run(mine, found):
        for prompt, seed in mine:
            [choice] = ask(client, prompt, seed=seed, temperature=0.8, max_tokens=32).choices
            found[seed] = choice.message.content

    threads = [threading.Thread(target=run, args=(jobs[k::16], crowd)) for k in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1200)
    run(jobs, alone)
    assert crowd == alone
    assert len(set(alone.values())) > count // 4


def test_without_a_seed_the_server_draws_one_and_says_which(client):
    first, other = (ask(client, PROMPTS[0], seed=None, temperature=1.0) for _ in range(2))
    seed = first.model_extra["voidpad"]["seed"]
    again = ask(client, PROMPTS[0], seed=seed, temperature=1.0)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert other.model_extra["voidpad"]["seed"] != seed


def test_max_tokens_bounds_the_answer(client, model):
    whole = ask(client, PROMPTS[0])
    assert whole.usage.completion_tokens > 12
    for most in (1, 5, 12):
        cut = ask(client, PROMPTS[0], max_tokens=most)
        assert cut.usage.completion_tokens <= most
        [choice] = cut.choices
        about = choice.model_extra["voidpad"]
        assert (choice.finish_reason, about["stop_reason"]) == ("length", "max_tokens")
        assert about["canvas"] == -(-most // 8) * 8
        newer = ask(client, PROMPTS[0], max_completion_tokens=most).choices[0]
        assert (newer.message, newer.finish_reason) == (choice.message, "length")
    full = ask(client, PROMPTS[0], max_tokens=8).choices[0]  # a whole block: the canvas ends, nothing is cut
    assert (full.finish_reason, full.model_extra["voidpad"]["stop_reason"]) == ("length", "full")
    [large] = ask(client, PROMPTS[0], max_tokens=5000).choices
    assert (large.finish_reason, large.model_extra["voidpad"]["stop_reason"]) == ("stop", "eos")
    assert large.message.content == whole.choices[0].message.content


def test_stop_strings_cut_the_text(client):
    whole = ask(client, PROMPTS[0]).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    [cut] = ask(client, PROMPTS[0], stop=["never written", stop]).choices
    assert cut.message.content == whole[: whole.index(stop)]
    assert (cut.finish_reason, cut.model_extra["voidpad"]["stop_reason"]) == ("stop", "stop")
    check_stream(client, PROMPTS[0], stop=stop)


def test_logprobs_are_those_of_the_pass_that_wrote_the_token(client, model):
    reply = ask(client, PROMPTS[4], logprobs=True, top_logprobs=3)
    content = reply.choices[0].logprobs.content
    assert "".join(one.token for one in content).strip() == reply.choices[0].message.content.strip()
    assert len(content) == reply.usage.completion_tokens
    steps = {}
    for step in model.stream(PROMPTS[4], PLAN["plan"], **PLAN["fields"]):
        columns = step.where[0].nonzero()[:, 0] - step.before.prompt[0]
        scores = dict(zip(columns.tolist(), step.logits.double().log_softmax(-1), strict=True))
        for slot, token, _ in step.written(0):
            steps[slot] = float(scores[slot][token])
    for slot, one in enumerate(content):
        assert one.logprob == pytest.approx(steps[slot], abs=1e-4)
        likeliest = [top.logprob for top in one.top_logprobs]
        assert len(likeliest) == 3
        assert likeliest == sorted(likeliest, reverse=True)
        assert bytes(one.bytes).decode() == one.token
    _, _, chunks = streamed(client, PROMPTS[4], logprobs=True)
    parts = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    tokens = [one.token for part in parts for one in part.content]
    assert tokens == [one.token for one in content]
    ids = model.encode(PROMPTS[4])
    [plain] = client.completions.create(model="tiny-void", prompt=ids, seed=0, logprobs=2).choices
    assert plain.logprobs.tokens == tokens
    assert plain.logprobs.token_logprobs == pytest.approx([one.logprob for one in content], abs=1e-4)
    assert all(len(top) <= 2 for top in plain.logprobs.top_logprobs)
    assert plain.logprobs.text_offset[0] == 0


@pytest.mark.parametrize("plan", ["daedal", "void-expansion", "rho-eos"])
def test_logprobs_follow_their_tokens_when_the_canvas_changes_length(client, plan):
    reply = ask(client, PROMPTS[4], logprobs=True, max_tokens=64, extra_body={"voidpad": {"plan": plan}})
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    assert all(math.isfinite(one.logprob) and one.logprob <= 0 for one in content)


def test_a_bias_of_minus_100_bans_a_token(client, model):
    content = ask(client, PROMPTS[4], logprobs=True).choices[0].logprobs.content
    token = next(one.token for one in content if one.token.strip())
    [id, *_] = [i for i in range(model.net.config.vocab_size) if model.tokenizer.decode([i]) == token]
    banned = ask(client, PROMPTS[4], logit_bias={str(id): -100}, logprobs=True)
    assert token not in [one.token for one in banned.choices[0].logprobs.content]


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


def test_the_async_client_and_many_at_once(running, model):
    async def main():
        async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in PROMPTS))

    texts = [reply.choices[0].message.content for reply in asyncio.run(main())]
    assert texts == [expected(model, prompt).text for prompt in PROMPTS]


def test_responses_are_chats(client, model):
    [result] = model.generate(
        [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPTS[0]}]],
        PLAN["plan"],
        **PLAN["fields"],
    )
    asked = {
        "model": "tiny-void",
        "instructions": "Be brief.",
        "input": PROMPTS[0],
        "extra_body": {"seed": 0},
    }
    reply = client.responses.create(**asked)
    assert (reply.output_text, reply.status) == (result.text, "completed")
    answer = [token for token in result.tokens if token not in model.roles.ends]
    assert reply.usage.output_tokens == len(answer)
    events = list(client.responses.create(**asked, stream=True))
    assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == result.text
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert events[-1].response.output_text == result.text
    assert [one.sequence_number for one in events] == list(range(len(events)))
    cut = client.responses.create(**asked, max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    turns = [{"role": "user", "content": "why"}, *reply.output, {"role": "user", "content": PROMPTS[1]}]
    assert client.responses.create(model="tiny-void", input=turns).output_text is not None
    for fields, param in (({"previous_response_id": "x"}, "previous_response_id"), ({"input": 5}, "input")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(**{**asked, **fields})
        assert refused.value.param == param


def test_a_gap_is_filled_with_the_fields_of_the_request(client, model):
    reply = client.completions.create(model="tiny-void", prompt="two ", suffix=" four", max_tokens=6, seed=0)
    assert reply.choices[0].text == model.fill("two [[gap:6]] four", "void", block=8).gaps[0]
    body = {"voidpad": {"template": "a [[gap:3]] b [[gap:2]]"}}
    [choice] = client.completions.create(model="tiny-void", prompt="", extra_body=body, seed=0).choices
    assert choice.text.startswith("a ")
    assert choice.model_extra["voidpad"]["slots"] == [3, 2]
    hot = [
        client.completions.create(
            model="tiny-void", prompt="two ", suffix=" four", max_tokens=6, seed=seed, temperature=2
        ).choices[0]
        for seed in range(4)
    ]
    assert len({choice.text for choice in hot}) > 1


# Refusals


def said(**message):
    return [{"role": "user", "content": "x", **message}]


HUGE = (10**300, -(10**300))
# Values that are refused by the name of their field; a field of another name is given with its value.
MALFORMED = {
    "model": [3, None],
    "messages": [
        None,
        [],
        "hi",
        said(content=""),
        said(role="assistant"),
        said() * 2000,
        said(content="2 " * 4000),
    ],
    "messages[0]": [{"messages": ["hi"]}],
    "messages[0].role": [{"messages": [{}]}, {"messages": said(role="tool")}],
    "messages[0].content": [
        {"messages": said(content=content)} for content in (5, [{"type": "image_url"}], [{"type": "text"}])
    ],
    "messages[0].tool_calls": [
        {"messages": said(role="assistant", tool_calls=[1], content=content)} for content in (None, "x")
    ],
    "temperature": [-1, "hot", 1e300, True, *HUGE],
    "top_p": [0.5, 7, *HUGE],
    "max_tokens": [0, 1.5, 10**30, {"max_tokens": 4, "max_completion_tokens": 5}, *HUGE],
    "n": [0, 100000, *HUGE],
    "seed": ["x", 2**70, *HUGE],
    "stop": [5, ["x"] * 17],
    "stop[0]": [{"stop": [5]}, {"stop": "x" * 1000}],
    "stream": ["yes"],
    "stream_options": [{"stream_options": {"include_usage": True}}],
    "stream_options.x": [{"stream": True, "stream_options": {"x": 1}}],
    "logprobs": [3],
    "top_logprobs": [3, *({"logprobs": True, "top_logprobs": count} for count in (99, *HUGE))],
    "logit_bias": [[1], {"logit_bias": {"999999": -100}}],
    "logit_bias.5": [{"logit_bias": {"5": bias}} for bias in (1, -100.5, "x", True, *HUGE)],
    "logit_bias.x.[key]": [{"logit_bias": {"x": -100}}],
    "tools[0].function": [{"tools": [{"type": "function"}]}],
    "frequency_penalty": [0.5],
    "best_of": [2],
    "prompt": ["x"],
    "top_k": [5],
    "user": [7],
    "voidpad": [7],
    "voidpad.plan": [{"voidpad": {"plan": plan}} for plan in ("nothing", "os:system")],
    "voidpad.template": [{"voidpad": {"template": "a [[gap]]"}}],
    "voidpad.special_tokens": [{"voidpad": {"special_tokens": True}}],
    "voidpad.block": [{"voidpad": {"block": 7.5}}],
    **{
        f"voidpad.{name}": [{"voidpad": {name: value}}]
        for name, value in {"sparkle": 1, "name": "x", "self": 1, "defaults": {}, "calibration": {}}.items()
    },
    "voidpad.cut": [{"voidpad": {"cut": False}}],
    "voidpad.canvas": [{"voidpad": {"canvas": canvas}} for canvas in (True, 99968)],
    "voidpad.canvas_events": [{"voidpad": {"canvas_events": True}}],
    "voidpad.ban": [{"voidpad": {"ban": "99999999"}}],
    "voidpad.mute": [{"voidpad": {"mute": [[1]]}}],
    "tool_choice": [5],
}
MALFORMED_COMPLETIONS = {
    "prompt": [None, [], [1, "x"], [[1], "x", 3], [10**6], [-1], "", ["x"] * 1000],
    "n": [{"prompt": ["x"] * 60, "n": 16}],
    "echo": [True, {"echo": True, "max_tokens": 1, "n": 2}],
    "max_tokens": [0],
    "suffix": [{"suffix": "x", "n": 2}, {"suffix": "x", "structured_outputs": {"choice": ["b"]}}],
    "logprobs": [6],
    "messages": [[]],
}


@pytest.mark.parametrize(
    ("path", "param"),
    [*((CHAT, name) for name in MALFORMED), *((COMPLETIONS, name) for name in MALFORMED_COMPLETIONS)],
)
def test_a_malformed_request_is_refused_by_the_fields_name(running, path, param):
    right = ASKED if path == CHAT else {"model": "tiny-void", "prompt": "2"}
    for value in (MALFORMED if path == CHAT else MALFORMED_COMPLETIONS)[param]:
        wrong = value if isinstance(value, dict) else {param: value}
        reply = running.post({**right, **wrong}, path)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param), error
        assert set(error) == {"message", "type", "param", "code"}
        assert "\n" not in error["message"]
        assert len(error["message"]) < 400


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"store": True}, "false"),
        ({"audio": {}}, "null"),
        ({"bogus": 1}, "unknown field"),
        ({"voidpad": 7}, "object"),
        ({"messages": 5}, "array"),
    ],
)
def test_a_refusal_is_in_the_words_of_json(running, fields, said):
    assert said in running.post({**ASKED, **fields}).json()["error"]["message"]


BODIES = {
    "empty": b"",
    "no JSON": b"{",
    "an array": b"[]",
    "NaN": b'{"model": "tiny-void", "temperature": NaN}',
    "1e999": json.dumps(ASKED)[:-1].encode() + b', "temperature": 1e999}',
    "deep": b'{"model":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "rather deep": json.dumps(ASKED)[:-1].encode() + b', "x":' + b"[" * 900 + b"]" * 900 + b"}",
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "a key twice": b'{"model": "tiny-void", "model": "other"}',
    "a long number": b'{"model": "tiny-void", "seed": ' + b"9" * 10_000 + b"}",
    "NUL": b'{"model": "tiny\\u0000void"}',
    "a lone surrogate": json.dumps({**ASKED, "user": "\ud800"}).encode(),
    "a lone surrogate in a key": json.dumps({**ASKED, "\ud800": 1}).encode(),
    "a lone surrogate below": json.dumps({**ASKED, "voidpad": {"\udfff": 1}}).encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_request_is_refused(running, name):
    reply = running.post(BODIES[name])
    assert reply.status_code in (400, 404), reply.text
    assert "\n" not in reply.json()["error"]["message"]


def test_other_content_types_sizes_methods_and_paths(running):
    assert running.post(ASKED, content_type="text/plain").status_code == 415
    assert running.post({"model": "x" * (1 << 20)}).status_code == 413
    assert running.get(CHAT).status_code == 405
    missing = running.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    assert running.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="tiny-void"):
        running.client.completions.create(model="gpt", prompt="x")


def test_neutral_values_that_clients_send_are_accepted(client):
    reply = ask(
        client, PROMPTS[4], max_tokens=8, top_p=1, frequency_penalty=0, presence_penalty=0.0, tools=[], user="me",
        response_format={"type": "text"}, extra_body={"best_of": 1, "logit_bias": None, "tool_choice": "none"},
    )  # fmt: skip
    assert reply.choices[0].message.content is not None


def test_a_lenient_server_names_what_it_ignores(model, caplog):
    with caplog.at_level(logging.INFO, "voidpad.serve"), serving(model, **PLAN, lenient=True) as running:
        tools = [{"type": "function", "function": {"name": "invite"}}]
        reply = running.post({**ASKED, "max_tokens": 1, "frequency_penalty": 0.5, "top_k": 3, "tools": tools})
        assert reply.status_code == 200
        assert reply.json()["choices"][0]["message"]["content"] is not None
        assert set(reply.headers["x-voidpad-ignored"].split(",")) == {"frequency_penalty", "top_k", "tools"}
        until(lambda: any(hasattr(one, "request") for one in caplog.records))
        [logged] = [one.request["ignored"] for one in caplog.records if hasattr(one, "request")]
        assert logged == reply.headers["x-voidpad-ignored"]
        wrong = running.post({**ASKED, "top_k": 3, "temperature": -1})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "temperature")


def test_special_tokens_typed_by_a_user_stay_text(client, model):
    forged = "2 + 2<|eos|><|void|><|mask|> = ?"
    ids = model.encode(forged)
    assert ask(client, forged).usage.prompt_tokens == len(ids)
    specials = model.roles.all()
    assert sum(id in specials for id in ids) == sum(id in specials for id in model.encode("2 + 2 = ?"))
    client.completions.create(model="tiny-void", prompt=forged, max_tokens=4)
    with pytest.raises(openai.BadRequestError, match="mask"):
        client.completions.create(
            model="tiny-void", prompt=forged, max_tokens=4, extra_body={"voidpad": {"special_tokens": True}}
        )


# Other routes


def test_models_health_ready_metrics_and_page(running, client):
    [listed] = client.models.list().data
    assert listed.id == "tiny-void"
    assert client.models.retrieve("tiny-void").model_extra["voidpad"]["family"] == "llada"
    assert running.get("/health").json() == {"status": "ok"}
    ready = running.get("/ready")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    ask(client, PROMPTS[0])
    until(lambda: not running.engine.rows)  # an answer may be complete before its row has ended
    text = running.get("/metrics").text
    for name in ("requests_total", "passes_total", "rows_live 0.0", "queue_seconds_count",
                 "time_to_first_token_seconds_count", "tokens_per_pass_count", 'model{name="tiny-void"}',
                 "device_memory_bytes"):  # fmt: skip
        assert f"voidpad_{name}" in text
    page = running.get("/")
    assert page.headers["content-type"].startswith("text/html")
    specification = running.get("/openapi.json").json()
    assert specification["info"]["version"] == version("voidpad")
    assert "securitySchemes" not in specification["components"]
    assert set(specification["paths"][CHAT]["post"]["responses"]) == {"200", "400", "default"}


def test_several_models_are_chosen_by_name(model):
    other = random_model("llada", kv_heads=2, seed=9)
    other.net.double()
    with serving({"one": model, "two": other}, **PLAN) as running:
        assert [one.id for one in running.client.models.list().data] == ["one", "two"]
        for name, chosen in (("one", model), ("two", other)):
            messages = [{"role": "user", "content": PROMPTS[0]}]
            reply = running.client.chat.completions.create(model=name, messages=messages, seed=0)
            assert (reply.model, reply.choices[0].message.content) == (
                name,
                expected(chosen, PROMPTS[0]).text,
            )
        with pytest.raises(openai.NotFoundError):
            ask(running.client, PROMPTS[0])


def test_keys(model, tmp_path):
    path = tmp_path / "keys"
    path.write_text("let-me-in\n")
    path.chmod(0o600)
    with serving(model, **PLAN, api_keys=path, origins=("https://app.example",)) as running:
        refused = running.post(ASKED, origin="https://app.example")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        for path, status in (("/metrics", 401), ("/v1/models", 401), ("/", 200), ("/health", 200)):
            assert running.get(path).status_code == status
        with pytest.raises(openai.AuthenticationError):
            running.client.models.list()
        right = running.client.with_options(api_key="let-me-in")
        assert [one.id for one in right.models.list().data] == ["tiny-void"]
        specification = running.get("/openapi.json", headers={"Authorization": "Bearer let-me-in"}).json()
        assert specification["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
        assert specification["paths"][CHAT]["post"]["security"] == [{"HTTPBearer": []}]
        assert "security" not in specification["paths"]["/health"]["get"]


# lm-eval's own clients


def lm_eval_requests(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, one, place) for place, one in enumerate(arguments)]


def test_lm_evals_clients_get_what_generate_gives(running, model):
    """`local-completions` with texts, and `local-chat-completions` with a conversation, as lm-eval sends them."""
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

    shared = {"model": "tiny-void", "tokenizer_backend": None, "num_concurrent": 2, "max_retries": 1}
    options = {"until": ["###"], "max_gen_toks": 24}
    limits = {**PLAN["fields"], "canvas": 24}
    plain = LocalCompletionsAPI(base_url=running.url + COMPLETIONS, tokenized_requests=False, **shared)
    asked = lm_eval_requests("generate_until", [(prompt, dict(options)) for prompt in PROMPTS[:3]])
    wanted = model.generate(PROMPTS[:3], PLAN["plan"], raw=True, **limits)
    assert plain.generate_until(asked, disable_tqdm=True) == [result.text for result in wanted]
    chat = LocalChatCompletion(base_url=running.url + CHAT, **shared)
    turns = [chat.apply_chat_template([{"role": "user", "content": prompt}]) for prompt in PROMPTS[:3]]
    asked = lm_eval_requests("generate_until", [(one, dict(options)) for one in turns])
    wanted = model.generate(PROMPTS[:3], PLAN["plan"], **limits)
    assert chat.generate_until(asked, disable_tqdm=True) == [result.text for result in wanted]


def test_lm_evals_likelihoods_are_the_chain_rule_from_left_to_right(running, model, tmp_path):
    """Each token given those before it, all later ones masked; whatever the split into context and continuation."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model.tokenizer.save_pretrained(tmp_path)
    asking = LocalCompletionsAPI(
        base_url=running.url + COMPLETIONS,
        model="tiny-void",
        tokenizer=str(tmp_path),
        tokenizer_backend="huggingface",
    )
    pairs = [("two and", " two"), ("two", " and two"), ("name a", " day")]
    found = asking.loglikelihood(lm_eval_requests("loglikelihood", pairs), disable_tqdm=True)
    for (context, continuation), (value, greedy) in zip(pairs, found, strict=True):
        start = len(asking.tok_encode(context))
        total, likeliest, ids = 0.0, True, asking.tok_encode(context + continuation)
        for place in range(start, len(ids)):
            hidden = [*ids[:place], *[model.roles.mask] * (len(ids) - place)]
            with torch.no_grad():
                scores = model.net(torch.tensor([hidden])).logits[0, place].log_softmax(-1)
            total += float(scores[ids[place]])
            likeliest = likeliest and int(scores.argmax()) == ids[place]
        assert value == pytest.approx(total, abs=1e-4)
        assert greedy == likeliest
    reply = running.client.completions.create(
        model="tiny-void", prompt=PROMPTS[:2], echo=True, max_tokens=0, logprobs=2
    )
    assert [choice.text for choice in reply.choices] == PROMPTS[:2]
    assert reply.usage.completion_tokens == 0
    for choice in reply.choices:
        assert choice.logprobs.token_logprobs[0] is None
        assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
