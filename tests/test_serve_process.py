"""The server as a process: start, refusals at start, SIGTERM, and load."""

import contextlib
import json
import os
import re
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
import yaml

from serving import until
from voidpad.commands import cli
from voidpad.errors import VoidpadError
from voidpad.serve.options import ServeOptions
from voidpad.serve.server import serve

ROOT = Path(__file__).parents[1]


def start(*options, files=None):
    """`voidpad serve` on a free port; (process, address). `files` is the most file descriptors it may have."""

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


def test_several_adapters_answer_and_sigterm_lets_live_answers_finish():
    more = ("tiny-instruct", "--more-adapter", "mine=tiny-void")
    process, address = start(*more, "--log-json", "--drain", 1200, "--timeout", 1200)
    try:
        listed = httpx.get(address + "/v1/models", timeout=600).json()["data"]
        assert [one["id"] for one in listed] == ["tiny-instruct", "mine"]
        assert listed[1]["voidpad"]["padding"] == "void" != listed[0]["voidpad"]["padding"]
        assert ask(address, model="mine", max_tokens=8).json()["model"] == "mine"
        with (
            unfinished(address) as connection,
            httpx.stream(
                "POST",
                address + "/v1/chat/completions",
                json={
                    "model": "mine",
                    "messages": [{"role": "user", "content": "12 * 3 - 6"}],
                    "stream": True,
                    "voidpad": {"plan": "original", "canvas": 96, "block": 96, "ban": "ends"},  # 96 passes
                },
                timeout=600,
            ) as reply,
        ):
            lines = reply.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            while not httpx.get(address + "/ready", timeout=600).json()["draining"]:
                time.sleep(0.01)
            refused = ask(address, model="mine")
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            rest = list(lines)
            connection.sendall(b"{}")
            assert b" 400 " in connection.recv(4096).split(b"\r\n")[0]
        assert "data: [DONE]" in rest
        assert process.wait(600) == 0
    finally:
        process.kill()
    logged = [json.loads(line) for line in process.stderr if line.startswith("{")]
    served = next(one for one in logged if one.get("status") == 200 and "/chat/" in one["path"])
    assert {"id", "prompt_tokens", "answer_tokens", "passes", "seconds"} <= set(served)
    assert "12 * 3" not in json.dumps(logged)


def test_large_bodies_leave_no_memory_and_more_connections_than_files_cost_one_log_line():
    process, address = start("--max-body", str(2 << 20), files=256)

    def memory():
        return psutil.Process(process.pid).memory_info().rss / 2**20

    def send(_):
        body = {"model": "tiny-void", "prompt": "word " * 200_000, "max_tokens": 1}
        return httpx.post(address + "/v1/completions", json=body, timeout=600).status_code

    def answers():
        with contextlib.suppress(httpx.TransportError):
            return ask(address, max_tokens=8).status_code == 200

    try:
        assert answers()
        before = memory()
        with ThreadPoolExecutor(12) as pool:
            assert set(pool.map(send, range(12))) == {400}
        until(lambda: memory() < before + 100)  # an idle server gives memory back
        port = int(address.rsplit(":", 1)[1])
        with contextlib.ExitStack() as held:
            for _ in range(450):
                held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=600))
        until(answers)
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
        refused = [line for line in process.stderr if "path=/v1/" not in line]
        assert 1 <= len(refused) < 20  # one in ten seconds
        assert all("connections" in line for line in refused)
    finally:
        process.kill()


def test_a_port_in_use_is_one_line_before_weights_are_read():
    def too_late():
        raise AssertionError("weights were asked for")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(VoidpadError, match=f"port {port} of 127.0.0.1: Address already in use"):
            serve(too_late, ServeOptions(port=port))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--api-keys", "keys"), "chmod 600"),
        (("--host", "0.0.0.0"), "--no-auth"),
        (("--max-body", "much"), "--max-body"),
        (("--more-adapter", "mine"), "NAME=ADAPTER"),
        (("--plan", "os:system"), "give the name of a preset"),
        (("--plan", "nothing"), "unknown"),
        (  # one block less would leave a prompt some room
            ("--plan", "void", "--canvas", "1024", "--port", "0"),
            "canvas=1024 leaves no room for a prompt in the model's context of 1024; lower canvas.",
        ),
    ],
)
def test_what_cannot_be_served_is_one_line(options, message, tmp_path, monkeypatch, voidpad):
    (tmp_path / "keys").write_text("k\n")
    (tmp_path / "keys").chmod(0o644)
    monkeypatch.chdir(tmp_path)
    ran = voidpad("serve", *options)
    assert ran.status == 2
    assert message in ran.err
    assert "\n" not in ran.err.strip()


def test_the_files_for_containers_fit_the_server():
    """No image can be built here: options exist, limits agree, and the container has few rights."""
    folder, usual = ROOT / "deploy", ServeOptions()
    docker, nginx = (folder / "Dockerfile").read_text(), (folder / "nginx.conf").read_text()
    compose = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    [entry] = re.findall(r"^ENTRYPOINT (.*)", docker, re.M)
    commands = [json.loads(entry)[2:], compose["voidpad"]["command"], compose["voidpad-cuda"]["command"]]
    options = {word for command in commands for word in command if word.startswith("--")}
    assert options <= {name for one in cli.command_named("serve").params for name in one.opts}
    assert re.search(r'"(torch==.*)"', docker)[1] in (ROOT / "constraints.txt").read_text().split()
    assert docker.index("\nUSER voidpad\n") < docker.index("\nENTRYPOINT")
    assert re.search(r"^HEALTHCHECK(?:.*\\\n)+.*:8000/health", docker, re.M)
    for server in (compose["voidpad"], compose["voidpad-cuda"]):
        assert (server["read_only"], server["cap_drop"]) == (True, ["ALL"])
        assert int(server["stop_grace_period"].removesuffix("s")) > usual.drain
    assert nginx.count("{") == nginx.count("}")
    assert int(re.search(r"client_max_body_size (\d+)m;", nginx)[1]) << 20 == usual.max_body
    assert int(re.search(r"proxy_read_timeout (\d+)s;", nginx)[1]) > usual.timeout
    assert "proxy_buffering off;" in nginx
    # $host has no port: the server's own page would be refused.
    assert "proxy_set_header Host $http_host;" in nginx
