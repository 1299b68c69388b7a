"""The table of families. Adding one: a file beside this one, and a line in `FAMILIES`."""

from collections.abc import Mapping
from typing import Any

from voidpad.errors import ConfigError, WeightsError, shown
from voidpad.models.families.dream import DREAM
from voidpad.models.families.family import Family
from voidpad.models.families.fast_dllm import FAST_DLLM
from voidpad.models.families.illada import ILLADA
from voidpad.models.families.llada import LLADA
from voidpad.models.families.llada2 import LLADA2
from voidpad.models.families.llada_moe import LLADA_MOE
from voidpad.models.families.sdar import SDAR, SDAR_MOE

__all__ = ["DREAM", "FAMILIES", "LLADA", "Family", "family_named", "recognise"]

FAMILIES: dict[str, Family] = {
    family.name: family for family in (LLADA, DREAM, ILLADA, LLADA_MOE, SDAR, SDAR_MOE, FAST_DLLM, LLADA2)
}


def family_named(name: str) -> Family:
    """The family of this name, which a user gave."""
    if name not in FAMILIES:
        raise ConfigError(f"family {name!r} is unknown; use one of {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def recognise(config: Mapping[str, Any], *, where: str, name: str = "", given: str | None = None) -> Family:
    """The family of a released config.json.

    `name` is what the user typed (some hub checkpoints are known by it), `given` the family the user named. Dense
    models and mixtures of experts may carry the same model_type (LLaDA-MoE says `llada`): the experts tell them apart.
    """
    tried = [family_named(given)] if given else list(FAMILIES.values())
    kind = str(config.get("model_type")).lower()
    architectures = config.get("architectures") or []
    experts = "num_experts" in config or any("moe" in str(one).lower() for one in [kind, *architectures])
    for family in tried:
        unmarked = kind in family.unmarked_types and (given or name in family.hub_ids)
        if family.experts == experts and (kind in family.model_types or unmarked):
            return family
    hints = [f"--family {family.name}" for family in tried if kind in family.unmarked_types]
    fix = f", or name the family of a masked diffusion model ({', '.join(hints)})" if hints else ""
    raise WeightsError(
        f"{where}: model_type {shown(kind)}{' with experts' if experts else ''} is not covered"
        f"{f' as family {given!r}' if given else ''}; use a released checkpoint or a folder saved by voidpad{fix}."
    )
