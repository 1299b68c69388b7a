"""Plan fields as command-line options, taken from the presets so that they exist in one place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Optional

import typer

from voidpad.decode.plan import HELP, PRESETS, describe

PANEL = "Plan fields (see `voidpad plans`)"


def field_types() -> dict[str, type]:
    """Every field of every preset, with its type."""
    found: dict[str, type] = {}
    for name in PRESETS:
        for family in ("llada", "dream"):
            found |= {key: type(value) for key, value in describe(name, family=family)[1].items()}
    return {name: str if found[name] is tuple else found[name] for name in HELP}


def takes_plan_fields(command: Callable[..., None]) -> Callable[..., None]:
    """A command with one option for each plan field; it receives those given as the dict `fields`."""
    types = field_types()

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        fields = {name: given.pop(name) for name in types}
        command(**given, fields={name: value for name, value in fields.items() if value is not None})

    own = inspect.signature(command, eval_str=True).parameters.values()
    kept = [p for p in own if p.name != "fields"]
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option(name, kind))
        for name, kind in types.items()
    ]
    wrapped.__signature__ = inspect.Signature([*kept, *extra])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*kept, *extra)}
    del wrapped.__wrapped__  # type: ignore[attr-defined]
    return wrapped


def option(name: str, kind: type) -> Any:
    flag = "--" + name.replace("_", "-")
    flags = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
    return Annotated[Optional[kind], typer.Option(*flags, help=HELP[name], rich_help_panel=PANEL)]  # noqa: UP045
