"""What attacks and load once broke: each case ended the server, leaked, or answered with status 500."""

import json
import logging
import socket
import threading
import time

import httpx
import openai
import pytest

from serving import serving
from test_serve import CHAT, ENDLESS, PLAN, ROUTES, asking, model, slowed, until  # noqa: F401  `model` is a fixture
from voidpad.serve import server as server_module


@pytest.fixture(scope="module")
def running(model):  # noqa: F811
    with serving(model, **PLAN, rows=8) as server:
        yield server


def post(running, body, **options):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **options.pop("headers", {})}
    return httpx.post(running.url + ROUTES["chat"], content=content, headers=headers, timeout=600, **options)


HUGE = {
    "rho-eos": {"plan": "rho-eos", "block": 10**30},
    "daedal": {"plan": "daedal", "block": 10**300},
    **{
        f"{plan} {name}": {"plan": plan, name: 10**300}
        for plan, name in (
            ("void", "steps"),
            ("rho-eos", "unit"),
            ("rho-eos", "cap"),
            ("rho-eos", "adjust"),
            ("rho-eos", "minimum"),
            ("daedal", "grow"),
            ("daedal", "check"),
        )
    },
    "temperature": {"temperature": 1e300},
    "name": {"name": "x"},
    "self": {"self": 1},
    "defaults": {"defaults": {}},
    "calibration": {"calibration": {}},
    "ban": {"ban": {"a": [1]}},
    "mute": {"mute": [[1]]},
}


@pytest.mark.parametrize("name", HUGE)
def test_no_plan_field_of_a_request_fails_the_server(running, name):
    reply = post(running, {**CHAT, "voidpad": HUGE[name]})
    assert reply.status_code == 400, reply.text
    assert post(running, {**CHAT, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "tiny-void", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny-void", "messages": [{"role": "user", "content": "x"}], "stop": "\\udfff"}',
        b'{"model": "tiny-void", "messages": [{"role": "user", "content": "x"}], "\\ud800": 1}',
        b'{"model": "tiny-void", "messages": [{"role": "user", "content": "x"}], "voidpad": {"plan": "\\ud800"}}',
    ],
)
def test_lone_surrogates_are_refused(running, body):
    assert post(running, body).status_code == 400


def test_health_and_headers(running):
    assert httpx.head(running.url + "/health", timeout=60).status_code == 200
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as old:
        old.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in old.recv(4096).split(b"\r\n")[0]
    assert post(running, {**CHAT, "max_tokens": 1}, headers={"Origin": "http://["}).status_code == 403
    named = post(running, {**CHAT, "max_tokens": 1}, headers={"X-Request-Id": "mine-7"})
    assert named.headers["x-request-id"] == "mine-7"
    assert post(running, {**CHAT, "max_tokens": 1}).headers["x-request-id"].startswith("req_")
    refused = post(running, CHAT, headers={"Origin": "https://other.example"})
    assert "--allowed-origin" in refused.json()["error"]["message"]


def test_a_trusted_page_gets_cors_headers(model):  # noqa: F811
    with serving(model, **PLAN, origins=("https://app.example",)) as running:
        headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        asked = httpx.options(running.url + ROUTES["chat"], headers=headers, timeout=60)
        assert asked.status_code == 204
        assert "authorization" in asked.headers["access-control-allow-headers"]
        reply = post(running, {**CHAT, "max_tokens": 1}, headers={"Origin": "https://app.example"})
        assert reply.headers["access-control-allow-origin"] == "https://app.example"


def test_a_lenient_server_names_what_it_ignores(model):  # noqa: F811
    with serving(model, **PLAN, lenient=True) as running:
        reply = post(running, {**CHAT, "max_tokens": 1, "frequency_penalty": 0.5, "top_k": 3})
        assert reply.status_code == 200
        assert set(reply.headers["x-voidpad-ignored"].split(",")) == {"frequency_penalty", "top_k"}


def test_a_drain_that_runs_out_is_an_error_and_no_answer(model):  # noqa: F811
    with serving(model, **ENDLESS, rows=4) as running:
        slowed(running)
        replies = {}

        def ask_whole():
            replies["whole"] = post(running, CHAT)

        def ask_streamed():
            body = {**CHAT, "stream": True}
            with httpx.stream("POST", running.url + ROUTES["chat"], json=body, timeout=600) as reply:
                replies["streamed"] = list(reply.iter_lines())

        threads = [threading.Thread(target=one) for one in (ask_whole, ask_streamed)]
        for thread in threads:
            thread.start()
        until(lambda: running.state.engine.live == 2)
        running.state.engine.loop.call_soon_threadsafe(running.server._stop)
        for thread in threads:
            thread.join(60)
    assert replies["whole"].status_code == 503
    assert replies["whole"].json()["error"]["code"] == "shutting_down"
    assert not any("[DONE]" in line for line in replies["streamed"])
    assert '"shutting_down"' in [line for line in replies["streamed"] if line][-1]


def test_long_texts_are_refused_before_they_are_tokenized(running):
    text = "word " * 150_000
    begun = time.monotonic()
    reply = post(running, {**CHAT, "messages": [{"role": "user", "content": text}]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert time.monotonic() - begun < 5


def ended(connection):
    """Whether the server has closed a connection without an answer."""
    try:
        return connection.recv(10) == b""
    except ConnectionError:
        return True


def test_heads_that_never_end_are_closed(model, monkeypatch):  # noqa: F811
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)
    with (
        serving(model, **PLAN) as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=60) as silent,
        socket.create_connection(("127.0.0.1", running.port), timeout=60) as half,
    ):
        half.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        for connection in (silent, half):
            assert ended(connection)
        assert httpx.get(running.url + "/health", timeout=60).status_code == 200


def test_connections_beyond_the_cap_are_closed_with_one_log_line(model, caplog):  # noqa: F811
    with caplog.at_level(logging.WARNING, "voidpad.serve"), serving(model, **PLAN, connections=4) as running:
        held = [socket.create_connection(("127.0.0.1", running.port), timeout=60) for _ in range(30)]
        assert all(ended(connection) for connection in held[4:])
        for connection in held:
            connection.close()
        until(lambda: httpx.get(running.url + "/health", timeout=60).status_code == 200)
    assert len([one for one in caplog.records if "connections" in one.message]) == 1


def test_a_half_closed_client_gets_its_answer(running):
    with asking(running, max_tokens=8) as connection:
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while b'"finish_reason"' not in received:
            part = connection.recv(65536)
            assert part, received
            received += part
    assert b" 200 " in received


def test_a_client_that_has_gone_is_told_from_one_that_only_closed_its_side(model):  # noqa: F811
    with serving(model, **ENDLESS, rows=2) as running:
        slowed(running, 0.05)  # 480 passes: far longer than the test waits
        connection = asking(running)
        until(lambda: running.state.engine.live == 1)
        connection.close()
        until(lambda: not running.state.engine.rows, seconds=15)


def test_a_client_that_leaves_during_its_body_is_no_failure(running, caplog):
    with caplog.at_level(logging.INFO, "voidpad.serve"):
        connection = socket.create_connection(("127.0.0.1", running.port), timeout=60)
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        time.sleep(0.2)
        connection.close()
        until(lambda: any(getattr(one, "request", {}).get("status") == 499 for one in caplog.records))
    assert not any(one.exc_info for one in caplog.records)


def test_the_fingerprint_is_the_same_at_every_start(model):  # noqa: F811
    seen = set()
    for _ in range(2):
        with serving(model, **PLAN) as running:
            client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
            seen.add(client.models.retrieve("tiny-void").model_extra["voidpad"]["fingerprint"])
    assert len(seen) == 1
