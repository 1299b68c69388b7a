"""The server as a process: start, refusals at start, SIGTERM, and load."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from voidpad.commands import cli
from voidpad.engine.speed import switched_on
from voidpad.errors import VoidpadError
from voidpad.serve.options import ServeOptions
from voidpad.serve.server import serve

ROOT = Path(__file__).parents[1]


def start(*options, files=None):
    """`voidpad serve` on a free port; (process, address). `process.first_line` is what it said at its start.

    `files` is the most file descriptors it may have.
    """

    def limit():
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    command = [sys.executable, "-m", "voidpad", "serve", "--port", "0", *map(str, options)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=limit
    )
    for line in process.stderr:
        if " at http://" in line:
            process.first_line = line
            return process, line.split(" at ")[1].split()[0]
    process.wait(10)
    raise AssertionError(f"the server ended with status {process.returncode}")


def ask(address, **fields):
    body = {
        "model": "tiny-void",
        "messages": [{"role": "user", "content": "12 * 3 - 6"}],
        "seed": 0,
        **fields,
    }
    return httpx.post(address + "/v1/chat/completions", json=body, timeout=600)


def unfinished(address):
    """A connection whose request has begun and whose body is not sent; until then the server does not end."""
    connection = socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), timeout=600)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    assert b" 100 " in connection.recv(4096).split(b"\r\n")[0]
    return connection


def test_sigterm_lets_live_answers_finish_and_ends_with_status_0():
    process, address = start("--log-json", "--drain", 1200, "--timeout", 1200)
    try:
        with (
            unfinished(address) as connection,
            httpx.stream(
                "POST",
                address + "/v1/chat/completions",
                json={
                    "model": "tiny-void",
                    "messages": [{"role": "user", "content": "12 * 3 - 6"}],
                    "stream": True,
                    "voidpad": {"plan": "original", "canvas": 256, "block": 256, "ban": "ends"},  # 256 passes
                },
                timeout=600,
            ) as reply,
        ):
            lines = reply.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            while not httpx.get(address + "/ready", timeout=600).json()["draining"]:
                time.sleep(0.01)
            refused = ask(address)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            rest = list(lines)
            connection.sendall(b"{}")
            assert b" 400 " in connection.recv(4096).split(b"\r\n")[0]
        assert "data: [DONE]" in rest
        assert process.wait(300) == 0
    finally:
        process.kill()
    logged = [json.loads(line) for line in process.stderr if line.startswith("{")]
    served = next(one for one in logged if one.get("status") == 200)
    assert {"id", "prompt_tokens", "answer_tokens", "passes", "seconds"} <= set(served)
    assert "12 * 3" not in json.dumps(logged)


def test_refused_bodies_of_a_million_characters_leave_no_memory():
    process, address = start("--max-body", str(2 << 20))

    def memory():
        time.sleep(2.5)  # an idle server gives memory back
        return psutil.Process(process.pid).memory_info().rss / 2**20

    def send(_):
        body = {"model": "tiny-void", "prompt": "word " * 200_000, "max_tokens": 1}
        return httpx.post(address + "/v1/completions", json=body, timeout=600).status_code

    try:
        assert ask(address, max_tokens=8).status_code == 200
        before = memory()
        with ThreadPoolExecutor(12) as pool:
            assert set(pool.map(send, range(12))) == {400}
        assert memory() < before + 100
    finally:
        process.kill()


def test_more_connections_than_files_cost_one_log_line():
    process, address = start(files=256)
    port = int(address.rsplit(":", 1)[1])
    try:
        with contextlib.ExitStack() as held:
            for _ in range(450):
                held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=600))
            time.sleep(2)
        while ask(address, max_tokens=8).status_code != 200:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        refused = [line for line in process.stderr if "path=/v1/chat" not in line]
        assert len(refused) == 1
        assert "connections" in refused[0]
    finally:
        process.kill()


def test_the_first_line_names_the_approximations_of_a_speed():
    process, address = start("--speed", "fastest")
    try:
        assert process.first_line == (
            f"voidpad serves tiny-void at {address} (plan void-expansion); "
            "approximate: entropy_bound=0.1, entropy_order=entropy, cache=ahead:3; Ctrl-C stops it.\n"
        )
    finally:
        process.kill()
    assert switched_on({"threshold": 0.0, "canvas": 64, "trim": True}, None) == ["trim=True"]
    assert switched_on({"canvas": 64}, None) == []


def test_a_port_in_use_is_one_line_before_weights_are_read():
    def too_late():
        raise AssertionError("weights were asked for")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(VoidpadError, match=f"port {port} of 127.0.0.1 is in use"):
            serve(too_late, ServeOptions(port=port))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--api-keys", "keys"), "chmod 600"),
        (("--host", "0.0.0.0"), "--no-auth"),
        (("--max-body", "much"), "--max-body"),
        (("--plan", "os:system"), "give the name of a preset"),
        (("--plan", "nothing"), "unknown"),
        (  # one block less would leave a prompt some room
            ("--plan", "void", "--canvas", "1024", "--port", "0"),
            "canvas=1024 leaves no room for a prompt in the model's context of 1024; lower canvas.",
        ),
    ],
)
def test_what_cannot_be_served_is_one_line(options, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "keys").write_text("k\n")
    (tmp_path / "keys").chmod(0o644)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["voidpad", "serve", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    line = capsys.readouterr().err.strip()
    assert message in line
    assert "\n" not in line
