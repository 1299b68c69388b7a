"""Several replicas on Ray Serve: each holds the model and an engine of its own, Ray's proxy spreads the requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from fastapi import FastAPI
from pydantic import ConfigDict, TypeAdapter, ValidationError

from voidpad import models
from voidpad.errors import ConfigError, VoidpadError, format_validation_error, install_command
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
class ReplicaOptions(ServeOptions):
    """How to serve, which model each replica loads and where, and how many replicas there are."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    model: str = "tiny-void"
    adapter: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantize: str | None = None
    replicas: int = 1

    def app(self, access: Access) -> FastAPI:
        """The routes over a model and an engine of this process."""
        model = models.load(
            self.model, self.adapter, device=self.device, dtype=self.dtype, quantize=self.quantize
        )
        log_to_stderr(as_json=self.log_json)

        def failed(error: BaseException) -> None:
            # Ray starts another replica when this process has ended.
            asyncio.get_running_loop().call_later(SECONDS_TO_TELL, os._exit, 1)

        return build_app(ServerState([ServedModel(model, self)], self, access), failed)


def application(settings: dict[str, Any]) -> Any:
    """The Ray application for a cluster that runs already: `serve run voidpad.serve.replicas:application model=...`.

    `settings` are the fields of ReplicaOptions; address and port are those of the cluster's proxy, which other machines
    can reach, so keys or `no_auth` are needed.
    """
    if own := settings.keys() & {"host", "port"}:
        raise ConfigError(
            f"{own.pop()}: no setting of this application, but of the cluster's proxy; leave it out."
        )
    try:
        options = TypeAdapter(ReplicaOptions).validate_python(settings)
    except ValidationError as error:
        raise ConfigError(f"{format_validation_error(error)}.") from None
    return _bound(options, replace(options, host="0.0.0.0").access())


def _bound(options: ReplicaOptions, access: Access) -> Any:
    ray, serve = _ray_serve()
    path = Path(options.model)
    model = str(path.resolve()) if path.exists() else options.model  # replicas have another working directory
    # `access` has the keys' digests.
    options = replace(options, name=options.name or options.model, model=model, api_keys=None)

    def build() -> FastAPI:
        return options.app(access)

    gpus = gpus_per_task(options.device, ray.cluster_resources() if ray.is_initialized() else {})
    deployment = serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        num_replicas=options.replicas,
        # Rows wait in the replica's own queue, which refuses with 429; the router only spreads.
        max_ongoing_requests=options.rows + options.queue,
        graceful_shutdown_timeout_s=options.drain,
        graceful_shutdown_wait_loop_s=1.0,
        health_check_period_s=2,
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus},
        logging_config=_QUIET,
    )
    return deployment.bind()


def serve_replicas(options: ReplicaOptions, *, ready: Callable[[str], None] = lambda address: None) -> int:
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
            serve.run(_bound(options, access), name=NAME, route_prefix="/")
        except RuntimeError as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise VoidpadError(f"the replicas did not start: {lines[-1].strip()}") from None
        ready(f"{address} ({options.replicas} on Ray Serve)")
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
            f"replicas need Ray Serve ({error}); {install_command('serve,ray')}, or leave out --replicas."
        ) from None
    return ray, serve
