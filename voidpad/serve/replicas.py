"""Several replicas on Ray Serve: each holds the model and an engine of its own, Ray's proxy spreads the requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError

from voidpad import models
from voidpad.errors import ConfigError, VoidpadError, format_validation_error
from voidpad.models.device import gpus_per_task
from voidpad.serve.app import ServerState, build_app
from voidpad.serve.monitoring import log_to_stderr
from voidpad.serve.options import Access, ServeOptions
from voidpad.serve.requests import ServedModel
from voidpad.serve.server import address_of, bind

NAME = "voidpad"  # of Ray's application and of its one deployment
# Replicas write the log lines of requests themselves.
_QUIET = {"log_level": "WARNING", "enable_access_log": False}
SECONDS_TO_TELL = 1.0  # how long a replica whose engine has failed may still send errors to its clients


@dataclass(frozen=True)
class ReplicaOptions:
    """Which model each replica loads and where, and how many replicas there are."""

    model: str = "tiny-void"
    adapter: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantize: str | None = None
    replicas: int = 1

    def app(self, options: ServeOptions, access: Access) -> FastAPI:
        """The routes over a model and an engine of this process; the engine runs as long as the application."""
        model = models.load(
            self.model, self.adapter, device=self.device, dtype=self.dtype, quantize=self.quantize
        )
        state = ServerState([ServedModel(model, options)], options, access)
        log_to_stderr(as_json=options.log_json)

        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            loop = asyncio.get_running_loop()

            def failed(error: BaseException) -> None:
                # Ray starts another replica when this process has ended.
                loop.call_soon_threadsafe(loop.call_later, SECONDS_TO_TELL, os._exit, 1)

            for engine in state.engines.values():
                engine.on_failure = failed
                engine.start(loop)
            yield
            for engine in state.engines.values():
                await asyncio.to_thread(engine.close)

        return build_app(state, lifespan)


def application(settings: dict[str, Any]) -> Any:
    """The Ray application for a cluster that runs already: `serve run voidpad.serve.replicas:application model=...`.

    `settings` are the fields of ReplicaOptions and ServeOptions; address and port are those of the cluster's proxy,
    which other machines can reach, so keys or `no_auth` are needed.
    """
    own = {field.name for field in fields(ReplicaOptions)}
    known = own | {field.name for field in fields(ServeOptions)} - {"host", "port"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ConfigError(
            f"{unknown[0]}: no setting of this application; known are {', '.join(sorted(known))}."
        )
    try:
        copies = TypeAdapter(ReplicaOptions).validate_python({k: v for k, v in settings.items() if k in own})
        options = TypeAdapter(ServeOptions).validate_python(
            {k: v for k, v in settings.items() if k not in own}
        )
    except ValidationError as error:
        raise ConfigError(f"{format_validation_error(error.errors()[0])}.") from None
    access = replace(options, host="0.0.0.0").access()
    return _bound(copies, options, access)


def _bound(copies: ReplicaOptions, options: ServeOptions, access: Access) -> Any:
    ray, serve = _ray_serve()
    if Path(copies.model).exists():  # replicas have another working directory
        copies = replace(copies, model=str(Path(copies.model).resolve()))
    # `access` has the keys' digests.
    options = replace(options, name=options.name or copies.model, api_keys=None)

    def build() -> FastAPI:
        return copies.app(options, access)

    gpus = gpus_per_task(copies.device, ray.cluster_resources() if ray.is_initialized() else {})
    deployment = serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        num_replicas=copies.replicas,
        # Rows wait in the replica's own queue, which refuses with 429; the router only spreads.
        max_ongoing_requests=options.rows + options.queue,
        graceful_shutdown_timeout_s=options.drain,
        graceful_shutdown_wait_loop_s=1.0,
        health_check_period_s=2,
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus},
        logging_config=_QUIET,
    )
    return deployment.bind()


def serve_replicas(
    copies: ReplicaOptions, options: ServeOptions, *, ready: Callable[[str], None] = lambda address: None
) -> int:
    """Serve with Ray on this machine until SIGTERM or SIGINT; then live answers may finish. Returns 0."""
    ray, serve = _ray_serve()
    access = options.access()
    with contextlib.closing(bind(options.host, options.port)) as listener:  # refuses a port that is in use
        address = address_of(listener)
    stop = threading.Event()
    ray.init(address="local", include_dashboard=False)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: stop.set())
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": options.host, "port": int(address.rsplit(":", 1)[1])},
            logging_config=_QUIET,
        )
        try:
            serve.run(_bound(copies, options, access), name=NAME, route_prefix="/")
        except RuntimeError as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise VoidpadError(f"the replicas did not start: {lines[-1].strip()}") from None
        ready(f"{address} ({copies.replicas} on Ray Serve)")
        while not stop.wait(0.5):
            pass
        serve.delete(NAME)
    finally:
        with contextlib.suppress(Exception):
            serve.shutdown()
        ray.shutdown()
    return 0


def _ray_serve() -> tuple[Any, Any]:
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ConfigError(
            f"replicas need Ray Serve ({error}); pip install 'voidpad[serve,ray]', or leave out --replicas."
        ) from None
    return ray, serve
