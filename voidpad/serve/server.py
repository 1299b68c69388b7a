"""The server process: listen, run until told to stop, let live answers finish, exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from voidpad.errors import VoidpadError
from voidpad.serve.app import ServerState, build_app
from voidpad.serve.monitoring import log_to_stderr
from voidpad.serve.options import ServeOptions
from voidpad.serve.requests import ServedModel

if TYPE_CHECKING:
    from voidpad.models import Model

log = logging.getLogger("voidpad.serve")
MOST_HEADER_BYTES = 64 * 1024
HEAD_SECONDS = 20.0  # a connection must send the whole head of a request within this time
PROBE_SECONDS = 0.25  # between two looks at whether a client that has closed its side still reads
ACCEPTED_AT_ONCE = 16  # asyncio accepts so many before it looks at any of them
SPARE_FILES = 160  # descriptors for the rest of the process, and for connections that are about to be closed
WAITING_CONNECTIONS = 1024  # that the system keeps until they are accepted


def serve(
    load: Callable[[], Mapping[str, Model]],
    options: ServeOptions,
    *,
    ready: Callable[[str], None] = lambda address: None,
) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status: 1 after a failure of the engine.

    Each model that `load` returns, by its name for clients, has an engine of its own; the page shows the first.
    A port that is in use is refused before `load` reads weights. `ready` gets a line with the address and the plan as
    soon as requests are answered.
    """
    access = options.access()
    with contextlib.closing(bind(options.host, options.port)) as listener:
        served = [ServedModel(model, replace(options, name=name)) for name, model in load().items()]
        state = ServerState(served, options, access)
        log_to_stderr(as_json=options.log_json)
        server = Server(state)
        plan = served[0].plan_name
        server.when_ready = lambda: ready(f"{address_of(listener)} (plan {plan})")
        asyncio.run(server.serve(sockets=[listener]))
    if server.failure is not None:
        print(f"voidpad: the engine failed ({server.failure}); stopping.", file=sys.stderr)
        return 1
    return 0


class _Connection(H11Protocol):
    """uvicorn's connection with a cap on their number, a time limit for heads, and answers for half-closed clients."""

    _said = -60.0  # when refused connections were last logged

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, transport.abort)
        most = self.config.limit_concurrency or 0
        if len(self.connections) < most:
            return
        if time.monotonic() - _Connection._said > 10:
            _Connection._said = time.monotonic()
            log.warning("more than %d connections: further ones are closed", most - 1)
        transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_timer.cancel()
        elif self._head_timer.cancelled():
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        super().connection_lost(exc)

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


def _most_connections(most: int) -> int:
    """Below the file limit of the process, so that accepting never fails."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(8, soft - SPARE_FILES))


class Server(uvicorn.Server):
    """uvicorn with our own way to stop: refuse new requests, let live rows finish, then exit with status 0."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.failure: BaseException | None = None
        self.when_ready: Callable[[], None] = lambda: None
        self.draining: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                build_app(state, self._failed),
                log_config=None,
                access_log=False,
                lifespan="on",
                ws="none",
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
                http=_Connection,
                backlog=ACCEPTED_AT_ONCE,
                limit_concurrency=_most_connections(state.options.connections) + 1,
                h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            listener.listen(WAITING_CONNECTIONS)
        self.loop = asyncio.get_running_loop()
        self.when_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Refuse new requests, let live rows finish within the time to drain, and exit; a second call exits now."""
        if self.draining is not None:
            self.should_exit = self.force_exit = True
            return
        self.state.draining = True
        self.draining = self.loop.create_task(self._drain())

    async def _drain(self) -> None:
        end, engines = time.monotonic() + self.state.options.drain, self.state.engines.values()
        while (any(engine.rows for engine in engines) or self.state.active) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        for engine in engines:
            engine.give_up()
        self.should_exit = True

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        self.state.draining = True
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address, for the server to listen on; a port that is in use is an error of one line."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise VoidpadError(
            f"port {port} of {host}: {error.strerror}; give another --port, or an address of this machine as --host."
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
