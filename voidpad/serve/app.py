"""The routes, and what holds for all of them: who may ask, how long a body may take, the log line of each request."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from voidpad.serve.access import Access
from voidpad.serve.engine_thread import EngineThread, LiveRequest
from voidpad.serve.monitoring import Metrics
from voidpad.serve.protocol import ChatBody, CompletionBody, GenerationBody, RequestError, invalid
from voidpad.serve.replies import KEEP_ALIVE, ReplyWriter, error_object, event
from voidpad.serve.requests import ServedModel, resolve

log = logging.getLogger("voidpad.serve")
KEEP_ALIVE_SECONDS = 15.0
OPEN_PATHS = ("/", "/health", "/ready")  # no key needed: the page asks for the key itself
ROUTES = ("/", "/health", "/ready", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions")


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
    app = FastAPI(title="voidpad", redoc_url=None, lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        return await _generate(state, request, body)

    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await _generate(state, request, body)

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [_model_object(state)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != state.served.name:
            message = f"the model {name[:80]!r} does not exist; this server has {state.served.name!r}."
            raise RequestError(message, param="model", status=404, code="model_not_found")
        return JSONResponse(_model_object(state))

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        waiting, limit = state.engine.engine.waiting, state.engine.queue
        usable = state.engine.alive and not state.draining and waiting < limit
        content = {"ready": usable, "waiting": waiting, "queue": limit, "draining": state.draining}
        return JSONResponse(content, status_code=200 if usable else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(state.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(state.page, headers=_PAGE_HEADERS)

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return _refusal(error, state, request.scope)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return _refusal(invalid(error.errors()), state, request.scope)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, ClientDisconnect):
            raise error.__cause__
        if isinstance(error.__cause__, RequestError):  # FastAPI wraps what happens while it reads the body
            return _refusal(error.__cause__, state, request.scope)
        refusal = RequestError(str(error.detail), status=error.status_code, headers=error.headers)
        return _refusal(refusal, state, request.scope)

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


def _refusal(error: RequestError, state: ServerState, scope: Scope) -> Response:
    """The error as a reply, and into the log line why a request was refused: the field, or the code of the error.

    The message itself may quote what the user wrote, so it is logged only where prompts may be.
    """
    notes = scope["state"]["notes"]
    notes["refused"] = str(error) if state.log_prompts else (error.code or error.param or error.kind)[:80]
    return JSONResponse(error_object(error), status_code=error.status, headers=error.headers)


class _Gate:
    """Host names, origins, keys, bounds of bodies, request ids, the log line, and an answer where the code fails."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], state: ServerState) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun, status = time.perf_counter(), 0
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        request_id = _request_id(headers.get("x-request-id"))
        notes: dict[str, Any] = {"request": request_id}
        scope["state"] = {**(scope.get("state") or {}), "notes": notes}
        extra = [
            (b"x-request-id", request_id.encode()),
            *self.state.access.cors_headers(headers.get("origin")),
        ]

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        self.state.active += 1
        try:
            try:
                preflight = self._check(scope, headers)
                if preflight is not None:
                    await preflight(scope, receive, noting)
                else:
                    await self.app(scope, self._bounded(receive), noting)
            except RequestError as error:
                await _refusal(error, self.state, scope)(scope, receive, noting)
        except ClientDisconnect:
            status, notes["stopped"] = status or 499, "the client has gone"
        except Exception as error:
            log.exception("request failed")
            if not status:
                name = type(error).__name__
                failure = RequestError(f"the server failed: {name}.", status=500, kind="server_error")
                await _refusal(failure, self.state, scope)(scope, receive, noting)
        finally:
            self.state.active -= 1
            self.state.access.leave(scope["state"].get("key"))
            path = scope["path"]
            self.state.metrics.requests.labels(path if path in ROUTES else "other", str(status)).inc()
            seconds = round(time.perf_counter() - begun, 3)
            shown = {"path": path[:120], "status": status, "seconds": seconds}
            log.info("request", extra={"request": {**shown, **notes}})

    def _check(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        """Refuse who may not ask; a browser's preflight request from a trusted page gets its answer here."""
        access, host, origin = self.state.access, headers.get("host"), headers.get("origin")
        path, method = scope["path"], scope["method"]
        is_probe = path in ("/health", "/ready") and scope["http_version"] == "1.0" and host is None
        if not is_probe and not access.allows_host(host):
            raise RequestError(
                "this server does not answer under that host name; start it with --allowed-host NAME.",
                status=403,
            )
        if not access.allows_origin(origin, host):
            raise RequestError(
                "requests from other web pages are refused; start the server with --allowed-origin ORIGIN.",
                status=403,
            )
        if method == "OPTIONS" and origin is not None and "access-control-request-method" in headers:
            return PlainTextResponse("", status_code=204)
        if path not in OPEN_PATHS:
            scope["state"]["key"] = access.enter(headers.get("authorization"), generates=method == "POST")
        if method == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise RequestError("the content type must be application/json.", status=415)
            if self.state.draining:
                raise RequestError(
                    "the server is shutting down.",
                    status=503,
                    kind="server_error",
                    headers={"Retry-After": "5"},
                )
            if headers.get("content-length", "").isdigit():
                self._check_size(int(headers["content-length"]))
        return None

    def _check_size(self, size: int) -> None:
        if size > self.state.max_body:
            raise RequestError(f"the body is larger than {self.state.max_body} bytes.", status=413)

    def _bounded(self, receive: Receive) -> Receive:
        """`receive` with bounds on the size of the body and on the time it may take to arrive."""
        size, whole = 0, False
        end = time.monotonic() + self.state.timeout

        async def bounded() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()  # now it only tells when the client leaves
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                raise RequestError(
                    "the body did not arrive within the server's timeout.", status=408
                ) from None
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            self._check_size(size)
            return message

        return bounded


def _request_id(given: str | None) -> str:
    """The client's own id of a request, if it is a short plain word, else a new one."""
    return given if given and re.fullmatch(r"[\w.:-]{1,128}", given, re.ASCII) else f"req_{uuid.uuid4().hex}"


async def _generate(state: ServerState, http: Request, body: GenerationBody) -> Response:
    begun = time.monotonic()
    # Encoding a long prompt takes a while: the event loop goes on meanwhile.
    request = await asyncio.to_thread(resolve, body, state.served, state.engine.between_passes)
    live = state.engine.submit(request, deadline=begun + state.timeout)
    notes = http.scope["state"]["notes"]
    notes["prompt_tokens"] = live.prompt_tokens
    state.metrics.prompt_tokens.inc(live.prompt_tokens)
    headers = {}
    if request.ignored:
        notes["ignored"] = ",".join(request.ignored)[:200]
        headers["x-voidpad-ignored"] = notes["ignored"].encode("ascii", "backslashreplace").decode()
    if state.log_prompts:
        notes["prompts"] = [state.served.model.tokenizer.decode(list(ids)) for ids in request.prompts]
    writer = ReplyWriter(request, state.served.name, state.fingerprint, live.token_text)
    notes["id"] = writer.id
    if request.stream:
        return _EventStream(live, _events(live, writer), state, notes, headers)
    try:
        await _finished(live, http.receive)
    finally:
        _note(live, state, notes)
        live.cancel()
    if live.error is not None:
        raise live.error
    return JSONResponse(writer.whole(live.choices, live.reports, live.prompt_tokens), headers=headers)


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
    """Server-sent events that stop when the client leaves or reads too slowly, and free the rows then.

    Starlette's own streaming response cannot end while its iterator waits, so a client that has gone would hold its
    rows until their next token.
    """

    def __init__(
        self,
        live: LiveRequest,
        events: AsyncIterator[bytes],
        state: ServerState,
        notes: dict[str, Any],
        headers: dict[str, str],
    ) -> None:
        super().__init__(
            headers={
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",  # nginx would hold events back otherwise
                **headers,
            }
        )
        del self.headers["content-length"]
        self.live, self.events, self.state, self.notes = live, events, state, notes

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


def _note(live: LiveRequest, state: ServerState, notes: dict[str, Any]) -> None:
    """Count a request's answers and put them in its log line."""
    answered = sum(len(choice.ids) for choice in live.choices)
    notes["answer_tokens"] = answered
    notes["passes"] = sum(report.get("passes_decode", 0) for report in live.reports)
    if live.gone or live.error is not None:
        notes["stopped"] = "the client has gone" if live.gone else str(live.error)
    state.metrics.answer_tokens.inc(answered)
