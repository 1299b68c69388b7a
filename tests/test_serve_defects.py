# ruff: noqa: F811  the fixtures of test_serve.py
"""Life, limits and attacks: what once ended the server, leaked, hung or answered with status 500."""

import logging
import socket
import threading
import time

import httpx
import openai
import pytest
import torch

from serving import CHAT, serving, until
from test_serve import ASKED, PLAN, PROMPTS, ask, model, running  # noqa: F401
from voidpad.serve import server as server_module
from voidpad.serve.monitoring import LogLines

ENDLESS = {**PLAN, "plan": "original", "fields": {"canvas": 480, "block": 480, "ban": "ends"}}
SHORT = {**ASKED, "max_tokens": 1}

# Hostile bodies

NUMBERS = [
    ("rho-eos", "block"), ("daedal", "block"), ("void", "steps"), ("void", "canvas"), ("rho-eos", "unit"),
    ("rho-eos", "cap"), ("rho-eos", "adjust"), ("rho-eos", "minimum"), ("daedal", "grow"), ("daedal", "check"),
    ("void-expansion", "limit"), ("void", "temperature"), ("void", "top_k"),
]  # fmt: skip
HUGE = {
    f"{plan} {name} {size:.0e}": {"plan": plan, name: size}
    for plan, name in NUMBERS
    for size in (10**30, 10**300)
}
ODD = {
    "temperature": {"temperature": 1e300},
    "name": {"name": "x"},
    "self": {"self": 1},
    "defaults": {"defaults": {}},
    "calibration": {"calibration": {}},
    "ban": {"ban": {"a": [1]}},
    "mute": {"mute": [[1]]},
    "delimiters": {"delimiters": 5},
}


@pytest.mark.parametrize("extension", [*HUGE.values(), *ODD.values()], ids=[*HUGE, *ODD])
def test_no_plan_field_of_a_request_fails_the_server(running, extension):
    reply = running.post({**ASKED, "voidpad": extension})
    assert reply.status_code == 400, reply.text
    assert running.post(SHORT).status_code == 200


@pytest.mark.parametrize(
    "field",
    [
        '"user": "\\ud800"',
        '"stop": "\\udfff"',
        '"\\ud800": 1',
        '"voidpad": {"plan": "\\ud800"}',
        '"voidpad": {"\\ud800": 1}',
        '"messages": [{"role": "user", "content": "\\ud800"}]',
        '"structured_outputs": {"regex": "\\ud800"}',
        '"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "\\ud800"}}}',
    ],
)
def test_lone_surrogates_are_refused(running, field):
    body = '{"model": "tiny-void", "messages": [{"role": "user", "content": "x"}], ' + field + "}"
    assert running.post(body.encode()).status_code == 400


def test_long_texts_are_refused_before_they_are_tokenized(running):
    begun = time.monotonic()
    reply = running.post({**ASKED, "messages": [{"role": "user", "content": "word " * 150_000}]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert time.monotonic() - begun < 5


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
        with running.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
            answer = b""
            while b'"ok"' not in answer:
                answer += connection.recv(4096)
            connection.sendall(b"GET /hea")
            assert ended(connection)
        assert running.get("/health").status_code == 200


def test_connections_beyond_the_cap_are_closed_with_one_log_line(model, caplog):
    with caplog.at_level(logging.WARNING, "voidpad.serve"), serving(model, **PLAN, connections=4) as running:
        held = [running.connect() for _ in range(30)]
        assert all(ended(connection) for connection in held[4:])
        for connection in held:
            connection.close()
        until(lambda: running.get("/health").status_code == 200)
    assert len([one for one in caplog.records if "connections" in one.message]) == 1


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
        connection = running.asking(ASKED, size=1000)
        time.sleep(0.2)
        connection.close()
        until(lambda: any(getattr(one, "request", {}).get("status") == 499 for one in caplog.records))
    assert not any(one.exc_info for one in caplog.records)


def test_a_body_that_never_comes_is_not_waited_for(model):
    with serving(model, **PLAN, timeout=0.5) as running, running.asking(ASKED, size=1000) as connection:
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


# Rows that end before their answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_rows(model, stream):
    with serving(model, **ENDLESS, rows=4) as running:
        running.slow_down(0.05)  # 480 passes: far longer than the test waits
        connection = running.asking({**ASKED, "stream": stream, "n": 3})
        until(lambda: running.engine.live == 3)
        connection.close()
        until(lambda: not running.engine.rows, seconds=15)


def test_a_full_queue_refuses_until_there_is_room(model):
    with serving(model, **ENDLESS, rows=1, queue=2, timeout=6000.0) as running:
        running.slow_down()
        held = [running.asking(ASKED)]
        until(lambda: running.engine.live == 1)
        held += [running.asking(ASKED), running.asking(ASKED)]
        until(lambda: len(running.engine.rows) == 3)
        assert running.get("/ready").status_code == 503
        with pytest.raises(openai.RateLimitError) as refused:
            ask(running.client, PROMPTS[1])
        assert refused.value.response.headers["retry-after"] == "1"
        for connection in held:
            connection.close()
        until(lambda: not running.engine.rows)
        assert running.get("/ready").status_code == 200


def test_an_answer_that_takes_too_long_is_a_timeout(model):
    with serving(model, **ENDLESS, rows=1, timeout=2.0) as running:
        running.slow_down()
        with pytest.raises(openai.APIStatusError) as late:
            ask(running.client, PROMPTS[0])
        assert late.value.status_code == 504
        assert late.value.response.headers["x-should-retry"] == "false"
        until(lambda: not running.engine.rows)


@pytest.mark.parametrize("fields", [{"block": 160}, {"block": 16}])
def test_a_stream_that_is_cut_off_has_sent_the_finished_prefix_and_no_end(model, fields):
    plan = {"plan": "original", "canvas": 160, "ban": "ends", **fields}
    [whole] = model.generate([PROMPTS[0]], seed=0, **plan)
    with serving(model, **PLAN, timeout=2.0) as running:
        running.slow_down()
        chunks = []
        stream = ask(running.client, PROMPTS[0], stream=True, extra_body={"voidpad": plan})
        with pytest.raises(openai.APIError, match="timeout"):
            chunks.extend(chunk.choices[0] for chunk in stream)
    sent = "".join(choice.delta.content or "" for choice in chunks)
    assert whole.text.startswith(sent)
    assert sent != whole.text
    # With one block the leftmost tokens may come last, so how much is finished after two seconds is left open.
    assert sent or fields["block"] == 160
    assert not any(choice.finish_reason for choice in chunks)


def test_a_drain_that_runs_out_is_an_error_and_no_answer(model):
    with serving(model, **ENDLESS, rows=4) as running:
        running.slow_down()
        replies = {}

        def asked(stream):
            replies[stream] = running.post({**ASKED, "stream": stream})

        threads = [threading.Thread(target=asked, args=(stream,)) for stream in (False, True)]
        for thread in threads:
            thread.start()
        until(lambda: running.engine.live == 2)
        running.engine.loop.call_soon_threadsafe(running.server.stop)
        for thread in threads:
            thread.join(60)
    assert replies[False].status_code == 503
    assert replies[False].json()["error"]["code"] == "shutting_down"
    assert "[DONE]" not in replies[True].text
    assert '"shutting_down"' in replies[True].text.strip().split("\n\n")[-1]


def test_failed_passes_fail_their_rows_and_only_the_loss_of_the_device_ends_the_server(model):
    with serving(model, **PLAN) as running:
        engine = running.engine.engine
        right, error = engine.denoise, RuntimeError("out of memory")

        def broken(canvas, where):
            raise error

        engine.denoise = broken
        for _ in range(3):
            with pytest.raises(openai.InternalServerError, match="a pass failed"):
                ask(running.client, PROMPTS[4])
        engine.denoise = right
        assert ask(running.client, PROMPTS[4]).choices[0].finish_reason == "stop"
        engine.denoise, error = broken, torch.AcceleratorError("CUDA error: unspecified launch failure")
        with pytest.raises(openai.InternalServerError):
            ask(running.client, PROMPTS[4])
        until(lambda: running.server.should_exit)
        assert running.server.failure is not None


def test_every_pass_counts_as_decoding_and_none_as_waiting(model):
    with serving(model, **PLAN) as running:
        running.slow_down(0.03)
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
