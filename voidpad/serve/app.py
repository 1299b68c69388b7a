"""The routes: a FastAPI application over one engine thread."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from voidpad.errors import printable
from voidpad.serve.access import Access
from voidpad.serve.engine_thread import EngineThread, LiveRequest
from voidpad.serve.json_fields import RequestError, parse_body
from voidpad.serve.metrics import Metrics
from voidpad.serve.replies import KEEP_ALIVE, ReplyWriter, error_object, event
from voidpad.serve.requests import ServedModel, read_request

log = logging.getLogger("voidpad.serve")
KEEP_ALIVE_SECONDS = 15.0
OPEN_PATHS = ("/", "/health", "/ready")  # no key needed: the page asks for the key itself
Route = Literal["chat", "completions"]


@dataclass
class ServerState:
    """What the routes share."""

    served: ServedModel
    engine: EngineThread
    access: Access
    metrics: Metrics
    fingerprint: str
    timeout: float  # seconds from a request to its last token
    max_body: int  # bytes of a request
    page: str = ""  # the HTML of the page at /
    log_prompts: bool = False
    draining: bool = False
    active: int = 0  # requests that are being answered
    started: int = field(default_factory=lambda: int(time.time()))


def build_app(
    state: ServerState, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None
) -> FastAPI:
    """The application. Whoever runs it starts and stops the engine, `lifespan` for example."""
    app = FastAPI(title="voidpad", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _generate(state, request, "chat")

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _generate(state, request, "completions")

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [_model_object(state)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != state.served.name:
            message = f"the model {name[:80]!r} does not exist; this server has {state.served.name!r}."
            raise RequestError(message, param="model", status=404, code="model_not_found")
        return JSONResponse(_model_object(state))

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        waiting, limit = state.engine.engine.waiting, state.engine.queue
        usable = state.engine.alive and not state.draining and waiting < limit
        content = {"ready": usable, "waiting": waiting, "queue": limit, "draining": state.draining}
        return JSONResponse(content, status_code=200 if usable else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(state.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/")
    async def page() -> Response:
        return HTMLResponse(state.page, headers=_PAGE_HEADERS)

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        _note_refusal(error, state, request.scope["state"]["notes"])
        return _error_response(error)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return _error_response(RequestError(str(error.detail), status=error.status_code), error.headers)

    app.add_middleware(_Gate, state=state)
    return app


_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def _model_object(state: ServerState) -> dict[str, Any]:
    served, model = state.served, state.served.model
    return {
        "id": served.name,
        "object": "model",
        "created": state.started,
        "owned_by": "voidpad",
        "voidpad": {
            "family": model.family.name,
            "padding": model.card.padding,
            "context": model.context,
            "plan": served.plan_name,
            "fields": dict(served.fields),
            "fingerprint": state.fingerprint,
        },
    }


def _error_response(error: RequestError, headers: Any = None) -> Response:
    return JSONResponse(
        error_object(error), status_code=error.status, headers={**error.headers, **dict(headers or {})}
    )


class _Gate:
    """Host names, origins, keys, the log line of every request, and an answer where the code fails."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], state: ServerState) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun, status = time.perf_counter(), 0
        scope["state"] = scope.get("state") or {}
        notes: dict[str, Any] = scope["state"].setdefault("notes", {})

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.state.active += 1
        try:
            self._check(scope)
            await self.app(scope, receive, noting)
        except RequestError as error:
            _note_refusal(error, self.state, notes)
            await _error_response(error)(scope, receive, noting)
        except Exception as error:
            log.exception("request failed")
            if not status:
                failure = RequestError(
                    f"the server failed: {type(error).__name__}.", status=500, kind="server_error"
                )
                await _error_response(failure)(scope, receive, noting)
        finally:
            self.state.active -= 1
            route = scope["path"] if scope["path"] in _ROUTES else "other"
            self.state.metrics.requests.labels(route, str(status)).inc()
            shown = {
                "path": scope["path"][:120],
                "status": status,
                "seconds": round(time.perf_counter() - begun, 3),
            }
            log.info("request", extra={"request": {**shown, **notes}})

    def _check(self, scope: Scope) -> None:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        access, host = self.state.access, headers.get("host")
        if not access.allows_host(host):
            raise RequestError("this server does not answer under that host name.", status=403)
        if not access.allows_origin(headers.get("origin"), host):
            raise RequestError("requests from other web pages are refused.", status=403)
        if scope["path"] not in OPEN_PATHS and not access.allows_key(headers.get("authorization")):
            raise RequestError(
                "a valid API key is needed: Authorization: Bearer KEY.", status=401, code="invalid_api_key"
            )


_ROUTES = ("/", "/health", "/ready", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions")


async def _generate(state: ServerState, http: Request, route: Route) -> Response:
    if state.draining:
        raise RequestError(
            "the server is shutting down.", status=503, kind="server_error", headers={"Retry-After": "5"}
        )
    begun = time.monotonic()
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError("the content type must be application/json.", status=415)
    try:
        body = await asyncio.wait_for(_read_body(http, state.max_body), state.timeout)
    except TimeoutError:
        raise RequestError("the body did not arrive within the server's timeout.", status=408) from None
    # Encoding a long prompt takes a while: the event loop goes on meanwhile.
    request = await asyncio.to_thread(lambda: read_request(parse_body(body), route, state.served))
    live = state.engine.submit(request, deadline=begun + state.timeout)
    notes = http.scope["state"]["notes"]
    notes["prompt_tokens"] = live.prompt_tokens
    state.metrics.prompt_tokens.inc(live.prompt_tokens)
    if state.log_prompts:
        notes["prompts"] = [state.served.model.tokenizer.decode(list(ids)) for ids in request.prompts]
    writer = ReplyWriter(request, state.served.name, state.fingerprint, live.token_text)
    notes["id"] = writer.id
    if request.stream:
        return _EventStream(live, _events(live, writer), state, notes)
    try:
        await _finished(live, http.receive)
    finally:
        _note(live, state, notes)
        live.cancel()
    if live.error is not None:
        raise live.error
    return JSONResponse(writer.whole(live.choices, live.reports, live.prompt_tokens))


async def _read_body(http: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in http.stream():
        size += len(part)
        if size > most:
            raise RequestError(f"the body is larger than {most} bytes.", status=413)
        parts.append(part)
    return b"".join(parts)


async def _finished(live: LiveRequest, receive: Receive) -> None:
    """Wait for all rows; a client that leaves ends the wait."""
    gone = asyncio.create_task(_disconnected(receive))
    waiting = asyncio.create_task(live.finished.wait())
    try:
        await asyncio.wait({gone, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not live.finished.is_set():
            live.error = RequestError("the client has gone.", status=499, kind="client_error")
    finally:
        gone.cancel()
        waiting.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _events(live: LiveRequest, writer: ReplyWriter) -> AsyncIterator[bytes]:
    """The stream of one request: for each wake-up all events that became ready, in one piece."""
    if first := [chunk for index, choice in enumerate(live.choices) for chunk in writer.delta(index, choice)]:
        yield b"".join(first)
    ended: set[int] = set()
    while len(ended) < len(live.choices):
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await live.changed.wait()
        except TimeoutError:
            yield KEEP_ALIVE
            continue
        # No await until the piece is whole: the engine's updates cannot come between a text and its end.
        live.changed.clear()
        piece = [writer.canvas(index, record) for index, record in live.take_records()]
        for index, choice in enumerate(live.choices):
            if index in ended:
                continue
            piece += writer.delta(index, choice)
            if live.reports[index]:
                ended.add(index)
                piece.append(writer.last(index, choice, live.reports[index]))
        if live.error is not None:
            yield b"".join([*piece, event(error_object(live.error))])
            return
        if len(ended) == len(live.choices):
            piece += writer.closing(live.choices, live.prompt_tokens)
        if piece:
            yield b"".join(piece)


class _EventStream(Response):
    """Server-sent events that stop when the client leaves or reads too slowly, and free the rows then."""

    def __init__(
        self, live: LiveRequest, events: AsyncIterator[bytes], state: ServerState, notes: dict[str, Any]
    ) -> None:
        self.live, self.events, self.state, self.notes = live, events, state, notes
        self.status_code = 200
        self.background = None
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.create_task(self._watch(receive))
        try:
            async for piece in self.events:
                if self.live.gone:
                    return
                async with asyncio.timeout(self.state.timeout):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            self.notes["stopped"] = "the client read too slowly"
        finally:
            gone.cancel()
            _note(self.live, self.state, self.notes)
            self.live.cancel()

    async def _watch(self, receive: Receive) -> None:
        await _disconnected(receive)
        self.live.gone = True
        self.live.cancel()
        self.live.changed.set()


def _note_refusal(error: RequestError, state: ServerState, notes: dict[str, Any]) -> None:
    """Put into the log line why a request was refused: the field, or the code of the error.

    The message itself may quote what the user wrote, so it is there only where prompts may be.
    """
    notes["refused"] = str(error) if state.log_prompts else (error.code or error.param or error.kind)[:80]


def _note(live: LiveRequest, state: ServerState, notes: dict[str, Any]) -> None:
    """Count a request's answers and put them in its log line."""
    answered = sum(len(choice.ids) for choice in live.choices)
    notes["answer_tokens"] = answered
    notes["passes"] = sum(report.get("passes_decode", 0) for report in live.reports)
    if live.gone or live.error is not None:
        notes["stopped"] = "the client has gone" if live.gone else str(live.error)
    state.metrics.answer_tokens.inc(answered)


class LogLines(logging.Formatter):
    """One line per request, as words or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        about: dict[str, Any] | None = getattr(record, "request", None)
        if self.as_json:
            content = {
                "time": self.formatTime(record),
                "level": record.levelname,
                "message": record.getMessage(),
            }
            if record.exc_info:
                content["error"] = self.formatException(record.exc_info)
            return json.dumps({**content, **(about or {})}, ensure_ascii=True)
        if about is not None:
            record.msg = " ".join(f"{name}={printable(str(value))}" for name, value in about.items())
            record.args = ()
        return super().format(record)
