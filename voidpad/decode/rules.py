"""What every decoding rule is: a frozen pydantic model whose fields carry their default, range and help text.

A rule is data: it can be printed, compared, hashed, pickled and turned into a JSON schema. A value out of range is
refused when the rule is made, with a `PlanError` that names the field.

The methods of a rule compute with its fields. A number may also be a tensor with one value for each row: `with_tensors`
makes such a rule, so that rows of many plans can share one captured pass. Rules therefore never branch on a number;
`is_on` says whether a number may be something else than 0.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Self, TypeGuard

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError
from torch import Tensor

from voidpad.errors import PlanError, format_validation_error, shown

MOST_SLOTS = 1 << 17  # upper bound of every length in a plan
MOST_PASSES = 1 << 20


class Rule(BaseModel):
    """Base of plans and of all their rules."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise plan_error(error) from None

    def replace(self, **changes: Any) -> Self:
        """The same rule with some fields changed; the new values are checked."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**values, **changes})

    def with_tensors(self, **numbers: Tensor | Rule) -> Self:
        """The same rule with tensors in place of some numbers: one value for each row or slot it is applied to."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return self.model_construct(**{**values, **numbers})

    def plain(self) -> dict[str, Any]:
        """The rule as JSON values: its name and its fields."""
        return {"rule": name_of(self)} | {
            name: _plain(getattr(self, name)) for name in type(self).model_fields
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Rule):
        return value.plain()
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def is_on(number: float | Tensor) -> TypeGuard[Any]:
    """Whether a number of a rule may differ from 0; a tensor is not looked at."""
    return isinstance(number, Tensor) or number != 0


def name_of(rule: object) -> str:
    """The name of a rule's class; with its module if it is not voidpad's."""
    named = type(rule)
    ours = named.__module__.startswith("voidpad.")
    return named.__qualname__ if ours else f"{named.__module__}:{named.__qualname__}"


def plan_error(error: ValidationError) -> PlanError:
    """The first thing that pydantic found wrong, on one line, with the name of its field."""
    first = error.errors()[0]
    field = str(first["loc"][0])[:60] if first["loc"] else ""
    if first["type"] in ("extra_forbidden", "missing"):
        return PlanError(f"{format_validation_error(first)}.", field=field)
    given, said = shown(first["input"]), first["msg"].removeprefix("Input ")
    place = "".join(f"[{part}]" for part in first["loc"][1:] if isinstance(part, int))
    return PlanError(f"{field}{place}={given}: it {said}.", field=field)


# ------------------------------------------------------------------------------------- names of tokens
def _parsed_names(given: Any) -> Any:
    """ "void, 12" or ["void", 12] as ("void", 12)."""
    if not isinstance(given, str | list | tuple):
        raise PydanticCustomError("names", "Input should be role names and token ids, separated by commas")
    parts = given.split(",") if isinstance(given, str) else given
    stripped = [part.strip() if isinstance(part, str) else part for part in parts]
    return tuple(
        int(part) if isinstance(part, str) and re.fullmatch("[0-9]{1,9}", part) else part
        for part in stripped
        if part != ""
    )


Names = Annotated[tuple[str | int, ...], BeforeValidator(_parsed_names)]  # such as ("void", 126081)
