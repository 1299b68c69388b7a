"""The server as a process: start, refusals at start, SIGTERM, and load."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[1]


def start(*options):
    """`voidpad serve` on a free port; (process, address)."""
    command = [sys.executable, "-m", "voidpad", "serve", "--port", "0", *map(str, options)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
    return httpx.post(address + "/v1/chat/completions", json=body, timeout=120)


def test_sigterm_lets_live_answers_finish_and_ends_with_status_0():
    process, address = start("--log-json", "--drain", 300)
    try:
        with httpx.stream(
            "POST",
            address + "/v1/chat/completions",
            json={
                "model": "tiny-void",
                "messages": [{"role": "user", "content": "12 * 3 - 6"}],
                "stream": True,
                "voidpad": {"plan": "original", "canvas": 192, "block": 192, "ban": "ends"},  # 192 passes
            },
            timeout=300,
        ) as reply:
            lines = reply.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            while not httpx.get(address + "/ready", timeout=120).json()["draining"]:
                time.sleep(0.01)
            refused = ask(address)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            rest = list(lines)
        assert "data: [DONE]" in rest
        assert process.wait(60) == 0
    finally:
        process.kill()
    logged = [json.loads(line) for line in process.stderr if line.startswith("{")]
    served = next(one for one in logged if one.get("status") == 200)
    assert {"id", "prompt_tokens", "answer_tokens", "passes", "seconds"} <= set(served)
    assert "12 * 3" not in json.dumps(logged)


def run(*options):
    return subprocess.run(
        [sys.executable, "-m", "voidpad", "serve", *map(str, options)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_what_cannot_be_served_is_one_line(tmp_path):
    readable = tmp_path / "keys"
    readable.write_text("k\n")
    readable.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            (("--port", port), 1, f"port {port} of 127.0.0.1 is in use; choose another with --port."),
            (("--api-keys", readable), 2, "chmod 600"),
            (("--host", "0.0.0.0"), 2, "--no-auth"),
            (("--max-body", "much"), 2, "is no size"),
            (("--plan", "os:system"), 2, "give the name of a preset"),
            (("--plan", "nothing"), 2, "unknown"),
        ]
        for options, status, message in cases:
            ended = run(*options)
            assert ended.returncode == status, ended.stderr
            assert message in ended.stderr
            assert ended.stderr.strip().count("\n") == 0, ended.stderr


@pytest.mark.slow
def test_load_loses_and_swaps_nothing():
    """64 clients, 2,000 requests of mixed length, 10 % leave, 5 % malformed, slow readers among them."""
    sys.path[:0] = [str(ROOT / "studies" / "benchmarks")]
    import serve as load_test

    from voidpad.models import load

    model = load("tiny-void")
    words = range(max(model.roles.all()) + 1, model.net.config.vocab_size)
    requests = load_test.make_load(
        words, 2000, prompts=(8, 48), answers=(8, 48), seed=random.Random(1).randint(0, 9)
    )
    fields = {"canvas": 48, "block": 16, "threshold": 0.9}
    figures = load_test.measure(
        model, requests, plan="void", fields=fields, clients=64, rows=32, tokens=16384
    )
    print(json.dumps(figures, indent=1))
    assert (figures["failed"], figures["wrong"], figures["missing"], figures["rows_left"]) == ([], 0, 0, 0)
    assert figures["refused"] > 50
    assert figures["peak_memory_at_the_end_mib"] <= 1.05 * figures["peak_memory_at_a_quarter_mib"]
