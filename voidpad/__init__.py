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
_HOMES = {
    "Roles": "voidpad.roles",
    "plan": "voidpad.decode.presets",
    **dict.fromkeys(("choice", "json_object", "json_schema", "regex"), "voidpad.constrain"),
}


def __getattr__(name: str) -> Any:
    """A public name, imported on first use (PEP 562): `import voidpad` and the command line's help stay quick."""
    if name not in __all__:
        raise AttributeError(f"module 'voidpad' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "voidpad.models")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
