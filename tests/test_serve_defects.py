# ruff: noqa: F811  the fixtures of test_serve.py
"""Life, limits and attacks: what once ended the server, leaked, hung or answered with status 500."""

import contextlib
import itertools
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch

from serving import CHAT, serving, until
from test_serve import ASKED, PLAN, PROMPTS, ask, expected, model, running  # noqa: F401
from voidpad.decode.presets import PRESETS, schema
from voidpad.serve import server as server_module
from voidpad.serve.monitoring import LogLines

ENDLESS = {**PLAN, "plan": "original", "fields": {"canvas": 480, "block": 480, "ban": "ends"}}
SHORT = {**ASKED, "max_tokens": 1}
WHOLE_HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

# Hostile bodies


def test_every_number_of_a_plan_is_bounded_where_it_is_declared(running):
    """Numbers of 31 and 301 digits once ended the process."""
    plans = {}
    for plan in PRESETS:
        for name, about in schema(plan).items():
            if about["type"] in ("integer", "number"):
                plans[name] = plan
                assert {"maximum", "exclusiveMaximum"} & set(about), (plan, name)
    assert {"block", "canvas", "steps", "unit", "cap", "minimum", "grow", "check", "temperature"} <= set(
        plans
    )
    for name, plan in plans.items():
        for value in (10**30, 10**300):
            reply = running.post({**SHORT, "voidpad": {"plan": plan, name: value}})
            assert reply.status_code == 400
            assert reply.json()["error"]["param"].endswith(name)
    assert running.post(SHORT).status_code == 200


def test_long_texts_are_refused_by_their_characters_before_they_are_tokenized(running):
    reply = running.post({**ASKED, "messages": [{"role": "user", "content": "word " * 150_000}]})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "750000 characters" in error["message"]


# Headers and connections


def test_health_request_ids_hosts_and_origins(running):
    assert httpx.head(running.url + "/health", timeout=60).status_code == 200
    with running.connect(b"GET /health HTTP/1.0\r\n\r\n") as old:
        assert b" 200 " in old.recv(4096).split(b"\r\n")[0]
    assert running.post(SHORT, x_request_id="mine-7").headers["x-request-id"] == "mine-7"
    assert running.post(SHORT, x_request_id="a b").headers["x-request-id"].startswith("req_")
    assert running.post(SHORT, origin=running.url).status_code == 200
    for name, value in (
        ("host", "evil.example"), ("origin", "http://["), ("origin", "http://evil.example"), ("origin", "null")
    ):  # fmt: skip
        refused = running.post(SHORT, **{name: value})
        assert refused.status_code == 403
        assert f"--allowed-{name}" in refused.json()["error"]["message"]
        assert "access-control-allow-origin" not in refused.headers


def test_a_trusted_page_gets_cors_headers(model):
    page = "https://app.example"
    with serving(model, **PLAN, origins=(page,)) as running:
        wanted = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        asked = httpx.options(running.url + CHAT, headers={"Origin": page, **wanted}, timeout=60)
        assert asked.status_code == 200
        assert "authorization" in asked.headers["access-control-allow-headers"].lower()
        reply = running.post(SHORT, origin=page)
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, page)
        assert running.post(SHORT, origin="https://evil.example").status_code == 403


def ended(connection):
    """Whether the server has closed a connection without an answer."""
    try:
        return connection.recv(10) == b""
    except ConnectionError:
        return True


def test_heads_that_never_end_are_closed(model, monkeypatch):
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)
    with serving(model, **PLAN) as running:
        for sent in (b"", b"GET /health HTTP/1.1\r\nHost: loc"):
            with running.connect(sent) as connection:
                assert ended(connection)
    monkeypatch.undo()
    with serving(model, **PLAN) as running, running.connect(WHOLE_HEAD) as connection:
        answer = b""
        while b'"ok"' not in answer:
            answer += connection.recv(4096)
        monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)  # for the second request of a connection
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert ended(connection)
        assert running.get("/health").status_code == 200


def test_connections_beyond_the_cap_are_closed_with_one_log_line(model, caplog, monkeypatch):
    monkeypatch.setattr(server_module._Connection, "_said", -60.0)
    with caplog.at_level(logging.WARNING, "voidpad.serve"), serving(model, **PLAN, connections=4) as running:
        held = [running.connect() for _ in range(30)]
        assert all(ended(connection) for connection in held[4:])
        for connection in held:
            connection.close()
        until(lambda: answers(running))
    # One in ten seconds: on a slow machine there may be more.
    assert 1 <= len([one for one in caplog.records if "connections" in one.message]) < 26


def answers(running):
    with contextlib.suppress(httpx.TransportError):
        return running.get("/health").status_code == 200


def test_a_flood_of_headers_is_cut_off(running):
    with running.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\n") as connection:
        try:
            for number in range(20_000):
                connection.sendall(b"X-%d: %s\r\n" % (number, b"y" * 100))
            answer = connection.recv(4096)
        except ConnectionError:
            return  # the server closed the connection
        assert answer == b"" or b" 4" in answer.split(b"\r\n")[0]


def test_a_half_closed_client_gets_its_answer(running):
    with running.asking({**ASKED, "max_tokens": 8}) as connection:
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while b'"finish_reason"' not in received:
            part = connection.recv(65536)
            assert part, received
            received += part
    assert b" 200 " in received


def test_a_client_that_leaves_during_its_body_is_no_failure(running, caplog):
    with caplog.at_level(logging.INFO, "voidpad.serve"):
        running.asking(ASKED, size=1000).close()
        until(lambda: any(getattr(one, "request", {}).get("status") == 499 for one in caplog.records))
    assert not any(one.exc_info for one in caplog.records)


def test_a_body_that_never_comes_is_not_waited_for(model):
    with serving(model, **PLAN, timeout=0.5) as running, running.asking(ASKED, size=1000) as connection:
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


# Rows that end before their answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_rows(model, stream):
    with serving(model, **ENDLESS, rows=4) as running:
        with running.held():
            connection = running.asking({**ASKED, "stream": stream, "n": 3})
            until(lambda: running.engine.live == 3)
            connection.close()
            until(lambda: not running.state.active)
        until(lambda: running.cancelled("cancelled") == 3)
        assert not running.engine.rows


def test_a_full_queue_refuses_until_there_is_room(model):
    with serving(model, **ENDLESS, rows=1, queue=2) as running:
        with running.held():
            held = [running.asking(ASKED) for _ in range(3)]
            until(lambda: running.engine.live == 1 and len(running.engine.rows) == 3)
            assert running.get("/ready").status_code == 503
            with pytest.raises(openai.RateLimitError) as refused:
                ask(running.client, PROMPTS[1])
            assert refused.value.response.headers["retry-after"] == "1"
            for connection in held:
                connection.close()
            until(lambda: not running.state.active)
        until(lambda: not running.engine.rows)
        assert running.get("/ready").status_code == 200


def test_an_answer_that_takes_too_long_is_a_timeout(model):
    with serving(model, **ENDLESS, rows=1, timeout=1.0) as running:
        with running.held():
            connection = running.asking(ASKED)
            time.sleep(1.1)  # the deadline passes while a pass runs, or before the rows have started
        reply = connection.recv(65536).lower()
        assert b" 504 " in reply.split(b"\r\n")[0]
        assert b"x-should-retry: false" in reply
        until(lambda: not running.engine.rows)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("block", [160, 16])
def test_at_its_deadline_a_row_has_sent_the_finished_prefix_and_no_end(model, block, stream):
    plan = {"plan": "original", "canvas": 160, "ban": "ends", "block": block}
    [whole] = model.generate([PROMPTS[0]], seed=0, **plan)
    with serving(model, **PLAN) as running:
        engine, passes = running.engine.engine, itertools.count(1)
        denoise = engine.denoise

        def late(canvas, where):
            if next(passes) == 80:  # as the engine does at the moment of the deadline
                engine.end_early(int(canvas.handle[0]), "deadline")
            return denoise(canvas, where)

        engine.denoise = late
        messages = [{"role": "user", "content": PROMPTS[0]}]
        reply = running.post({**ASKED, "messages": messages, "seed": 0, "stream": stream, "voidpad": plan})
    if not stream:
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
        return
    # Every event is JSON: there is no [DONE].
    *parts, last = [json.loads(event.removeprefix("data: ")) for event in reply.text.split("\n\n") if event]
    assert last["error"]["code"] == "timeout"
    choices = [part["choices"][0] for part in parts]
    sent = "".join(choice["delta"].get("content", "") for choice in choices)
    assert whole.text.startswith(sent)
    assert sent != whole.text
    assert len(sent) > 20 or block == 160  # with one block the leftmost tokens may come last
    assert not any(choice["finish_reason"] for choice in choices)


def test_a_drain_that_runs_out_is_an_error_and_no_answer(model):
    with serving(model, **ENDLESS, rows=4) as running, ThreadPoolExecutor(2) as clients, running.held():
        whole, streamed = (
            clients.submit(running.post, {**ASKED, "stream": stream}) for stream in (False, True)
        )
        until(lambda: running.engine.live == 2)
        running.engine.loop.call_soon_threadsafe(running.server.stop)
        replies = [whole.result(600), streamed.result(600)]
    assert replies[0].status_code == 503
    assert replies[0].json()["error"]["code"] == "shutting_down"
    assert "[DONE]" not in replies[1].text
    assert '"shutting_down"' in replies[1].text.strip().split("\n\n")[-1]


def test_a_pass_that_fails_for_one_request_fails_that_request_alone(model):
    poison, right = "never", PROMPTS[:3]
    marked = set(model.encode(poison)) - {token for prompt in right for token in model.encode(prompt)}
    with serving(model, **PLAN) as running, ThreadPoolExecutor(4) as clients:
        denoise, together = running.engine.engine.denoise, threading.Event()

        def broken(canvas, where):
            if together.is_set() and marked & set(
                canvas.ids[canvas.offset < canvas.prompt[:, None]].tolist()
            ):
                raise RuntimeError("out of memory\x1b[2J")
            return denoise(canvas, where)

        running.engine.engine.denoise = broken
        with running.held():
            asked = [clients.submit(ask, running.client, prompt) for prompt in (poison, *right)]
            until(lambda: running.engine.live == 4)
            together.set()
            wrong, *found = asked
        with pytest.raises(openai.InternalServerError, match=r"a pass failed: out of memory\\x1b"):
            wrong.result(600)
        assert [one.result(600).choices[0].message.content for one in found] == [
            expected(model, prompt).text for prompt in right
        ]


@pytest.mark.parametrize("part", ["logprobs.SlotLogprobs.add", "live.Choice.feed"])
def test_an_answer_that_cannot_be_read_or_written_fails_alone(model, monkeypatch, part):
    def broken(self, *given):
        raise RuntimeError("no such slot")

    with serving(model, **PLAN) as running:
        with monkeypatch.context() as patch:
            patch.setattr(f"voidpad.serve.{part}", broken)
            reply = running.post({**ASKED, "logprobs": True})
        assert (reply.status_code, "no such slot" in reply.text) == (500, True)
        assert running.post(SHORT).status_code == 200
        assert running.get("/ready").status_code == 200


def test_only_the_loss_of_the_device_ends_the_server(model):
    def lost(canvas, where):
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    with serving(model, **PLAN) as running:
        running.engine.engine.denoise = lost
        with pytest.raises(openai.InternalServerError):
            ask(running.client, PROMPTS[4])
        until(lambda: running.server.should_exit)
        assert running.server.failure is not None


def test_prompts_and_schemas_that_take_long_hold_up_nobody_else(model, monkeypatch):
    free, compiled = threading.Event(), type(model).constrain

    def slowly(self, *given, **named):
        assert free.wait(600)
        return compiled(self, *given, **named)

    monkeypatch.setattr(type(model), "constrain", slowly)
    with serving(model, **PLAN) as running, ThreadPoolExecutor(40) as clients:
        wanted = {**ASKED, "structured_outputs": {"choice": ["1", "2"]}}
        held = [clients.submit(running.post, wanted) for _ in range(40)]
        until(lambda: running.state.active == 40)
        try:
            assert ask(running.client, PROMPTS[0]).choices[0].message.content
            assert not any(one.done() for one in held)
        finally:
            free.set()
        assert {one.result(600).status_code for one in held} == {200}


def test_every_pass_counts_as_decoding_and_none_as_waiting(model):
    with serving(model, **PLAN) as running:
        denoise = running.engine.engine.denoise
        running.engine.engine.denoise = lambda canvas, where: time.sleep(0.03) or denoise(canvas, where)
        spent = ask(running.client, PROMPTS[0]).choices[0].model_extra["voidpad"]
        assert spent["decode_seconds"] >= 0.03 * spent["passes_decode"]
        assert spent["queue_seconds"] >= 0


# The log, and what names the server


@pytest.mark.parametrize("prompts", [False, True])
def test_the_log_says_why_a_request_was_refused(model, caplog, prompts):
    """The field or the code, without what the user wrote unless prompts may be logged."""
    options = {**PLAN, "log_prompts": prompts}
    with caplog.at_level(logging.INFO, "voidpad.serve"), serving(model, **options) as running:
        for body in ({"temperature": -1}, {"voidpad": {"plan": "my secret"}}):
            assert running.post({**ASKED, **body}).status_code == 400
        assert running.get("/v1/models/none").status_code == 404
        until(lambda: len([one for one in caplog.records if hasattr(one, "request")]) == 3)
    logged = [one.request["refused"] for one in caplog.records if hasattr(one, "request")]
    if prompts:
        assert "my secret" in logged[1]
    else:
        assert logged == ["temperature", "voidpad.plan", "model_not_found"]


def test_nothing_a_client_sent_can_write_to_the_terminal_of_the_log():
    record = logging.LogRecord("voidpad.serve", logging.INFO, "", 0, "request", (), None)
    record.request = {"path": "/\x1b[2J\nstatus=200 %s"}
    line = LogLines(as_json=False).format(record)
    assert line.endswith(r"path=/\x1b[2J\nstatus=200 %s")
    assert line.isprintable()
    try:
        raise ValueError("\x1b[2J")
    except ValueError as error:
        record.exc_info, record.request = (ValueError, error, error.__traceback__), None
    assert "\x1b" not in LogLines(as_json=False).format(record)


def test_the_fingerprint_is_the_same_at_every_start(model):
    seen = set()
    for _ in range(2):
        with serving(model, **PLAN) as running:
            seen.add(running.get("/v1/models/tiny-void").json()["voidpad"]["fingerprint"])
    assert len(seen) == 1
