"""The server process: listen, run until told to stop, let live answers finish, exit."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.provenance import installed_version
from voidpad.serve.access import Access, read_access
from voidpad.serve.app import ServerState, build_app
from voidpad.serve.engine_thread import EngineThread, text_rules
from voidpad.serve.live_page import live_page
from voidpad.serve.monitoring import log_to_stderr
from voidpad.serve.protocol import RequestError
from voidpad.serve.requests import ServedModel

if TYPE_CHECKING:
    from voidpad.models import Model

log = logging.getLogger("voidpad.serve")
MOST_HEADER_BYTES = 64 * 1024
HEAD_SECONDS = 20.0  # a connection must send the whole head of a request within this time
PROBE_SECONDS = 0.25  # between two looks at whether a client that has closed its side still reads
SPARE_FILES = 64  # file descriptors that connections leave to the rest of the process


@dataclass(frozen=True)
class ServeOptions:
    """How to serve: the decoding defaults, the address and the limits."""

    plan: str | None = None  # by the checkpoint unless given
    fields: dict[str, Any] = field(default_factory=dict)
    cache: str | None = None
    name: str | None = None  # the model's name for clients; the name it was loaded by unless given
    host: str = "127.0.0.1"
    port: int = 8000
    hosts: tuple[str, ...] = ()  # further names accepted in the Host header
    origins: tuple[str, ...] = ()  # other web pages whose scripts may call this server
    api_keys: Path | None = None
    key_requests: int | None = None  # most requests of one key at a time
    no_auth: bool = False
    lenient: bool = False  # ignore fields that cannot be honoured, and say so
    rows: int = 32
    tokens: int = 16384
    queue: int = 256
    connections: int = 1024  # most open connections
    timeout: float = 120.0
    drain: float = 30.0
    max_body: int = 1 << 20
    log_json: bool = False
    log_prompts: bool = False

    def access(self) -> Access:
        """The access rules of a server with these options."""
        return read_access(
            self.host,
            self.api_keys,
            no_auth=self.no_auth,
            names=self.hosts,
            origins=self.origins,
            key_requests=self.key_requests,
        )


def usual_plan(default: str) -> str:
    """The plan to serve where none is named. Clients do not know the length of an answer, so VOID padding expands."""
    return "void-expansion" if default == "void" else default


def make_state(model: Model, options: ServeOptions, access: Access) -> ServerState:
    """The engine, its thread (not started) and everything the routes need."""
    name, plan = options.name or model.name, options.plan or usual_plan(model.default_plan)
    served = ServedModel(
        model, name, plan, dict(options.fields), options.cache, options.lenient, _longest_token(model)
    )
    try:
        default = served.plan(served.plan_name, {})
    except RequestError as error:
        raise ConfigError(str(error)) from None
    engine = model.engine(rows=options.rows, tokens=options.tokens, cache=options.cache, block=default.block)
    pieces: dict[int, str] = {}

    def token_text(token: int) -> str:
        if token not in pieces:
            pieces[token] = str(model.tokenizer.decode([token]))
        return pieces[token]

    thread = EngineThread(
        engine,
        text_rules(model),
        model=model,
        cache=options.cache,
        token_text=token_text,
        queue=options.queue,
        name=name,
    )
    version = installed_version("voidpad") or "unknown"
    content = json.dumps([model.fingerprint, default.plain(), options.cache, version], sort_keys=True)
    return ServerState(
        served=served,
        engine=thread,
        access=access,
        metrics=thread.metrics,
        fingerprint="vp_" + hashlib.sha256(content.encode()).hexdigest()[:16],
        timeout=options.timeout,
        max_body=options.max_body,
        page=live_page(served, keys=bool(access.keys)),
        log_prompts=options.log_prompts,
    )


def serve(
    load: Callable[[], Model], options: ServeOptions, *, ready: Callable[[str], None] = lambda address: None
) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status: 1 after a failure of the engine.

    A port that is in use is refused before `load` reads weights. `ready` gets a line with the address and the plan as
    soon as requests are answered.
    """
    access = options.access()
    with contextlib.closing(listen(options.host, options.port)) as free:
        port = free.getsockname()[1]
    model = load()
    with contextlib.closing(listen(options.host, port)) as listener:
        state = make_state(model, options, access)
        log_to_stderr(as_json=options.log_json)
        server = _Server(state, build_app(state), options)
        server.when_ready = lambda: ready(f"{address_of(listener)} (plan {state.served.plan_name})")
        asyncio.run(server.serve(sockets=[listener]))
    if server.failure is not None:
        print(f"voidpad: the engine failed ({server.failure}); stopping.", file=sys.stderr)
        return 1
    return 0


def _longest_token(model: Model) -> int:
    """Characters of the longest token: a text of more than that many times the context cannot fit it."""
    return max((len(token) for token in model.tokenizer.get_vocab()), default=1)


class _Connection(H11Protocol):
    """uvicorn's connection with a cap on their number, a time limit for heads, and answers for half-closed clients."""

    most = 1024  # connections of this server
    _head_timer: asyncio.TimerHandle | None = None
    _said = 0.0  # when refused connections were last logged

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            if time.monotonic() - _Connection._said > 10:
                _Connection._said = time.monotonic()
                log.warning("more than %d connections: further ones are closed", self.most)
            transport.abort()
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._forget_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._forget_head()  # between requests uvicorn's own keep-alive timer runs

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep a connection whose client has sent its request and closed its side: it still reads the answer.

        A client that has gone altogether sends the same end of file. So something is written again and again that a
        present client passes over: after the first time the other side resets the connection if nobody is there, and
        the second write shows it.
        """
        waiting = self.cycle is not None and not self.cycle.response_complete
        if not waiting or self.cycle.more_body:
            return False
        self._probe()
        return True

    def _probe(self) -> None:
        if self.transport.is_closing() or self.cycle.response_started or self.scope["http_version"] != "1.1":
            return
        self.transport.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        self.loop.call_later(PROBE_SECONDS, self._probe)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _connection_class(most: int) -> type[_Connection]:
    """The connection class with its cap: below the file limit of the process, so that accepting never fails."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = most if soft == resource.RLIM_INFINITY else min(most, max(8, soft - SPARE_FILES))
    return type("_Connection", (_Connection,), {"most": room})


class _Server(uvicorn.Server):
    """uvicorn with our own way to stop: refuse new requests, let live rows finish, then exit with status 0."""

    def __init__(self, state: ServerState, app: FastAPI, options: ServeOptions) -> None:
        self.state, self.options = state, options
        self.failure: BaseException | None = None
        self.when_ready: Callable[[], None] = lambda: None
        self.draining: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
                http=_connection_class(options.connections),
                h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)

        def failed(error: BaseException) -> None:
            loop.call_soon_threadsafe(self._failed, error)

        self.state.engine.on_failure = failed
        self.state.engine.start(loop)
        await super().startup(sockets=sockets)
        self.when_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets=sockets)
        await asyncio.to_thread(self.state.engine.close)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after a clean stop; ours ends with status 0."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.draining is not None:  # a second signal: now
            self.should_exit = self.force_exit = True
            return
        self.state.draining = True
        self.draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.options.drain
        while (self.state.engine.rows or self.state.active) and loop.time() < end:
            await asyncio.sleep(0.05)
        self.state.engine.give_up()
        self.should_exit = True

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        self.state.draining = True
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; a port that is in use is an error of one line."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise VoidpadError(
            f"host {host!r}: {error.strerror or error}; give an address of this machine."
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        reason = "is in use" if "in use" in (error.strerror or "") else f"cannot be used ({error.strerror})"
        raise VoidpadError(f"port {port} of {host} {reason}; choose another with --port.") from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
