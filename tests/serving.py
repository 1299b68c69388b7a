"""A running server for tests: real uvicorn on a loopback port, in a thread of this process."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import openai

from voidpad.serve.app import ServerState
from voidpad.serve.engine_thread import EngineThread
from voidpad.serve.options import ServeOptions
from voidpad.serve.requests import ServedModel
from voidpad.serve.server import Server, bind

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Running:
    """A server that answers, and ways to ask it."""

    url: str
    state: ServerState
    server: Server

    @property
    def engine(self) -> EngineThread:
        """The engine of the one model."""
        return next(iter(self.state.engines.values()))

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=600)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=600, **options)

    def post(self, body: Any, path: str = CHAT, **headers: str) -> httpx.Response:
        """Send a body as JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"content-type": "application/json", **named}
        return httpx.post(self.url + path, content=content, headers=given, timeout=600)

    def connect(self, text: str | bytes = b"") -> socket.socket:
        """A connection that has sent this and does not read the answer."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=600)
        connection.sendall(text if isinstance(text, bytes) else text.encode())
        return connection

    def asking(self, body: Any, *, size: int | None = None) -> socket.socket:
        """A connection that has sent a chat, or a body that ends before its `size`."""
        text = json.dumps(body)
        return self.connect(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {size or len(text)}\r\n\r\n{text}"
        )

    def cancelled(self, why: str) -> float:
        """Rows that ended before their answer, for this reason."""
        value = self.state.metrics.registry.get_sample_value("voidpad_rows_cancelled_total", {"why": why})
        return value or 0.0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, a pass waits until something else wants its turn: so what is seen does not depend on the speed."""
        engine, free = self.engine.engine, threading.Event()
        denoise, turns = engine.denoise, self.engine.thread._work_queue

        def waiting(canvas, where):
            while turns.empty() and not free.wait(0.005):
                pass
            return denoise(canvas, where)

        engine.denoise = waiting
        try:
            yield
        finally:
            engine.denoise = denoise
            free.set()


@contextlib.contextmanager
def serving(model, **fields) -> Iterator[Running]:
    """Serve a model, or several by their names, until the block ends; then everything has stopped."""
    options = ServeOptions(**{"port": 0, "drain": 0.0, "timeout": 600.0, **fields})
    listener = bind(options.host, options.port)
    named = model if isinstance(model, dict) else {options.name: model}
    served = [ServedModel(one, replace(options, name=name)) for name, one in named.items()]
    state = ServerState(served, options, options.access())
    server = Server(state)
    answers = threading.Event()
    server.when_ready = answers.set
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        assert answers.wait(300), "the server did not start"
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", state, server)
    finally:
        server.should_exit = True
        thread.join(600)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


def until(condition, seconds=600.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)
