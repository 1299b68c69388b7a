"""Options that several commands share.

A group is a dataclass whose fields are options. A command takes a group as one parameter, and `@grouped` gives it the
options of its groups. Values are checked where they are used: plans and prompts on the opened checkpoint, the device
where weights are read.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from typer import Option

from voidpad.commands.ui import err, note, warn
from voidpad.decode.plan import Plan
from voidpad.engine.cache_policy import WAYS, CachePolicy
from voidpad.engine.speed import SPEEDS, with_speed
from voidpad.errors import ConfigError

if TYPE_CHECKING:
    from voidpad.evaluate import Resources
    from voidpad.models import Checkpoint, Model

DEFAULT_MODEL = "tiny-void"
LARGE = 100_000_000  # parameters from which on a line says what was loaded, without a terminal too
MANY = 1_000_000_000  # parameters beyond which float32 on a CPU is a mistake more often than a wish


# Whose built-in models: those of `BUILT_IN_FAMILIES` in models/locate.py, which is slow to import.
BuiltInFamily = Annotated[Literal["llada", "dream"], Option(help="of the built-in models")]
Adapter = Annotated[str | None, Option(help="LoRA adapter, added without merging")]
AsJson = Annotated[bool, Option("--json", help="print JSON")]
Raw = Annotated[bool, Option("--raw", help="no chat template")]
SystemPrompt = Annotated[str | None, Option(help="system prompt")]
RowLimit = Annotated[int, Option(min=1, help="most rows (prompts with canvases) in one forward pass")]
TokenLimit = Annotated[int, Option(min=1, help="most tokens of these rows in one forward pass")]
Seed = Annotated[int, Option(min=0, max=2**63 - 1, help="of random choices; no effect at temperature 0")]
Device = Annotated[
    str, Option(help="auto (CUDA, then MPS, then CPU), cpu, cuda, cuda:1, mps, or spread over all GPUs")
]


def _named_as_picture(value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() not in PICTURES:
        raise ConfigError(f"{value}: the name of a picture ends in {', '.join(PICTURES[:3])}; rename it.")
    return value


PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp")
Picture = Annotated[Path | None, Option(help="draw a picture to this file", callback=_named_as_picture)]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: a parameter whose type is a dataclass becomes the options that its fields are."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for one in inspect.signature(command, eval_str=True).parameters.values():
        found = [(one.name, one.default, one.annotation)]
        if is_dataclass(one.annotation):
            groups[one.name] = one.annotation
            hints = get_type_hints(one.annotation, include_extras=True)
            found = [(field.name, field.default, hints[field.name]) for field in fields(one.annotation)]
        for name, default, hint in found:
            options.append(inspect.Parameter(name, one.KEYWORD_ONLY, default=default, annotation=hint))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in options}
    del run.__wrapped__  # typer would look at its signature instead
    return run


@dataclass(frozen=True)
class ModelOptions:
    """A checkpoint, and how its weights are loaded."""

    model: str = Option(DEFAULT_MODEL, help="built-in name, hub id or folder")
    adapter: Adapter = None
    device: Device = "auto"
    dtype: str = Option("auto", help="float32, bfloat16 or auto (float32 on a CPU)")
    quantize: str | None = Option(
        None,
        help="weights in fewer bits: 8bit or 4bit to save memory, fp8 for speed on recent NVIDIA GPUs "
        "(docs/fast.md)",
    )

    def open(self, **how: Any) -> Checkpoint:
        return open_model(self.model, self.adapter, **how)

    def load(self, opened: Checkpoint | None = None) -> Model:
        """The model; a line on standard error says what it is, unless it is small and nobody watches."""
        loaded = (opened or self.open()).load_weights(self.device, self.dtype, self.quantize)
        if err.is_terminal or loaded.parameters >= LARGE:
            note(loaded.summary)
        if warning := slow(loaded):
            warn(warning)
        return loaded


def open_model(
    model: str,
    adapter: str | None = None,
    *,
    family: str | None = None,
    roles: Sequence[str] = (),
    causal_block: int | None = None,
) -> Checkpoint:
    """The opened checkpoint, without weights; what had to be assumed about it is a line on standard error."""
    from voidpad.models import open_checkpoint

    given = role_ids(roles)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", UserWarning)
        opened = open_checkpoint(model, adapter, family=family, roles=given, causal_block=causal_block)
    for one in seen:
        warn(str(one.message))
    return opened


def assignments(option: str, given: Sequence[str] | None, form: str) -> dict[str, str]:
    """Words NAME=VALUE as a mapping. `option` and `form` are for the error: what was given, and how to write it."""
    found: dict[str, str] = {}
    for text in given or ():
        name, _, value = text.partition("=")
        if not name.strip() or not value:
            raise ConfigError(f"{option} {text!r}: write {form}.")
        found[name.strip()] = value
    return found


def role_ids(given: Sequence[str]) -> dict[str, Any]:
    """`void=56940` and `rainbow=56940,86766` as ids by role."""
    roles: dict[str, Any] = {}
    for role, value in assignments("--roles", given, form := "ROLE=ID, for example void=56940").items():
        try:
            ids = tuple(int(part) for part in value.split(","))
        except ValueError:
            raise ConfigError(f"--roles {role}={value}: write {form}.") from None
        roles[role] = ids if len(ids) > 1 else ids[0]
    return roles


def slow(model: Model) -> str | None:
    """What to say where billions of parameters run in float32 on a CPU."""
    count = model.parameters
    if model.device.type != "cpu" or model.scheme or model.net.dtype.itemsize < 4 or count < MANY:
        return None
    return (
        f"{count / 1e9:.1f} billion parameters in float32 on a CPU take {4 * count / 1e9:.0f} GB and minutes for an "
        "answer; use --device cuda, --dtype bfloat16 or --quantize 8bit."
    )


@dataclass(frozen=True)
class PlanOptions:
    """How to decode: a plan by name, its most used fields, and --set for all others."""

    plan: str | None = Option(
        None,
        help="how to decode: a name that `voidpad plans` lists, or module:object of your own; default: the one "
        "that fits the checkpoint's padding",
    )
    canvas: int | None = Option(None, help="canvas length at the start")
    block: int | None = Option(None, help="block size")
    settings: list[str] | None = Option(
        None,
        "--set",
        metavar="FIELD=VALUE",
        help="any other field of the plan (`voidpad plans NAME` lists them), such as steps=64; may be given again",
    )

    def fields(self) -> dict[str, Any]:
        """The values of --set by name, and those of the options that are plan fields.

        A value of --set is read as JSON where it is JSON (numbers, true, null), else as text.
        """
        found = {name: getattr(self, name) for name in DIRECT_FIELDS if getattr(self, name, None) is not None}
        for name, value in assignments("--set", self.settings, "FIELD=VALUE, for example steps=64").items():
            field = name.replace("-", "_")
            if field in found:
                raise ConfigError(f"--set {name}={value}: {field} is given twice.")
            try:
                found[field] = json.loads(value)
            except ValueError:
                found[field] = value
        return found

    def named(self) -> str | Plan | None:
        """The plan that --plan names: a preset's name, or the Plan of the user's own that `module:object` names.

        The module is found as `python -m` finds it, the current folder first. Its code runs with the user's rights, so
        only the command line loads plans this way.
        """
        if self.plan is None or ":" not in self.plan:
            return self.plan
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            plan = pkgutil.resolve_name(self.plan)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"plan {self.plan!r}: cannot be imported ({type(error).__name__}: {error})."
            ) from error
        if not isinstance(plan, Plan):
            raise ConfigError(
                f"plan {self.plan!r}: is a {type(plan).__name__}; define it as a voidpad.decode.Plan."
            )
        return plan


DIRECT_FIELDS = ("canvas", "block", "threshold", "temperature")  # plan fields with options of their own


@dataclass(frozen=True)
class SamplingOptions(PlanOptions):
    """With the two fields that people try first."""

    threshold: float | None = Option(None, help="write every slot that is surer than this (approximate)")
    temperature: float | None = Option(None, help="0 takes the likeliest tokens")


@dataclass(frozen=True)
class SpeedOptions:
    """Approximations that make decoding faster."""

    cache: str | None = Option(
        None,
        help=f"keep keys and values inside a block (approximate): {WAYS}",
    )
    speed: str | None = Option(
        None,
        help="approximations by name, with their price on the built-in tasks (docs/fast.md): "
        + "; ".join(f"{name} ({speed}: {speed.price})" for name, speed in SPEEDS.items())
        + "; default: exact, and the switches that are given",
    )

    def apply(self, plan: str | Plan, given: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Plan fields and the cache, with those that the named speed stands for."""
        chosen, cache = with_speed(self.speed, plan, given, self.cache)
        if cache is not None:
            CachePolicy.parse(cache)  # refused before weights are read
        return chosen, cache


@dataclass(frozen=True)
class JudgeOptions:
    """Where benchmarks come from, and what may run to judge answers."""

    data: Path | None = Option(None, help="folder with the benchmarks' files; without it, the hub")
    allow_code_execution: bool = Option(
        False, "--allow-code-execution", help="let generated programs run, sandboxed"
    )
    weak_sandbox: bool = Option(False, "--weak-sandbox", help="run them under seccomp and limits alone")
    workers: int = Option(1, min=1, help="programs tested side by side")

    def resources(self, **others: Any) -> Resources:
        """These options as `Resources`, with others such as the device and the size of a pass."""
        from voidpad.evaluate import Resources

        return Resources(**{**vars(self), **others})


@dataclass(frozen=True)
class TaskOptions(JudgeOptions):
    """With tasks of the user's own."""

    trust_tasks: bool = Option(False, "--trust-tasks", help="let YAML files of tasks run code")


def say_plan(name: str, padding: str | None) -> None:
    """A line on standard error: which plan was chosen for a user who named none."""
    trained = f"was trained with {padding} padding" if padding else "names no padding"
    err.print(f"plan: {name} (this checkpoint {trained})")
