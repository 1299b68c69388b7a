"""`voidpad serve`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from voidpad.commands.options import (
    DEFAULT_MODEL,
    ModelOptions,
    RowLimit,
    SamplingOptions,
    SpeedOptions,
    TokenLimit,
    assignments,
    grouped,
)
from voidpad.engine.speed import switched_on
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.models import Model


@dataclass(frozen=True)
class ServerOptions:
    """Address, access and limits, by the names of `serve.server.ServeOptions`."""

    host: str = Option("127.0.0.1", help="address to listen on")
    port: int = Option(8000, help="port; 0 takes a free one", min=0, max=65535)
    hosts: list[str] | None = Option(None, "--allowed-host", help="further name of this host")
    origins: list[str] | None = Option(
        None, "--allowed-origin", help="other page whose scripts may call this server"
    )
    api_keys: Path | None = Option(None, help="file with one API key a line (mode 600)")
    no_auth: bool = Option(False, "--no-auth", help="listen beyond this machine without API keys")
    key_requests: int | None = Option(None, help="most requests of one API key at a time", min=1)
    lenient: bool = Option(False, "--lenient", help="ignore unsupported request fields; a header names them")
    rows: RowLimit = 32
    tokens: TokenLimit = 16384
    queue: int = Option(256, help="most rows that wait; further requests get 429", min=1)
    timeout: float = Option(120.0, help="seconds a request may take", min=0.1, max=1e6)
    drain: float = Option(30.0, help="seconds live answers may take after SIGTERM", min=0, max=1e6)
    max_body: int = Option(1 << 20, min=1, help="largest request body in bytes")
    log_json: bool = Option(False, "--log-json", help="log lines as JSON")
    log_prompts: bool = Option(False, "--log-prompts", help="put prompts into the log")


@grouped
def serve(
    source: ModelOptions,
    decoding: SamplingOptions,
    fast: SpeedOptions,
    server: ServerOptions,
    checkpoint: str | None = Argument(
        None, metavar="MODEL", help="built-in name, hub id or folder; same as --model"
    ),
    name: str | None = Option(None, help="the model's name for clients"),
    replicas: int | None = Option(None, help="copies of the model on Ray Serve, on this machine", min=1),
    more_adapters: list[str] | None = Option(
        None,
        "--more-adapter",
        metavar="NAME=ADAPTER",
        help="another adapter of MODEL, for requests of model NAME",
    ),
) -> None:
    """Serve a model over HTTP with OpenAI's interface, and a page that shows the canvas."""
    if checkpoint is not None:
        if source.model not in (DEFAULT_MODEL, checkpoint):
            raise ConfigError(f"{checkpoint} and --model {source.model} name two models; give one.")
        source = replace(source, model=checkpoint)
    if decoding.plan is not None and ":" in decoding.plan:
        raise ConfigError(
            f"plan {decoding.plan!r}: a plan from a module cannot be served; give the name of a preset."
        )
    from voidpad.serve.options import ServeOptions
    from voidpad.serve.requests import usual_plan
    from voidpad.serve.server import serve as run

    names = {"hosts": tuple(server.hosts or ()), "origins": tuple(server.origins or ())}
    options = ServeOptions(name=name or source.model, **{**vars(server), **names})
    adapters = assignments("--more-adapter", more_adapters, "NAME=ADAPTER")
    if adapters and replicas is not None:
        raise ConfigError("--more-adapter and --replicas exclude each other; leave one of them out.")
    options.access()  # refused before weights are loaded, and before Ray starts
    opened = source.open()
    fields, cache = fast.apply(decoding.plan or opened.default_plan, decoding.fields())
    opened.plan(decoding.plan or usual_plan(opened.default_plan), **fields)
    options = replace(options, plan=decoding.plan, fields=fields, cache=cache)

    def announce(address: str) -> None:
        switches = ", ".join(switched_on(fields, cache))
        approximate = f"; approximate: {switches}" if switches else ""
        typer.echo(f"voidpad serves {options.name} at {address}{approximate}; Ctrl-C stops it.", err=True)

    if replicas is not None:
        from voidpad.serve.replicas import ReplicaOptions, serve_replicas

        copies = ReplicaOptions(**vars(options), **vars(source), replicas=replicas)
        raise typer.Exit(serve_replicas(copies, ready=announce))
    others = {name: replace(source, adapter=adapter) for name, adapter in adapters.items()}

    def load() -> dict[str, Model]:
        return {str(options.name): source.load(opened), **{name: one.load() for name, one in others.items()}}

    raise typer.Exit(run(load, options, ready=announce))
