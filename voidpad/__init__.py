"""Train, decode, evaluate and inspect masked diffusion language models that know when to stop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from voidpad.engine.host import wait_passively

if TYPE_CHECKING:
    from voidpad.constrain import choice, json_object, json_schema, regex
    from voidpad.decode.presets import plan
    from voidpad.models import Model, Result, load, merge, open_checkpoint, random_model, save
    from voidpad.roles import Roles

wait_passively()  # OpenMP reads how its threads wait when torch is imported

# Resolved on first use (PEP 562), so that `import voidpad` and the command line's help stay quick.
_HOMES = {
    "Model": "voidpad.models",
    "Result": "voidpad.models",
    "Roles": "voidpad.roles",
    "choice": "voidpad.constrain",
    "json_object": "voidpad.constrain",
    "json_schema": "voidpad.constrain",
    "load": "voidpad.models",
    "merge": "voidpad.models",
    "open_checkpoint": "voidpad.models",
    "plan": "voidpad.decode.presets",
    "random_model": "voidpad.models",
    "regex": "voidpad.constrain",
    "save": "voidpad.models",
}
__all__ = [
    "Model",
    "Result",
    "Roles",
    "choice",
    "json_object",
    "json_schema",
    "load",
    "merge",
    "open_checkpoint",
    "plan",
    "random_model",
    "regex",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'voidpad' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
