"""A running server for tests: real uvicorn on a loopback port, in a thread of this process."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from voidpad.serve.app import ServerState, build_app
from voidpad.serve.server import ServeOptions, _Server, listen, make_state


@dataclass(frozen=True)
class Running:
    """Address and state of a server that answers."""

    url: str
    state: ServerState
    server: _Server

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@contextlib.contextmanager
def serving(model, **fields) -> Iterator[Running]:
    """Serve `model` with these options until the block ends; then everything has stopped."""
    options = ServeOptions(**{"port": 0, "drain": 0.0, "timeout": 600.0, **fields})
    listener = listen(options.host, options.port)
    access = options.access()
    state = make_state(model, options, access)
    server = _Server(state, build_app(state), options)
    answers = threading.Event()
    server.when_ready = answers.set
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        assert answers.wait(300), "the server did not start"
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", state, server)
    finally:
        server.should_exit = True
        thread.join(300)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"
