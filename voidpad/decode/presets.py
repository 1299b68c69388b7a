"""Presets: plans by name, adjusted by flat fields such as `block`, `threshold` or `temperature`.

A preset combines rules. Its fields are those of its rules and of the plan itself, so their ranges and help texts are
the rules' own. Defaults come from the rules, then from the model's family, then from the checkpoint's calibration, then
from the suffix `@authors`, and last from the user. The fields of one preset are one pydantic model, its form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from voidpad.decode.authors import DreamLoop, R, as_published
from voidpad.decode.causal import CausalBlocks
from voidpad.decode.commit import CommitRule, EntropyBound, Factor, HighConfidence, StepsRule, Threshold, TopK
from voidpad.decode.eos_length import Daedal, RhoEos
from voidpad.decode.length import AppendedBlocks, Fixed, LengthRule, RoundedUp, SmartCrop, VoidExpansion
from voidpad.decode.penalty import EosPenalty
from voidpad.decode.plan import Plan
from voidpad.decode.propose import GumbelProposal, MaskLast, ProposeRule, SampledProposal
from voidpad.decode.rules import MOST_PASSES, Names, Rule
from voidpad.decode.stop import AfterBlock, EndsTermination, EosTermination, Vanilla
from voidpad.errors import PlanError

# Commit rules that a field switches on: the rule is chosen by a value other than 0.
SWITCHES: dict[str, type[CommitRule]] = {
    "threshold": Threshold,
    "factor": Factor,
    "entropy_bound": EntropyBound,
}
# Fields that only approximations have: without them, a plan decodes exactly.
APPROXIMATE_FIELDS = (*SWITCHES, "entropy_order", "trim")
STOPS = {"vanilla": Vanilla(), "eos": EosTermination()}


class Form(Rule):
    """Base of the forms that hold the flat fields of one preset."""


FormFields = dict[str, tuple[Any, Any]]  # name -> annotation and pydantic field


def rule_fields(rule: type[Rule], **defaults: Any) -> FormFields:
    """The fields of a rule for a form, with other defaults where these are given."""
    found: FormFields = {}
    for name, info in rule.model_fields.items():
        if name in ("kind", "steps"):  # `steps` has a meaning of its own in a form
            continue
        annotation = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        default = defaults.get(name, info.default)
        found[name] = (annotation, Field(default, description=info.description))
    return found


@dataclass(frozen=True)
class FamilyDefaults:
    """How a model family differs from LLaDA in the defaults of presets. Each family's file holds its values."""

    score: str = "confidence"  # the score by which TopK ranks slots; thresholds always compare probabilities
    schedule: str = "even"
    scores: str = "unbanned"  # or "renormalised": banned tokens leave the scored distribution
    proposal: type[ProposeRule] = GumbelProposal  # its settings become fields of the presets
    authors: Mapping[str, Any] = field(
        default_factory=lambda: {"cut": False}
    )  # set by @authors where they exist
    leaves_blocks: bool = False  # the authors' loop leaves a block after its passes, masks or not
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # preset -> field -> default
    presets: Mapping[str, Preset] = field(default_factory=lambda: PRESETS)
    causal_block: int = 0  # size of the blocks of block-causal attention; 0 for full attention


@dataclass(frozen=True)
class Preset:
    """A named combination of rules.

    `commit` and `propose` are None where the user chooses the commit rule and the family gives the proposal.
    """

    about: str
    length: type[LengthRule]
    ban: Names = ()
    mute: Names = ()
    stop: str = "vanilla"
    eos_penalty: float = 0.0
    commit: type[CommitRule] | None = None
    propose: ProposeRule | None = None

    def fields(self, family: FamilyDefaults, *, authors: bool = False) -> FormFields:
        """Every field of this preset, in the order in which they are shown."""
        own = rule_fields(Plan, ban=self.ban)
        length = rule_fields(as_published(self.length) if authors else self.length)
        steps = (
            Annotated[int, annotated_types.Ge(1), annotated_types.Le(MOST_PASSES)] | None,
            Field(
                None,
                description="passes: in total for a fixed canvas, per block otherwise (default: one token a pass)",
            ),
        )
        stop = (
            Literal["vanilla", "eos"],
            Field(
                self.stop, description="vanilla, or eos: stop when nothing before the leftmost EOS is masked"
            ),
        )
        first: FormFields = {"block": own["block"], **length}
        if self.commit is not None:
            return {
                **first,
                "ban": own["ban"],
                "stop": stop,
                **rule_fields(self.commit),
                "cut": own["cut"],
            }
        switched: FormFields = {}
        for name, rule in SWITCHES.items():
            switched |= rule_fields(rule, **{name: 0.0})
        switched |= rule_fields(TopK, schedule=None)
        switched |= rule_fields(EosPenalty, eos_penalty=self.eos_penalty)
        for name in (*SWITCHES, "eos_penalty"):
            switched[name][1].description = f"{switched[name][1].description} (0 is off)"
        switched["schedule"] = (switched["schedule"][0] | None, switched["schedule"][1])
        scores = (
            Literal["unbanned", "renormalised"],
            Field(
                family.scores,
                description="unbanned: banned tokens keep their mass in the scores; renormalised: they do not",
            ),
        )
        proposal = rule_fields(family.proposal, score=None)
        proposal["score"] = (proposal["score"][0] | None, proposal["score"][1])
        mute = (own["mute"][0] | None, Field(None, description=own["mute"][1].description))
        return {
            **first,
            "steps": steps,
            "ban": own["ban"],
            "stop": stop,
            **switched,
            "scores": scores,
            "mute": mute,
            **proposal,
            "trim": own["trim"],
            "cut": own["cut"],
        }

    def build(
        self, family: FamilyDefaults, form: Form, *, authors: bool = False
    ) -> tuple[Plan, dict[str, Any]]:
        """The plan from the form, and the value of every field; those that others decide are filled in."""
        values = {name: getattr(form, name) for name in type(form).model_fields}
        length_class = as_published(self.length) if authors else self.length
        length = _built(length_class, values).in_blocks(values["block"])
        own = {name: values[name] for name in ("block", "ban", "cut")}
        own |= {"length": length, "stop": STOPS[values["stop"]]}
        if self.commit is not None:
            propose = self.propose or MaskLast()
            return Plan(**own, propose=propose, commit=_built(self.commit, values)), values
        return self._chosen(family, values, own, authors=authors)

    def _chosen(
        self, family: FamilyDefaults, values: dict[str, Any], own: dict[str, Any], *, authors: bool
    ) -> tuple[Plan, dict[str, Any]]:
        """The plan and its fields for a preset whose commit rule and scores the user chooses."""
        switch = _switch(values)
        leaves = authors and family.leaves_blocks
        if switch is not None:
            _refuse_beside(switch, values, allowed=("steps",) if leaves else ())
        if not values["eos_penalty"] and values["eos_annealing"] != "dream-coder":
            raise PlanError(
                "eos_annealing has no effect without eos_penalty; set eos_penalty too.", field="eos_annealing"
            )
        if switch != "entropy_bound" and values["entropy_order"] != "score":
            raise PlanError(
                "entropy_order has no effect without entropy_bound; set entropy_bound too.",
                field="entropy_order",
            )
        steps = self._steps_per_block(values, own["length"], scheduled=switch is None)
        commit: CommitRule
        if switch is None:
            values["schedule"] = values["schedule"] or family.schedule
            commit = _built(TopK, values, steps=steps)
        else:
            commit_class = as_published(SWITCHES[switch]) if authors else SWITCHES[switch]
            commit = _built(commit_class, values)
        probability = commit.compares_probability or values["position_decay"] > 0
        values["score"] = values["score"] or ("confidence" if probability else family.score)
        if values["mute"] is None:
            muted = values["ban"] if values["scores"] == "renormalised" else ()
            values["mute"] = tuple(dict.fromkeys((*self.mute, *muted)))
        proposal = as_published(family.proposal) if authors else family.proposal
        penalty = _built(EosPenalty, values) if values["eos_penalty"] else None
        own |= {"mute": values["mute"], "trim": values["trim"], "penalty": penalty}
        own |= {"commit": commit, "propose": _built(proposal, values)}
        return (DreamLoop(**own, block_steps=steps) if leaves else Plan(**own)), values

    def _steps_per_block(self, values: dict[str, Any], length: LengthRule, *, scheduled: bool) -> int | None:
        """Passes of one block, or None where nothing bounds them; fills in the field `steps`."""
        total = self.length.steps_are_total
        if values["steps"] is None:
            if not scheduled:
                return None
            values["steps"] = length.canvas if total else values["block"]
        steps: int = values["steps"]
        blocks = length.canvas // values["block"] if total else 1
        if steps % blocks:
            raise PlanError(
                f"steps={steps} does not spread over {blocks} blocks; use a multiple of {blocks}.",
                field="steps",
            )
        return steps // blocks


@dataclass(frozen=True)
class CausalPreset(Preset):
    """A preset for networks with block-causal attention, made for the block size of the checkpoint.

    The stop rule is part of the method: a row ends at any of the model's stop ids, with `finish` after the block that
    holds one, else as soon as nothing before it is masked.
    """

    length: type[LengthRule] = RoundedUp
    small: int | None = None  # size of the blocks that are written one after the other inside a causal block
    lead: bool = False
    finish: bool = True

    def fields(self, family: FamilyDefaults, *, authors: bool = False) -> FormFields:
        assert self.commit is not None
        block = min(self.small or family.causal_block, family.causal_block)
        own = rule_fields(Plan, block=block)
        found: FormFields = {"block": own["block"], **rule_fields(self.length)}
        if issubclass(self.commit, StepsRule):
            found["steps"] = (
                Annotated[int, annotated_types.Ge(1), annotated_types.Le(MOST_PASSES)] | None,
                Field(None, description="passes per block (default: one token a pass)"),
            )
        return {
            **found,
            "ban": own["ban"],
            **rule_fields(self.commit),
            **rule_fields(family.proposal, score=family.score),
            "cut": own["cut"],
        }

    def build(
        self, family: FamilyDefaults, form: Form, *, authors: bool = False
    ) -> tuple[Plan, dict[str, Any]]:
        assert self.commit is not None
        values = {name: getattr(form, name) for name in type(form).model_fields}
        if "steps" in values:
            values["steps"] = values["steps"] or values["block"]
        plan = Plan(
            length=_built(self.length, values),
            propose=_built(family.proposal, values),
            commit=_built(self.commit, values),
            stop=AfterBlock(block=family.causal_block) if self.finish else EndsTermination(),
            causal=CausalBlocks(size=family.causal_block, lead=self.lead),
            **{name: values[name] for name in ("block", "ban", "cut")},
        )
        return plan, values


def _built(rule: type[R], values: Mapping[str, Any], **more: Any) -> R:
    """A rule from the values of its fields."""
    known = {name: values[name] for name in rule.model_fields if name in values}
    return rule(**{**known, **more})


def _switch(values: Mapping[str, Any]) -> str | None:
    """The field that chooses a commit rule in place of the schedule."""
    on = [name for name in SWITCHES if values[name]]
    if len(on) > 1:
        given = " and ".join(f"{name}={values[name]}" for name in on)
        raise PlanError(f"{given} exclude each other; set one.", field=on[1])
    return on[0] if on else None


def _refuse_beside(switch: str, values: Mapping[str, Any], *, allowed: tuple[str, ...]) -> None:
    """Refuse fields of a schedule beside a rule that has none: they would have no effect."""
    for name in ("steps", "schedule", "position_decay"):
        if values[name] and name not in allowed:
            raise PlanError(
                f"{name}={values[name]} belongs to a schedule, and {switch}={values[switch]} replaces the schedule; "
                "drop one of them.",
                field=name,
            )


_VOID: dict[str, Any] = {"ban": ("void",), "stop": "eos"}
_CONFIDENT: dict[str, Any] = {"commit": HighConfidence, "propose": MaskLast()}
PRESETS: dict[str, Preset] = {
    "original": Preset("fixed canvas, decoded to the end: instruct models as released", Fixed),
    "void": Preset("fixed canvas, VOID banned, [EOS]Termination", Fixed, **_VOID),
    "void-expansion": Preset("the canvas grows until its tail reads as VOID", VoidExpansion, **_VOID),
    "daedal": Preset("DAEDAL: grow by EOS confidence, then where the model is unsure", Daedal, **_CONFIDENT),
    "rho-eos": Preset("rho-EOS: grow or shrink by the density of EOS predictions", RhoEos, **_CONFIDENT),
    "smart-crop": Preset("SmartCrop: one probe, cropped by cumulative EOS probability", SmartCrop),
    "eos-last": Preset(
        "LLaDA's confidence_eos_eot_inf: EOS is written after all words", Fixed, mute=("ends",), stop="eos"
    ),
    "eos-never": Preset(
        "LLaDA's logits_eos_inf: EOS is never written, the canvas fills up",
        Fixed,
        ban=("eos",),
        mute=("eos",),
    ),
    "eos-penalty": Preset(
        "Dream-Coder: EOS is penalised while much is masked", Fixed, stop="eos", eos_penalty=3.0
    ),
    "append-blocks": Preset(
        "dLLM-Var's loop: a block is appended when the canvas is full without EOS", AppendedBlocks, stop="eos"
    ),
}
ALIASES = {"eos": "original", "rainbow": "original"}


# ------------------------------------------------------------------------------------ plans by name
def plan(
    name: str | Plan = "void",
    *,
    defaults: FamilyDefaults | None = None,
    calibration: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Plan:
    """The preset `name` as a plan. `fields` win over the checkpoint's calibration, which wins over the defaults.

    `defaults` are those of the model (`model.decoding`); LLaDA's without it.
    """
    return build_plan(name, fields, defaults=defaults, calibration=calibration)[0]


def describe(
    name: str | Plan,
    *,
    defaults: FamilyDefaults | None = None,
    calibration: Mapping[str, Any] | None = None,
    **fields: Any,
) -> tuple[Plan, dict[str, Any]]:
    """The plan, and the value of every field it was built from; a ready plan comes back with its own values."""
    return build_plan(name, fields, defaults=defaults, calibration=calibration)


def build_plan(
    name: str | Plan,
    fields: Mapping[str, Any],
    *,
    defaults: FamilyDefaults | None = None,
    calibration: Mapping[str, Any] | None = None,
) -> tuple[Plan, dict[str, Any]]:
    """`describe` with the fields as a mapping, whose keys may be anything: a field that is None counts as not given."""
    given = {key: value for key, value in fields.items() if value is not None}
    if isinstance(name, Plan):
        if given:
            raise PlanError(
                f"a ready plan takes no fields, got {', '.join(given)}; set them in the plan.",
                field=next(iter(given)),
            )
        return name, name.plain()
    if not isinstance(name, str):
        raise PlanError(f"plan {name!r} is neither the name of a preset nor a Plan.", field="plan")
    family = defaults or FamilyDefaults()
    base, preset, authors = _find(name, family)
    known = preset.fields(family, authors=authors)
    before = {**family.fields.get(base, {}), **(calibration or {}).get(base, {})}
    if authors:
        before |= {key: value for key, value in family.authors.items() if key in known}
    values = {**before, **given}
    unknown = sorted(str(key) for key in values.keys() - known.keys())
    if unknown:
        hint = _hint(unknown, known, family)
        raise PlanError(
            f"plan {name!r} has no field {', '.join(unknown)}{hint}; "
            f"`voidpad plans {name} --model MODEL` lists its fields.",
            field=unknown[0],
        )
    form: type[Form] = create_model("Form", __base__=Form, **known)  # type: ignore[call-overload]
    return preset.build(family, form(**values), authors=authors)


def _find(name: str, family: FamilyDefaults) -> tuple[str, Preset, bool]:
    """The preset's own name, the preset, and whether the suffix @authors was given."""
    bare, _, variant = name.partition("@")
    base, presets = ALIASES.get(bare, bare), family.presets
    if ":" in name:
        raise PlanError(
            f"plan {name!r} names an object of a Python module, which only the command line's --plan loads; "
            "in Python pass the Plan itself.",
            field="plan",
        )
    if base in presets and variant in ("", "authors"):
        return base, presets[base], bool(variant)
    known = ", ".join([*presets, *(alias for alias, plan in ALIASES.items() if plan in presets)])
    if base in PRESETS and family.causal_block:
        raise PlanError(
            f"plan {name!r} has no meaning for a block-causal model, whose slots see no later block; use one of "
            f"{known}.",
            field="plan",
        )
    raise PlanError(f"plan {name!r} is unknown; use one of {known}, or <plan>@authors.", field="plan")


def _hint(unknown: list[str], known: Mapping[str, Any], family: FamilyDefaults) -> str:
    """What to use for fields that a plan does not have, as the middle of a sentence; "" if nothing is near."""
    having = [
        name
        for name, preset in family.presets.items()
        if all(one in preset.fields(family) for one in unknown)
    ]
    if having:
        shown = ", ".join(having[:3]) + (" and others" if len(having) > 3 else "")
        return f"; plans that have {'it' if len(unknown) == 1 else 'them'}: {shown}"
    if all(one in SampledProposal.model_fields for one in unknown):
        return (
            "; this model samples by temperature alone" if "temperature" in known else "; it does not sample"
        )
    near = get_close_matches(unknown[0], list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


# ----------------------------------------------------------------------------------- lists of fields
@dataclass(frozen=True)
class PlanField:
    """One field of a preset, for tables, forms, command lines and servers.

    `type` is a word: "integer", "number", "boolean", "string", or "names" for role names and token ids. A number lies
    between `at_least` (or `above`) and `at_most`.
    """

    name: str
    type: str
    default: Any
    choices: tuple[str, ...]
    at_least: float | None
    above: float | None
    at_most: float | None
    help: str

    @classmethod
    def of(cls, name: str, annotation: Any, info: FieldInfo) -> PlanField:
        """From the annotation and the field of a form."""
        bounds: dict[str, Any] = {}
        kind, marks = _unwrapped(annotation)
        for mark in marks:
            for ours, theirs in (("at_least", "ge"), ("above", "gt"), ("at_most", "le")):
                bounds[ours] = getattr(mark, theirs, bounds.get(ours))
        words = {int: "integer", float: "number", bool: "boolean"}
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        word = "string" if choices else words.get(kind, "names")
        least, above, most = (bounds.get(one) for one in ("at_least", "above", "at_most"))
        return cls(name, word, info.default, choices, least, above, most, info.description or "")

    @property
    def range(self) -> str:
        """The numbers that the field may have, such as "[0, 1]"; empty if it is no number."""
        if self.at_least is None and self.above is None:
            return ""
        low = f"({self.above:g}" if self.at_least is None else f"[{self.at_least:g}"
        return f"{low}, {self.at_most:g}]"

    def plain(self) -> dict[str, Any]:
        """The field as JSON values."""
        default = list(self.default) if isinstance(self.default, tuple) else self.default
        return {**vars(self), "default": default, "choices": list(self.choices)}


def _unwrapped(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """The bare type of an annotation and the marks on it, without `None`."""
    if get_origin(annotation) is Annotated:
        kind, *marks = get_args(annotation)
        inner, more = _unwrapped(kind)
        return inner, (*more, *marks)
    options = [one for one in get_args(annotation) if one is not type(None)]
    if type(None) in get_args(annotation) and len(options) == 1:
        return _unwrapped(options[0])
    return annotation, ()


def schema(
    name: str, defaults: FamilyDefaults | None = None, *, calibration: Mapping[str, Any] | None = None
) -> list[PlanField]:
    """Every field of a preset with its type, default, bounds, choices and help, for tables, forms and servers."""
    _, values = build_plan(name, {}, defaults=defaults, calibration=calibration)
    family = defaults or FamilyDefaults()
    _, preset, authors = _find(name, family)
    known = preset.fields(family, authors=authors)
    return [replace(one, default=values[one.name]) for one in _listed(known)]


def every_field() -> list[PlanField]:
    """Every field that some preset has for some family, once each, in the order in which they are shown."""
    return list(_listed(_every_form_field()))


def check_fields(fields: Mapping[str, Any]) -> Form:
    """Refuse fields that no preset has, and values that are out of range whatever the preset; the values as read."""
    form: type[Form] = create_model("Form", __base__=Form, **_every_form_field())  # type: ignore[call-overload]
    return form(**fields)


def _every_form_field() -> FormFields:
    families = [FamilyDefaults(proposal=proposal) for proposal in (GumbelProposal, SampledProposal)]
    every: FormFields = {}
    for preset in PRESETS.values():
        for family in families:
            every = {**preset.fields(family), **every}
    return every


def _listed(fields: FormFields) -> Iterator[PlanField]:
    return (PlanField.of(name, annotation, info) for name, (annotation, info) in fields.items())
