"""Options that several commands share: the plan and its fields, the cache, the size of a pass.

A value that is wrong whatever the model is refused here, before a command starts to load one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Optional

import typer

from voidpad.decode.plan import Plan
from voidpad.decode.presets import check_fields, describe, every_field
from voidpad.engine.cache_policy import cache_fault
from voidpad.engine.speed import SPEEDS, check_speed, with_speed
from voidpad.errors import ConfigError
from voidpad.roles import check_role_name

# Plan fields with an option of their own; --set reaches all others.
DIRECT_FIELDS: dict[str, type] = {"canvas": int, "block": int, "threshold": float, "temperature": float}
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="any field of the plan (`voidpad plans NAME` lists them), such as steps=64; may be given again",
    ),
]


class BuiltInFamily(StrEnum):
    """Whose built-in models: those of `BUILT_IN_FAMILIES` in models/locate.py, which is slow to import."""

    llada = "llada"
    dream = "dream"


def known_plan(value: str | None) -> str | None:
    """The callback of options that name a plan; module:object is looked up by `chosen_plan`."""
    if value is not None and ":" not in value:
        describe(value)
    return value


def _known_cache(value: str | None) -> str | None:
    if value is not None and (fault := cache_fault(value)):
        raise ConfigError(f"{fault}.")
    return value


def _room(param: typer.CallbackParam, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{param.name}={value} leaves no room for a row; use at least 1.")
    return value


PlanName = Annotated[
    str | None,
    typer.Option(
        "--plan",
        help="how to decode: a name that `voidpad plans` lists, or module:object of your own; "
        "default: the one that fits the checkpoint's padding",
        callback=known_plan,
    ),
]
CacheName = Annotated[
    str | None,
    typer.Option(
        "--cache",
        help="keep keys and values inside a block (approximate): prefix, dual, dual:4 (all every 4 passes), "
        "prompt:4 or ahead:4 (the prompt every 4 passes)",
        callback=_known_cache,
    ),
]
SpeedName = Annotated[
    str | None,
    typer.Option(
        "--speed",
        help="approximations by name, with their price on the built-in tasks (docs/fast.md): "
        + "; ".join(f"{name} ({speed}: {speed.price})" for name, speed in SPEEDS.items())
        + "; default: exact, and the switches that are given",
    ),
]
RowLimit = Annotated[
    int,
    typer.Option(
        "--rows", help="most rows (prompts with their canvases) in one forward pass", callback=_room
    ),
]
TokenLimit = Annotated[
    int, typer.Option("--tokens", help="most tokens of these rows in one forward pass", callback=_room)
]
Seed = Annotated[
    int,
    typer.Option("--seed", min=0, max=2**63 - 1, help="of random choices; no effect at temperature 0"),
]


def say_plan(name: str, padding: str | None) -> None:
    """A line on standard error: which plan was chosen for a user who named none."""
    trained = f"was trained with {padding} padding" if padding else "names no padding"
    typer.echo(f"plan: {name} (this checkpoint {trained})", err=True)


def takes_plan_fields(
    command: Callable[..., None] | None = None, *, also: Sequence[str] = ()
) -> Callable[..., Any]:
    """Decorator: the command gets options for the most used plan fields, and --set for all others.

    It receives what was given as `fields`, and values of --set whose names are in `also` as `others`. Where it has the
    option --speed, `fields` and `cache` have the approximations that the name stands for.
    """
    if command is None:
        return functools.partial(takes_plan_fields, also=also)
    known = {one.name: one for one in every_field()}
    run = command

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        direct = {name: given.pop(name) for name in DIRECT_FIELDS}
        fields = read_settings(given.pop("settings") or [], **direct)
        if also:
            given["others"] = {name: fields.pop(name) for name in also if name in fields}
        read = check_fields(fields)
        for name in fields:
            for word in getattr(read, name) if known[name].type == "names" else ():
                if isinstance(word, str):
                    check_role_name(word)
        if given.get("speed") is not None:
            fields, given["cache"] = with_speed(given["speed"], fields, given["cache"])
            if (plan := given["plan"]) is not None and ":" not in plan:
                check_speed(given["speed"], plan)
        run(**given, fields=fields)

    parameters = inspect.signature(command, eval_str=True).parameters.values()
    hints = {name: Annotated[Optional[kind], typer.Option(help=known[name].help)]  # noqa: UP045
             for name, kind in DIRECT_FIELDS.items()}  # fmt: skip
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in {**hints, "settings": Settings}.items()
    ]
    own = [one for one in parameters if one.name not in ("fields", "others")]
    wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    del wrapped.__wrapped__
    return wrapped


def read_settings(given: Sequence[str], **fields: Any) -> dict[str, Any]:
    """The values of --set by name, beside those that are given as options of their own and are not None.

    A value is read as JSON where it is JSON (numbers, true, null), else as text.
    """
    found = {name: value for name, value in fields.items() if value is not None}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals:
            raise ConfigError(f"--set {text!r}: write FIELD=VALUE, for example steps=64.")
        if name in found:
            raise ConfigError(f"--set {text!r}: {name} is given twice.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def chosen_plan(text: str) -> str | Plan:
    """The value of --plan: a preset's name as it is, or the Plan that `module:object` names.

    The module is found as `python -m` finds it, the current folder first. Its code runs with the user's rights, so
    only the command line loads plans this way.
    """
    if ":" not in text:
        return text
    name, _, attribute = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise ConfigError(
            f"plan {text!r}: cannot import {name} ({type(error).__name__}: {error})."
        ) from error
    plan = vars(module).get(attribute)
    if not isinstance(plan, Plan):
        there = "no such object" if plan is None else f"a {type(plan).__name__}"
        raise ConfigError(
            f"plan {text!r}: {attribute} is {there} in {name}; define it as a voidpad.decode.Plan."
        )
    return plan
