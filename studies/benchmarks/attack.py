"""A storm against the real server: load, hostile bodies, slow senders, idle connections, long prompts, a shutdown.

    python studies/benchmarks/attack.py                                 # some minutes on two cores
    python studies/benchmarks/attack.py --requests 100 --bodies 300     # a short one

`voidpad serve` runs as a process of its own on a loopback port. First come 2,000 requests of 64 streaming clients (one
in ten leaves in the middle, one in twenty is malformed, some read slowly); every answer is compared with that of the
engine alone. Then come 3,000 generated hostile bodies. Every phase counts what clients saw. At the end one line of JSON
says how many answers were lost or wrong, how many replies had status 500, and how much memory the server holds compared
with before the storm. Exit status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from serve import engine_alone, make_load, run_clients  # noqa: E402  studies/benchmarks/serve.py

PLAN, FIELDS_OF_PLAN = "void", {"canvas": 48, "block": 16, "threshold": 0.9}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7.5, 1e300, -1e300, 10**30, 10**300, 2**63, "", "x", "\x00", "\x1b[2J",
    "\ud800", "é" * 300, "eos", "99999999", [], [1], [[1]], ["x"] * 40, {}, {"a": 1},
    {"type": "json_object"}, {"include_usage": True},
]  # fmt: skip
FIELDS = [
    "model", "messages", "prompt", "input", "instructions", "text", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "n", "seed", "stop", "stream", "stream_options", "logprobs", "top_logprobs",
    "logit_bias", "user", "voidpad", "tools", "tool_choice", "response_format", "echo", "suffix", "best_of",
    "structured_outputs", "frequency_penalty", "unknown",
]  # fmt: skip
PLAN_FIELDS = [
    "plan", "block", "canvas", "limit", "steps", "threshold", "entropy_bound", "factor", "temperature",
    "top_p", "top_k", "ban", "mute", "scores", "score", "stop", "cut", "trim", "window", "tau_nonvoid",
    "tau_gap", "tau", "unit", "cap", "adjust", "logit_bias", "minimum", "grow", "check", "rho_low",
    "rho_high", "interval", "name", "self", "defaults", "calibration", "special_tokens", "canvas_events",
    "template", "patience",
]  # fmt: skip
PLANS = [
    "void", "original", "void-expansion", "daedal", "rho-eos", "smart-crop", "eos-last", "append-blocks",
    "none",
]  # fmt: skip


def hostile_body(rng: random.Random, model: str) -> tuple[str, bytes]:
    """A route and a body that is mostly right, with one to three things wrong."""
    route = rng.choice([CHAT, COMPLETIONS, RESPONSES])
    body: dict[str, Any] = {"model": model, "max_tokens": rng.randint(1, 8)}
    if route == RESPONSES:
        body = {"model": model, "max_output_tokens": rng.randint(1, 8), "input": "2 + 2"}
    elif route == CHAT:
        body["messages"] = [{"role": "user", "content": "2 + 2"}]
    else:
        body["prompt"] = "2 + 2"
    for _ in range(rng.randint(1, 3)):
        where = rng.random()
        if where < 0.45:
            body[rng.choice(FIELDS)] = rng.choice(ODD)
        elif where < 0.8:
            extension = body.setdefault("voidpad", {})
            if isinstance(extension, dict):
                extension["plan"] = rng.choice(PLANS)
                extension[rng.choice(PLAN_FIELDS)] = rng.choice(ODD)
        elif where < 0.9 and route == CHAT and isinstance(body.get("messages"), list) and body["messages"]:
            body["messages"][0] = {rng.choice(["role", "content", "name", "tool_calls"]): rng.choice(ODD)}
        else:
            body[rng.choice(["stop", "prompt", "user"])] = "".join(
                chr(rng.randrange(0x110000)) for _ in range(rng.randint(1, 50))
            )
    content = json.dumps(body).encode()
    if rng.random() < 0.15:  # damage the bytes themselves
        at = rng.randrange(len(content))
        content = content[:at] + bytes([rng.randrange(256)]) + content[at + rng.randint(0, 3) :]
    return route, content


class Server:
    """`voidpad serve` on a free port."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "voidpad", "serve", "--port", "0", "--drain", "5", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self.log = Path(os.environ.get("TMPDIR", "/tmp")) / f"voidpad-attack-{os.getpid()}.log"
        with self.log.open("w") as file:
            self.process = subprocess.Popen(command, env=environment, stderr=file, stdout=file)
        self.url = next(self._address())
        self.port = int(self.url.rsplit(":", 1)[1])

    def _address(self) -> Iterator[str]:
        end = time.monotonic() + 600
        while time.monotonic() < end and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if " at http://" in line:
                    yield line.split(" at ")[1].split()[0]
            time.sleep(0.1)
        self.process.kill()
        raise SystemExit(f"the server did not start; see {self.log}")

    def memory(self) -> int:
        """Resident memory in MiB once the server has been idle for some seconds."""
        time.sleep(4)
        return round(psutil.Process(self.process.pid).memory_info().rss / 2**20)

    def answer(self, seed: int = 0) -> str:
        body = {
            "model": "tiny-void",
            "messages": [{"role": "user", "content": "2 + 2"}],
            "seed": seed,
            "max_tokens": 32,
        }
        reply = httpx.post(self.url + CHAT, json=body, timeout=300)
        reply.raise_for_status()
        return str(reply.json()["choices"][0]["message"]["content"])


def load_phase(server: Server, model: Any, count: int, clients: int) -> dict[str, Any]:
    """Streaming clients, some of which leave, send nonsense or read slowly; answers as the engine alone gives them."""
    words = range(max(model.roles.all()) + 1, model.net.config.vocab_size)
    load = make_load(words, count, prompts=(8, 48), answers=(8, 48), seed=1)
    plan = model.plan(PLAN, **FIELDS_OF_PLAN)
    places = [place for place, one in enumerate(load) if one.kind != "malformed"]
    alone, _, _ = engine_alone(model, [load[place] for place in places], plan, rows=32, tokens=16384)
    wanted = {place: alone[k] for k, place in enumerate(places)}
    report = asyncio.run(run_clients(server.url, "tiny-void", load, clients))
    stay = {place for place in places if load[place].kind != "leaves"}
    return {
        "requests": count,
        "answered": len(report.texts),
        "left": report.left,
        "refused": report.refused,
        "failed": report.failed[:5],
        "lost": len(stay - report.texts.keys()),
        "wrong": sum(text != wanted[place] for place, text in report.texts.items()),
    }


async def hostile_bodies(server: Server, count: int, clients: int) -> Counter[str]:
    rng, seen = random.Random(7), Counter[str]()
    bodies = iter([hostile_body(rng, "tiny-void") for _ in range(count)])

    async def client(http: httpx.AsyncClient) -> None:
        for route, content in bodies:
            try:
                reply = await http.post(
                    server.url + route, content=content, headers={"content-type": "application/json"}
                )
                seen[str(reply.status_code)] += 1
                if reply.status_code == 500:
                    print("500:", content[:300], reply.text[:200], file=sys.stderr)
            except httpx.HTTPError as error:
                seen[type(error).__name__] += 1
                print(type(error).__name__, content[:300], file=sys.stderr)

    async with httpx.AsyncClient(timeout=300) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
    return seen


async def long_texts(server: Server, clients: int = 12, characters: int = 1_000_000) -> Counter[str]:
    """Bodies of a million characters at once, all of which must be refused."""
    seen = Counter[str]()

    async def one(http: httpx.AsyncClient) -> None:
        body = {"model": "tiny-void", "prompt": "word " * (characters // 5), "max_tokens": 1}
        seen[str((await http.post(server.url + COMPLETIONS, json=body)).status_code)] += 1

    async with httpx.AsyncClient(timeout=300) as http:
        await asyncio.gather(*(one(http) for _ in range(clients)))
    return seen


def half_sent_heads(server: Server, count: int) -> list[socket.socket]:
    """Connections that begin a request and never end it."""
    held = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
        held.append(connection)
    return held


async def slow_senders(server: Server, count: int) -> Counter[str]:
    """Requests whose bodies arrive byte by byte, and which are right: all must be answered."""
    seen = Counter[str]()
    content = json.dumps({"model": "tiny-void", "prompt": "2 + 2", "max_tokens": 4}).encode()

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode())
        for at in range(0, len(content), 4):
            writer.write(content[at : at + 4])
            await writer.drain()
            await asyncio.sleep(0.05)
        seen[(await reader.readline()).decode().split()[1]] += 1
        writer.close()

    await asyncio.gather(*(one() for _ in range(count)))
    return seen


async def shutdown(server: Server, clients: int = 16) -> Counter[str]:
    """SIGTERM while answers are being written: each ends whole, or with an error, never as a cut success."""
    seen = Counter[str]()

    async def one(http: httpx.AsyncClient, stream: bool) -> None:
        body = {"model": "tiny-void", "messages": [{"role": "user", "content": "2 + 2"}], "stream": stream,
                "voidpad": {"plan": "original", "ban": "ends", "canvas": 256, "block": 256}}  # fmt: skip
        try:
            reply = await http.post(server.url + CHAT, json=body)
        except httpx.HTTPError as error:
            seen[type(error).__name__] += 1
            return
        if stream:
            errs, done = '"error"' in reply.text, "[DONE]" in reply.text
            seen["whole" if done and not errs else "error" if errs and not done else "cut"] += 1
        else:
            seen["whole" if reply.status_code == 200 else f"status {reply.status_code}"] += 1

    async with httpx.AsyncClient(timeout=300) as http:
        tasks = [asyncio.create_task(one(http, bool(k % 2))) for k in range(clients)]
        await asyncio.sleep(2)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*tasks)
    seen[f"exit {server.process.wait(60)}"] += 1
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--bodies", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    from voidpad.models import load

    model = load("tiny-void")
    fields = [f"{name}={value}" for name, value in FIELDS_OF_PLAN.items()]
    server = Server(
        "--queue",
        "4096",
        "--timeout",
        "900",
        "--plan",
        PLAN,
        *(word for field in fields for word in ("--set", field)),
    )
    try:
        expected = [server.answer(seed) for seed in range(4)]
        # A server that has worked: the code of every kernel that it needs is in memory.
        asyncio.run(hostile_bodies(server, 64, given.clients))
        load_phase(server, model, 64, given.clients)
        before = server.memory()
        figures: dict[str, Any] = {"memory_before_mib": before}
        figures["load"] = load_phase(server, model, given.requests, given.clients)
        figures["memory_after_load_mib"] = server.memory()
        figures["hostile"] = dict(asyncio.run(hostile_bodies(server, given.bodies, given.clients)))
        figures["memory_after_bodies_mib"] = server.memory()
        figures["long_texts"] = dict(asyncio.run(long_texts(server)))
        held = half_sent_heads(server, 200)
        figures["slow_senders"] = dict(asyncio.run(slow_senders(server, 64)))
        figures["answers_beside_half_sent_heads"] = [server.answer(seed) for seed in range(4)] == expected
        for connection in held:
            connection.close()
        figures["answers_after"] = [server.answer(seed) for seed in range(4)] == expected
        figures["memory_after_mib"] = server.memory()
        figures["memory_ratio"] = round(figures["memory_after_mib"] / before, 3)
        figures["shutdown"] = dict(asyncio.run(shutdown(server)))
        figures["tracebacks"] = server.log.read_text().count("Traceback")
    finally:
        server.process.kill()
    wrong = [
        *(name for name in ("failed", "lost", "wrong") if figures["load"][name]),
        *(name for name in figures["hostile"] if name == "500" or not name.isdigit()),
        *(name for name in figures["long_texts"] if name not in ("400", "413")),
        *(name for name in figures["slow_senders"] if name != "200"),
        *(name for name in figures["shutdown"] if name not in ("whole", "error", "status 503", "exit 0")),
        *(name for name in ("answers_beside_half_sent_heads", "answers_after") if not figures[name]),
        *(["memory"] if figures["memory_ratio"] > 1.1 else []),
        *(["tracebacks"] if figures["tracebacks"] else []),
    ]
    figures["wrong"] = wrong
    print(json.dumps(figures))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
