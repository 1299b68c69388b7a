"""Plan fields as command-line options, taken from the presets so that they exist in one place."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from voidpad.decode.plan import HELP, PRESETS, describe
from voidpad.errors import ConfigError

PANEL = "Plan fields (see `voidpad plans`)"
PICTURES = (".png", ".pdf", ".svg", ".jpg", ".webp")


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


# Callbacks of options that name an output: what cannot be written is refused before the work, not after it.


def file_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    if value is not None and value.is_dir():
        raise ConfigError(f"{param.opts[0]} {value}: is a folder; name a file in it.")
    if value is not None and not value.parent.is_dir():
        raise ConfigError(f"{param.opts[0]} {value}: there is no folder {value.parent}; create it first.")
    return value


def picture_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() not in PICTURES:
        known = f"{', '.join(PICTURES[:-1])} or {PICTURES[-1]}"
        raise ConfigError(f"{param.opts[0]} {value}: a picture's name ends in {known}; rename it.")
    return file_to_write(param, value)


def folder_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """It need not be there yet, nor those above it."""
    for place in () if value is None else (value, *value.absolute().parents):
        if place.is_dir() and os.access(place, os.W_OK):
            break
        if place.exists():
            what = "may not be written" if place.is_dir() else "is a file"
            raise ConfigError(f"{param.opts[0]} {value}: {place} {what}; choose another folder.")
    return value


def folder_there(param: typer.CallbackParam, value: Path | None) -> Path | None:
    if value is not None and not value.is_dir():
        raise ConfigError(f"{param.opts[0]} {value}: there is no such folder; create it first.")
    return value
