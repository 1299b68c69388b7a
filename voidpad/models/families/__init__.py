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

__all__ = ["DREAM", "FAMILIES", "LLADA", "Family", "recognise"]

FAMILIES: dict[str, Family] = {
    family.name: family for family in (LLADA, DREAM, ILLADA, LLADA_MOE, SDAR, SDAR_MOE, FAST_DLLM, LLADA2)
}


def recognise(config: Mapping[str, Any], *, where: str, name: str = "", given: str | None = None) -> Family:
    """The family of a released config.json.

    `name` is what the user typed (some hub checkpoints are known by it), `given` the family the user named. Dense
    models and mixtures of experts may carry the same model_type (LLaDA-MoE says `llada`): the experts tell them apart.
    """
    if given is not None and given not in FAMILIES:
        raise ConfigError(f"family {given!r} is unknown; use one of {', '.join(FAMILIES)}.")
    kind = str(config.get("model_type")).lower()
    names = [kind, *(config.get("architectures") or [])]
    experts = "num_experts" in config or any("moe" in str(name).lower() for name in names)
    for family in FAMILIES.values():
        named = given == family.name or name in family.hub_ids
        marked = kind in family.model_types and given in (None, family.name)
        if family.experts == experts and (marked or (named and kind in family.unmarked_types)):
            return family
    said = f"{where}: model_type {shown(kind)}{' with experts' if experts else ''}"
    if given is not None:
        raise WeightsError(f"{said} cannot be read as family {given!r}; drop family.")
    hint = next((family.name for family in FAMILIES.values() if kind in family.unmarked_types), None)
    fix = f"; if it is a masked diffusion model, name its family (--family {hint})" if hint else ""
    raise WeightsError(
        f"{said} is not covered; use a released checkpoint, or a folder saved by voidpad{fix}."
    )
