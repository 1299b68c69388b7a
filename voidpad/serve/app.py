"""The routes, and what holds for all of them: who may ask, how long a body may take, the log line of each request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from voidpad.evaluate.provenance import installed_version
from voidpad.serve.engine_thread import EngineThread, timed_out
from voidpad.serve.live import LiveRequest
from voidpad.serve.live_page import live_page
from voidpad.serve.monitoring import Metrics
from voidpad.serve.options import Access, ServeOptions
from voidpad.serve.protocol import (
    ChatBody,
    CompletionBody,
    ErrorReply,
    GenerationBody,
    RequestError,
    invalid,
)
from voidpad.serve.requests import ServedModel, resolve
from voidpad.serve.responses import ResponsesBody

log = logging.getLogger("voidpad.serve")
LONG_BODY = 1 << 15  # bytes; tokenizing takes up to a thousand times as much memory
PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ERRORS: dict[int | str, dict[str, Any]] = {  # for the OpenAPI page
    400: {"model": ErrorReply, "description": "a field that is wrong or cannot be honoured"},
    "default": {"model": ErrorReply, "description": "every other refusal"},
}
STREAM_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold events back otherwise
}


class ServerState:
    """What the routes share. The engines are not started yet."""

    def __init__(self, served: Sequence[ServedModel], options: ServeOptions, access: Access) -> None:
        self.options, self.access, self.metrics = options, access, Metrics()
        self.engines = {one.name: EngineThread(one, self.metrics) for one in served}
        # Long prompts and constraints are worked on two at a time, so that many of them fill no memory.
        self.slow_pool = ThreadPoolExecutor(2, thread_name_prefix="voidpad-slow")
        self.page = live_page(served[0], keys=bool(access.keys))
        self.started = int(time.time())
        self.draining = False
        self.active = 0  # requests that are being answered
        for one in served:
            self.metrics.model.labels(one.name).set(1)
        self.metrics.waiting.set_function(lambda: self.waiting)
        self.metrics.live.set_function(lambda: sum(one.live for one in self.engines.values()))

    @property
    def waiting(self) -> int:
        """Rows in the queues."""
        return sum(one.engine.waiting for one in self.engines.values())

    def engine(self, model: str) -> EngineThread:
        """The engine of the model with this name."""
        if model in self.engines:
            return self.engines[model]
        message = f"the model {model[:80]!r} does not exist; this server has {', '.join(self.engines)}."
        raise RequestError(message, param="model", status=404, code="model_not_found")


def build_app(state: ServerState, on_failure: Callable[[BaseException], object]) -> FastAPI:
    """The application; its engines run as long as it does. `on_failure` is called when one of them has ended."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for engine in state.engines.values():
            engine.start(asyncio.get_running_loop(), on_failure)
        yield
        for engine in state.engines.values():
            await engine.close()
        state.slow_pool.shutdown(wait=False, cancel_futures=True)

    version = installed_version("voidpad") or "unknown"
    app = FastAPI(title="voidpad", version=version, redoc_url=None, lifespan=lifespan)
    # The gate below checks keys, also those of paths without a route; this is for the OpenAPI page.
    keyed = [Depends(HTTPBearer(auto_error=False))] if state.access.keys else []
    api = APIRouter(dependencies=keyed, responses=ERRORS)

    @api.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        return await _generate(state, request, body)

    @api.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await _generate(state, request, body)

    @api.post("/v1/responses")
    async def responses(body: ResponsesBody, request: Request) -> Response:
        return await _generate(state, request, body)

    @api.get("/v1/models")
    async def models() -> Response:
        return JSONResponse(
            {"object": "list", "data": [_model_object(state, name) for name in state.engines]}
        )

    @api.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return JSONResponse(_model_object(state, name))

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready")
    async def ready() -> Response:
        waiting, limit = state.waiting, state.options.queue
        alive = all(engine.alive for engine in state.engines.values())
        usable = alive and not state.draining and waiting < limit
        content = {"ready": usable, "waiting": waiting, "queue": limit, "draining": state.draining}
        return JSONResponse(content, status_code=200 if usable else 503)

    @api.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(state.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(state.page, headers=PAGE_HEADERS)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        raise invalid(error.errors()[0])

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        raise RequestError(str(error.detail), status=error.status_code)

    app.include_router(api)
    app.add_middleware(_Gate, state=state)
    if state.access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(state.access.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["X-Request-Id", "X-Voidpad-Ignored"],
        )
    return app


def _model_object(state: ServerState, name: str) -> dict[str, Any]:
    served = state.engine(name).served
    return {
        "id": served.name,
        "object": "model",
        "created": state.started,
        "owned_by": "voidpad",
        "voidpad": {
            "family": served.model.family.name,
            "padding": served.model.card.padding,
            "context": served.model.context,
            "plan": served.plan_name,
            "fields": dict(served.options.fields),
            "fingerprint": served.fingerprint,
        },
    }


class _Gate:
    """Around every request: who may ask, bounds of the body, request ids, the log line, and errors as replies."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        state, begun, status, key = self.state, time.perf_counter(), 0, None
        headers = Headers(scope=scope)
        given = re.fullmatch(r"[\w.:-]{1,128}", headers.get("x-request-id", ""), re.ASCII)
        request_id = given[0] if given else f"req_{uuid.uuid4().hex}"
        notes: dict[str, Any] = {"request": request_id}
        scope["state"] = {**(scope.get("state") or {}), "notes": notes}

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            try:
                async with asyncio.timeout(state.options.timeout):  # a client that does not read
                    await send(message)
            except TimeoutError:
                raise ClientDisconnect from None

        async def refuse(error: RequestError) -> None:
            # The message may quote what the user wrote, so it is logged only where prompts may be.
            reason = (error.code or error.param or error.type)[:80]
            notes["refused"] = str(error) if state.options.log_prompts else reason
            reply = JSONResponse(error.body, status_code=error.status, headers=error.headers)
            await reply(scope, receive, noting)

        state.active += 1
        try:
            try:
                key = state.access.enter(scope, headers)
                if scope["method"] == "POST":
                    self._check_post(headers)
                    receive = await self._whole_body(scope, receive)
                await self.app(scope, receive, noting)
            except RequestError as error:
                await refuse(error)
        except ClientDisconnect:
            status, notes["stopped"] = status or 499, "the client has gone"
        except Exception as error:
            log.exception("request failed")
            if not status:
                name = type(error).__name__
                await refuse(RequestError(f"the server failed: {name}.", status=500))
        finally:
            state.active -= 1
            state.access.leave(key)
            if live := notes.pop("live", None):
                self._close(live, notes)
            path, route = scope["path"], getattr(scope.get("route"), "path", "other")
            state.metrics.requests.labels(route, str(status)).inc()
            seconds = round(time.perf_counter() - begun, 3)
            log.info(
                "request",
                extra={"request": {"path": path[:120], "status": status, "seconds": seconds, **notes}},
            )

    def _close(self, live: LiveRequest, notes: dict[str, Any]) -> None:
        """End the rows of a request that was answered or whose client has gone; what it cost goes into its log line."""
        if live.error is not None:
            notes["stopped"] = str(live.error)
        elif any(choice.report is None for choice in live.choices):
            notes["stopped"] = "the client has gone"
        self.state.engine(live.served.name).cancel(live)
        notes["answer_tokens"] = live.answer_tokens
        notes["passes"] = sum((choice.report or {}).get("passes_decode", 0) for choice in live.choices)
        self.state.metrics.answer_tokens.inc(live.answer_tokens)

    def _check_post(self, headers: Headers) -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError("the content type must be application/json.", status=415)
        if self.state.draining:
            raise RequestError("the server is shutting down.", status=503)

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """`receive` after the body has arrived, within bounds of size and time."""
        options, body = self.state.options, bytearray()
        try:
            async with asyncio.timeout(options.timeout):
                async for part in Request(scope, receive).stream():
                    body += part
                    if len(body) > options.max_body:
                        raise RequestError(f"the body is larger than {options.max_body} bytes.", status=413)
        except TimeoutError:
            late = "the body did not arrive within the server's timeout."
            raise RequestError(late, status=408) from None
        left = [{"type": "http.request", "body": bytes(body)}]

        async def rest() -> Message:
            return left.pop() if left else await receive()  # which now only tells when the client leaves

        return rest


async def _generate(state: ServerState, http: Request, body: GenerationBody) -> Response:
    deadline = time.monotonic() + state.options.timeout
    engine = state.engine(body.model)

    def run(call: Callable[[], Tensor]) -> Tensor:
        waiting = engine.between_passes(call, deadline=deadline)
        return asyncio.run_coroutine_threadsafe(waiting, engine.loop).result()

    # The event loop goes on meanwhile; what may take long does not hold up the others either.
    slow = body.constrained or len(await http.body()) > LONG_BODY
    pool = state.slow_pool if slow else None
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            live = await engine.loop.run_in_executor(pool, resolve, body, engine.served, run)
    except TimeoutError:
        raise timed_out() from None
    notes = http.scope["state"]["notes"]
    notes |= {"id": live.id, "prompt_tokens": live.prompt_tokens}
    if state.options.log_prompts:
        notes["prompts"] = [live.served.model.tokenizer.decode(ids) for ids in live.prompts]
    headers = {}
    if body._unsupported:
        notes["ignored"] = ",".join(body._unsupported)[:200]
        headers["X-Voidpad-Ignored"] = notes["ignored"].encode("ascii", "backslashreplace").decode()
    state.metrics.prompt_tokens.inc(live.prompt_tokens)
    if isinstance(body, CompletionBody) and body.echo:
        await _unless_gone(http, engine.score(live, deadline=deadline))
    else:
        await engine.submit(live, deadline=deadline)
        notes["live"] = live
    if body.stream:
        headers |= STREAM_HEADERS
        return StreamingResponse(live.events(), headers=headers, media_type="text/event-stream")
    await _unless_gone(http, live.finished.wait())
    if live.error is not None:
        raise live.error
    return JSONResponse(live.reply(), headers=headers)


async def _unless_gone(http: Request, answer: Coroutine[Any, Any, Any]) -> None:
    """Wait for an answer; ends with ClientDisconnect when the client leaves first."""

    async def gone() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(answer), asyncio.create_task(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
