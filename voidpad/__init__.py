"""Train, decode, evaluate and inspect masked diffusion language models that know when to stop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voidpad.decode.plan import plan
    from voidpad.models import Model, Result, load, merge, random_model, save
    from voidpad.roles import Roles

# Resolved on first use (PEP 562), so that `import voidpad` and the command line's help stay quick.
_HOMES = {
    "Model": "voidpad.models",
    "Result": "voidpad.models",
    "Roles": "voidpad.roles",
    "load": "voidpad.models",
    "merge": "voidpad.models",
    "plan": "voidpad.decode.plan",
    "random_model": "voidpad.models",
    "save": "voidpad.models",
}
__all__ = ["Model", "Result", "Roles", "load", "merge", "plan", "random_model", "save"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'voidpad' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
