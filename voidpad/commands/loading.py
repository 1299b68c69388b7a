"""One way for commands to load a model: the options they share, and a line that says what was loaded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voidpad.commands.ui import err
from voidpad.errors import AssumedWarning, ConfigError

if TYPE_CHECKING:
    from voidpad.models import Checkpoint, Model

LARGE = 100_000_000  # parameters

Device = Annotated[
    str, typer.Option(help="auto (CUDA, then MPS, then CPU), cpu, cuda, cuda:1, mps, or spread over all GPUs")
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or auto (float32 on a CPU)")]
Quantize = Annotated[
    str | None,
    typer.Option(
        help="weights in fewer bits: 8bit or 4bit to save memory, fp8 for speed on recent NVIDIA GPUs (docs/fast.md)"
    ),
]


def _known_family(value: str | None) -> str | None:
    from voidpad.models.families import FAMILIES

    if value is not None and value not in FAMILIES:
        raise ConfigError(f"family {value!r} is unknown; use one of {', '.join(FAMILIES)}.")
    return value


FamilyName = Annotated[
    str | None,
    typer.Option("--family", help="of a checkpoint whose config does not say it", callback=_known_family),
]
RoleIds = Annotated[
    list[str] | None, typer.Option("--roles", help="token ids by role: void=56940, rainbow=56940,86766")
]

CausalBlock = Annotated[
    int | None,
    typer.Option(
        "--causal-block", help="block size of a block-causal checkpoint that does not say it", min=1
    ),
]


def load_model(
    model: str,
    adapter: str | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str | None = None,
    family: str | None = None,
    roles: Sequence[str] | None = None,
    causal_block: int | None = None,
) -> Model:
    """The model of these options: `check_device`, `open_model` and `load_opened` in one call."""
    check_device(device, dtype, quantize)
    opened = open_model(model, adapter, family=family, roles=roles, causal_block=causal_block)
    return load_opened(opened, device, dtype, quantize)


def check_device(device: str, dtype: str, quantize: str | None) -> None:
    """Refuse a device, a dtype or a quantization that cannot be, before any file is read."""
    from voidpad.models import DeviceConfig

    DeviceConfig(device, dtype, quantize)


def open_model(
    model: str,
    adapter: str | None = None,
    *,
    family: str | None = None,
    roles: Sequence[str] | None = None,
    causal_block: int | None = None,
) -> Checkpoint:
    """The opened checkpoint, without weights; what had to be assumed about it is a line on standard error."""
    from voidpad.models import open_checkpoint

    given = role_ids(roles or ())
    with _warnings_on_stderr():
        return open_checkpoint(model, adapter, family=family, roles=given, causal_block=causal_block)


def load_opened(opened: Checkpoint, device: str, dtype: str, quantize: str | None) -> Model:
    """The model of an opened checkpoint, and a line on standard error with its device, dtype, parameters and memory.

    Without a terminal the line is left out for small models, which load at once and fit everywhere.
    """
    loaded = opened.load_weights(device, dtype, quantize)
    if err.is_terminal or loaded.parameters >= LARGE:
        err.print(loaded.summary, style="dim")
    warning = slow(loaded)
    if warning:
        err.print(warning, style="yellow")
    return loaded


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Inside, a warning about what a checkpoint does not say is one line on standard error."""
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
        if issubclass(category, AssumedWarning):
            err.print(f"warning: {message}", style="yellow")
        else:
            usual(message, category, *rest, **named)

    with warnings.catch_warnings():
        warnings.simplefilter("always", AssumedWarning)
        warnings.showwarning = show
        yield


def role_ids(given: Sequence[str]) -> dict[str, Any]:
    """`void=56940` and `rainbow=56940,86766` as ids by role."""
    roles: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            raise ConfigError(f"--roles {text!r}: write a role and its token ids, for example void=56940.")
        ids = tuple(map(int, parts))
        roles[name.strip()] = ids if name.strip() in ("ends", "rainbow", "never") else ids[0]
        if len(ids) > 1 and not isinstance(roles[name.strip()], tuple):
            raise ConfigError(f"--roles {text!r}: {name.strip()} is a single token id.")
    return roles


def slow(model: Model) -> str | None:
    """A warning where billions of parameters run in float32 on a CPU; None elsewhere."""
    from voidpad.models.device import MANY

    count = model.parameters
    if model.device.type != "cpu" or model.quantized or model.net.dtype.itemsize < 4 or count < MANY:
        return None
    return (
        f"warning: {count / 1e9:.1f} billion parameters in float32 on a CPU take {4 * count / 1e9:.0f} GB and minutes "
        "for an answer; use --device cuda, --dtype bfloat16 or --quantize 8bit."
    )
