"""Presets: plans by name, adjusted by flat fields such as `block`, `threshold` or `temperature`.

A preset combines rules. Its fields are those of its rules and of the plan itself, so their ranges and help texts are
the rules' own. A value comes from the rule's default, the model's family, the checkpoint's calibration, the suffix
`@authors` or the user; of these, the last one that has it counts. The fields of one preset are one pydantic model, its
form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from voidpad.decode.authors import DreamLoop, R, as_published
from voidpad.decode.commit import CommitRule, EntropyBound, Factor, HighConfidence, Threshold, TopK
from voidpad.decode.length import AppendedBlocks, Daedal, Fixed, LengthRule, RhoEos, SmartCrop, VoidExpansion
from voidpad.decode.plan import CausalBlocks, Plan
from voidpad.decode.propose import EosPenalty, GumbelProposal, MaskLast, ProposeRule
from voidpad.decode.rules import MOST_PASSES, Names, Rule
from voidpad.decode.stop import AfterBlock, EndsTermination, EosTermination, Vanilla
from voidpad.errors import PlanError

# Commit rules that a field of their own switches on, a number: the rule is chosen by a value other than 0.
SWITCHES: dict[str, type[CommitRule]] = {
    "threshold": Threshold,
    "factor": Factor,
    "entropy_bound": EntropyBound,
}
# Fields that only approximations have: without them, a plan decodes exactly.
APPROXIMATE_FIELDS = (*SWITCHES, "entropy_order", "trim")
STOPS = {"vanilla": Vanilla(), "eos": EosTermination()}


class OwnFields(Rule):
    """The fields of presets that belong to no rule."""

    steps: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PASSES,
        description="passes: in total for a fixed canvas, per block otherwise (default: one token a pass)",
    )
    stop: Literal["vanilla", "eos"] = Field(
        default="vanilla",
        description="vanilla, or eos: stop when nothing before the leftmost EOS is masked",
    )
    scores: Literal["unbanned", "renormalised"] = Field(
        default="unbanned",
        description="unbanned: banned tokens keep their mass in the scores; renormalised: they do not",
    )


FormFields = dict[str, tuple[Any, Any]]  # name -> annotation and pydantic field


def rule_fields(rule: type[Rule], **defaults: Any) -> FormFields:
    """The fields of a rule for a form, with other defaults where these are given; None makes a field optional."""
    found: FormFields = {}
    for name, info in rule.model_fields.items():
        annotation: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        default = defaults.get(name, info.default)
        found[name] = (
            annotation | None if default is None else annotation,
            Field(default, description=info.description),
        )
    return found


@dataclass(frozen=True)
class FamilyDefaults:
    """How a model family differs from LLaDA in the defaults of presets. Each family's file holds its values."""

    score: str = "confidence"  # the score by which TopK ranks slots; thresholds always compare probabilities
    schedule: str = "even"
    scores: str = "unbanned"  # or "renormalised": banned tokens leave the scored distribution
    proposal: type[ProposeRule] = GumbelProposal  # its settings become fields of the presets
    # Set by @authors where they exist.
    authors: Mapping[str, Any] = field(default_factory=lambda: {"cut": False})
    leaves_blocks: bool = False  # the authors' loop leaves a block after its passes, masks or not
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # preset -> field -> default
    presets: Mapping[str, Preset] = field(default_factory=lambda: PRESETS)
    causal_block: int = 0  # size of the blocks of block-causal attention; 0 for full attention


@dataclass(frozen=True)
class Preset:
    """A named combination of rules.

    If it has no commit rule of its own, the user chooses one by the fields, and the family gives the proposal. If it
    has one, the proposal is `MaskLast`. Presets for block-causal attention all have one, but take the family's proposal
    beside it. Their stop rule is part of the method, too: a row ends at any of the model's stop ids.
    """

    about: str
    length: type[LengthRule] = Fixed
    ban: Names = ()
    mute: Names = ()
    stop: str = "vanilla"
    eos_penalty: float = 0.0
    commit: type[CommitRule] | None = None
    # For block-causal attention alone:
    small: int | None = None  # size of the blocks that are written one after the other inside a causal block
    lead: bool = False  # a block's first slot is written before the others
    # True: a row ends with the block that holds a stop id. False: once nothing before the id is masked.
    finish: bool = True

    def fields(self, family: FamilyDefaults, *, authors: bool = False) -> FormFields:
        """Every field of this preset, in the order in which they are shown."""
        length = rule_fields(as_published(self.length) if authors else self.length)
        own = rule_fields(Plan, ban=self.ban, mute=None)
        own |= rule_fields(OwnFields, stop=self.stop, scores=family.scores)
        if causal := family.causal_block:
            assert self.commit is not None
            own |= rule_fields(Plan, block=min(self.small or causal, causal))
            proposal = rule_fields(family.proposal, score=family.score)
            rules = length | _picked(own, "ban") | rule_fields(self.commit) | proposal
            return _picked(own, "block") | rules | _picked(own, "cut")
        if self.commit is not None:
            rules = length | _picked(own, "ban", "stop") | rule_fields(self.commit)
            return _picked(own, "block") | rules | _picked(own, "cut")
        switched: FormFields = {}
        for name, rule in SWITCHES.items():
            off = type(rule.model_fields[name].default)(0)  # 0 or 0.0: fields are strict about their type
            switched |= rule_fields(rule, **{name: off})
        penalty = rule_fields(EosPenalty, eos_penalty=self.eos_penalty)
        for _, switch in (*(switched[name] for name in SWITCHES), penalty["eos_penalty"]):
            switch.description = f"{switch.description} (0 is off)"
        return {
            **_picked(own, "block"),
            **length,
            **_picked(own, "steps", "ban", "stop"),
            **switched,
            **_picked(rule_fields(TopK, schedule=None), "schedule", "position_decay"),
            **penalty,
            **_picked(own, "scores", "mute"),
            **rule_fields(family.proposal, score=None),
            **_picked(own, "trim", "cut"),
        }

    def build(self, family: FamilyDefaults, values: dict[str, Any], *, authors: bool) -> Plan:
        """The plan from the values of all fields. In `values`, fields that were left to others are filled in: it
        changes the dict."""

        def rule(kind: type[R], **more: Any) -> R:
            kind = as_published(kind) if authors and not family.causal_block else kind
            return kind(**{name: values[name] for name in kind.model_fields if name in values} | more)

        own = {name: values[name] for name in ("block", "ban", "cut")}
        if causal := family.causal_block:
            assert self.commit is not None
            if "steps" in values:
                values["steps"] = values["steps"] or values["block"]
            own |= {
                "length": rule(self.length),
                "propose": rule(family.proposal),
                "commit": rule(self.commit),
            }
            own |= {"stop": AfterBlock(block=causal) if self.finish else EndsTermination()}
            return Plan(**own, causal=CausalBlocks(size=causal, lead=self.lead))
        length = rule(self.length).fit_blocks(values["block"])
        own |= {"length": length, "stop": STOPS[values["stop"]]}
        if self.commit is not None:
            return Plan(**own, propose=MaskLast(), commit=rule(self.commit))
        leaves = authors and family.leaves_blocks
        # A loop that leaves blocks bounds the passes of every rule, so `steps` goes with a switch.
        of_schedule = ("schedule", "position_decay") if leaves else ("steps", "schedule", "position_decay")
        switch = _switch(values, of_schedule=of_schedule)
        steps = self._steps_per_block(values, length, scheduled=switch is None)
        commit: CommitRule
        if switch is None:
            values["schedule"] = values["schedule"] or family.schedule
            commit = rule(TopK, steps=steps)
        else:
            commit = rule(SWITCHES[switch])
        probability = commit.compares_probability or values["position_decay"] > 0
        values["score"] = values["score"] or ("confidence" if probability else family.score)
        if values["mute"] is None:
            muted = values["ban"] if values["scores"] == "renormalised" else ()
            values["mute"] = tuple(dict.fromkeys((*self.mute, *muted)))
        own |= {"mute": values["mute"], "trim": values["trim"]}
        own |= {"commit": commit, "propose": rule(family.proposal)}
        own |= {"penalty": rule(EosPenalty) if values["eos_penalty"] else None}
        return DreamLoop(**own, block_steps=steps) if leaves else Plan(**own)

    def _steps_per_block(self, values: dict[str, Any], length: LengthRule, *, scheduled: bool) -> int | None:
        """Passes of one block, or None where nothing bounds them; fills in the field `steps`."""
        total = issubclass(self.length, Fixed)
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


def _picked(fields: FormFields, *names: str) -> FormFields:
    return {name: fields[name] for name in names}


def _switch(values: Mapping[str, Any], *, of_schedule: tuple[str, ...]) -> str | None:
    """The field that chooses a commit rule in place of the schedule. Refuses the schedule's own fields beside it."""
    on = [name for name in SWITCHES if values[name]]
    if len(on) > 1:
        given = " and ".join(f"{name}={values[name]}" for name in on)
        raise PlanError(f"{given} exclude each other; set one.", field=on[1])
    switch = on[0] if on else None
    for name in of_schedule if switch else ():
        if values[name]:
            raise PlanError(
                f"{name}={values[name]} belongs to a schedule, and {switch}={values[switch or '']} replaces the "
                "schedule; drop one of them.",
                field=name,
            )
    for name, needed in (("eos_annealing", "eos_penalty"), ("entropy_order", "entropy_bound")):
        if not values[needed] and values[name] not in ("dream-coder", "score"):  # their defaults
            raise PlanError(f"{name} has no effect without {needed}; set {needed} too.", field=name)
    return switch


_VOID: dict[str, Any] = {"ban": ("void",), "stop": "eos"}
PRESETS: dict[str, Preset] = {
    "original": Preset("fixed canvas, decoded to the end: instruct models as released", Fixed),
    "void": Preset("fixed canvas, VOID banned, [EOS]Termination", Fixed, **_VOID),
    "void-expansion": Preset("the canvas grows until its tail reads as VOID", VoidExpansion, **_VOID),
    "daedal": Preset(
        "DAEDAL: grow by EOS confidence, then where the model is unsure", Daedal, commit=HighConfidence
    ),
    "rho-eos": Preset(
        "rho-EOS: grow or shrink by the density of EOS predictions", RhoEos, commit=HighConfidence
    ),
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
    return describe(name, fields, defaults=defaults, calibration=calibration)[0]


def describe(
    name: str | Plan,
    fields: Mapping[str, Any] = MappingProxyType({}),
    *,
    defaults: FamilyDefaults | None = None,
    calibration: Mapping[str, Any] | None = None,
) -> tuple[Plan, dict[str, Any]]:
    """The plan, and the value of every field it was built from; a ready plan comes back with its own values.

    A field that is None counts as not given.
    """
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
    filled = dict(_form(known)(**values))
    built = preset.build(family, filled, authors=authors)  # it fills in the fields that others decide
    return built, filled


def _form(fields: FormFields) -> type[Rule]:
    form: type[Rule] = create_model("Form", __base__=Rule, **fields)  # type: ignore[call-overload]
    return form


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
    near = get_close_matches(unknown[0], list(known), n=1, cutoff=0.7)
    return f" (did you mean {near[0]}?)" if near else ""


def schema(
    name: str, defaults: FamilyDefaults | None = None, *, calibration: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """The JSON schema of every field of a preset, by name: type, default, bounds, choices (`enum`) and description."""
    family = defaults or FamilyDefaults()
    _, preset, authors = _find(name, family)
    _, values = describe(name, defaults=family, calibration=calibration)
    described = _form(preset.fields(family, authors=authors)).model_json_schema()["properties"]
    for one, about in described.items():
        own, *_ = about.pop("anyOf", [{}])  # of a field that others decide: its kind, or null
        about.update(own, default=values[one])
    return dict(described)
