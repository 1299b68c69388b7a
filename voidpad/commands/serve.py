"""`voidpad serve`."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voidpad.commands.loading import Quantize
from voidpad.commands.options import (
    CacheName,
    RowLimit,
    SpeedName,
    TokenLimit,
    known_plan,
    takes_plan_fields,
)
from voidpad.engine.speed import check_speed, switched_on
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.models import Model

DEFAULT = "tiny-void"
UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


@takes_plan_fields
def serve(
    model: Annotated[str, typer.Argument(help="built-in name, hub id or folder")] = DEFAULT,
    named: Annotated[
        str | None, typer.Option("--model", help="the same as the argument, as other commands spell it")
    ] = None,
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter, added without merging")] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            help="how to decode unless a request says otherwise: a name that `voidpad plans` lists; default: the one "
            "that fits the checkpoint's padding",
            callback=known_plan,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="the model's name for clients")] = None,
    cache: CacheName = None,
    speed: SpeedName = None,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port; 0 takes a free one", min=0, max=65535)] = 8000,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="further host name under which requests are answered")
    ] = None,
    allowed_origin: Annotated[
        list[str] | None, typer.Option(help="other web page whose scripts may call this server (CORS)")
    ] = None,
    api_keys: Annotated[
        Path | None, typer.Option(help="file with one API key a line, readable by you alone (mode 600)")
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="listen beyond this machine without API keys")
    ] = False,
    key_requests: Annotated[
        int | None, typer.Option(help="most requests of one API key at a time", min=1)
    ] = None,
    lenient: Annotated[
        bool,
        typer.Option("--lenient", help="ignore request fields that cannot be honoured; a header names them"),
    ] = False,
    rows: RowLimit = 32,
    tokens: TokenLimit = 16384,
    queue: Annotated[int, typer.Option(help="most rows that wait; further requests get 429", min=1)] = 256,
    timeout: Annotated[float, typer.Option(help="seconds a request may take", min=0.1, max=1e6)] = 120.0,
    drain: Annotated[
        float, typer.Option(help="seconds live answers may take after SIGTERM", min=0, max=1e6)
    ] = 30.0,
    max_body: Annotated[str, typer.Option(help="largest request body, such as 1MiB")] = "1MiB",
    log_json: Annotated[bool, typer.Option("--log-json", help="log lines as JSON")] = False,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="put prompts into the log")] = False,
    replicas: Annotated[
        int | None, typer.Option(help="copies of the model on Ray Serve, on this machine", min=1)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, spread, or auto")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto")] = "auto",
    quantize: Quantize = None,
    fields: dict[str, Any] | None = None,
) -> None:
    """Serve a model over HTTP with OpenAI's interface, and a page that shows the canvas."""
    if named is not None and model not in (DEFAULT, named):
        raise ConfigError(f"{model} and --model {named} name two models; give one.")
    model = named or model
    missing = [
        package for package in ("fastapi", "uvicorn", "prometheus_client") if find_spec(package) is None
    ]
    if missing:
        raise ConfigError(f"serving needs {', '.join(missing)}; pip install 'voidpad[serve]'.")
    if plan is not None and ":" in plan:
        raise ConfigError(f"plan {plan!r}: a plan from a module cannot be served; give the name of a preset.")
    size = _bytes_of(max_body)
    from voidpad.serve.options import ServeOptions

    options = ServeOptions(
        plan=plan,
        fields=fields or {},
        cache=cache,
        name=name or model,
        host=host,
        port=port,
        hosts=tuple(allowed_host or ()),
        origins=tuple(allowed_origin or ()),
        api_keys=api_keys,
        key_requests=key_requests,
        lenient=lenient,
        no_auth=no_auth,
        rows=rows,
        tokens=tokens,
        queue=queue,
        timeout=timeout,
        drain=drain,
        max_body=size,
        log_json=log_json,
        log_prompts=log_prompts,
    )

    # What is wrong with the options is said before weights are loaded, and before Ray starts.
    options.access()
    from voidpad.commands.loading import check_device, load_opened, open_model
    from voidpad.serve.requests import usual_plan

    check_device(device, dtype, quantize)
    opened = open_model(model, adapter)
    if plan is None:
        check_speed(speed, opened.default_plan)
    opened.plan(plan or usual_plan(opened.default_plan), **options.fields)

    def announce(address: str) -> None:
        switches = ", ".join(switched_on(options.fields, options.cache))
        approximate = f"; approximate: {switches}" if switches else ""
        typer.echo(f"voidpad serves {options.name} at {address}{approximate}; Ctrl-C stops it.", err=True)

    if replicas is not None:
        from voidpad.serve.replicas import ReplicaOptions, serve_replicas

        copies = ReplicaOptions(model, adapter, device, dtype, quantize, replicas)
        raise typer.Exit(serve_replicas(copies, options, ready=announce))
    from voidpad.serve.server import serve

    def load() -> Model:
        return load_opened(opened, device, dtype, quantize)

    raise typer.Exit(serve(load, options, ready=announce))


def _bytes_of(text: str) -> int:
    """A size such as 1MiB or 65536 in bytes."""
    parts = re.fullmatch(r"(\d{1,12})\s*([a-zA-Z]*)", text.strip())
    if parts is None or parts[2].lower() not in UNITS or not int(parts[1]):
        raise ConfigError(f"max-body={text!r} is no size; use a number of bytes or something like 1MiB.")
    return int(parts[1]) * UNITS[parts[2].lower()]
