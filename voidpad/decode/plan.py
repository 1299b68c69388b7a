"""Plans: one rule of each kind, as one value; and the presets that users ask for by name.

A preset combines rules. Its fields are those of its rules and of the plan itself; their defaults, ranges and
help come from the rules, then from the model's family, then from the checkpoint's calibration, then from the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, div

from voidpad.decode.adjust import Adjust, EosPenalty
from voidpad.decode.block_ends import DelimitedBlocks
from voidpad.decode.causal import CausalBlocks
from voidpad.decode.commit import Commit, HighConfidence, Threshold, TopK
from voidpad.decode.eos_length import Daedal, RhoEos
from voidpad.decode.fields import (
    DecodingRule,
    Names,
    PlanField,
    Range,
    check_rule,
    declared,
    in_place_of,
    name_of,
    plain,
    setting,
    settings_of,
    today,
)
from voidpad.decode.length import AppendedBlocks, Fixed, Length, LengthRule, SmartCrop, VoidExpansion
from voidpad.decode.propose import PROPOSALS, GumbelProposal, MaskLast, Propose, neg_entropy
from voidpad.decode.rows import Rows
from voidpad.decode.stop import STOPS, Stop, vanilla
from voidpad.decode.switches import adjust_rule, block_rule, commit_rule, made, switched_fields
from voidpad.errors import ConfigError
from voidpad.roles import Roles


@dataclass(frozen=True)
class Plan(DecodingRule):
    """How to decode: one rule each for length, proposal, commit and stop, the block size, and what is banned.

    Frozen, hashable and picklable, so a plan can be a dict key, a sweep cell and a run record.
    """

    length: Length = Fixed()
    propose: Propose = GumbelProposal()
    commit: Commit = TopK()
    stop: Stop = setting(
        vanilla, choices=STOPS, help="vanilla, or eos: stop when nothing before the leftmost EOS is masked"
    )
    block: int = setting(32, at_least=1, help="block size: slots open for writing at a time")
    ban: Names = setting((), help="roles or ids never chosen, separated by commas")
    mute: Names = setting((), help="roles or ids left out of the scores (overrides `scores`)")
    cut: bool = setting(True, help="cut the answer at the first EOS")
    leave_blocks: bool = setting(
        False, help="leave a block after its passes even if masks are left in it, as Dream's code does"
    )
    trim: bool = setting(
        False, help="cut the canvas right after a committed EOS (approximate; needs stop=eos)"
    )
    adjust: Adjust | None = None
    causal: CausalBlocks | None = None  # for networks with block-causal attention; None for full attention
    blocks: DelimitedBlocks | None = None  # where blocks end; None: each has `block` slots

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.length, Length):
            raise ConfigError(
                f"length={self.length!r} is no length rule; make its class inherit from LengthRule."
            )
        for name in ("length", "propose", "commit", "stop", *(["adjust"] if self.adjust is not None else [])):
            check_rule(name, getattr(self, name))
        if (
            declared(self.commit, "reads_entropy", False)
            and declared(self.propose, "with_entropy", None) is None
        ):
            raise ConfigError(
                f"commit={name_of(self.commit)} reads entropies, which propose={name_of(self.propose)} does not give; "
                "give it a method with_entropy."
            )
        if (
            declared(self.commit, "position_decay", 0)
            and declared(self.propose, "score", None) is neg_entropy
        ):
            raise ConfigError(
                "position_decay multiplies scores, and neg_entropy is negative; use score=confidence."
            )
        if self.trim and self.stop is vanilla:
            raise ConfigError("trim=True drops what follows an EOS, so it needs stop=eos.")
        if self.trim and not self.length.trims:
            raise ConfigError(
                f"trim=True cuts off the tail by which {name_of(self.length)} sets the length; drop one of them."
            )
        if self.blocks is not None:
            self.blocks.check(self.length, self.commit, self.propose, causal=self.causal is not None)
        if self.causal is not None:
            ahead = declared(self.length, "looks_ahead", True)
            rule = f"length={name_of(self.length)}" if ahead else "trim=True" if self.trim else None
            self.causal.check(self.block, rule)

    @property
    def steps(self) -> int:
        """Passes per block."""
        return declared(self.commit, "steps", None) or self.block

    @property
    def names(self) -> Names:
        """Every role and token id that the plan names: a model must have them."""
        return (*self.ban, *self.mute, *(self.blocks.delimiters if self.blocks is not None else ()))

    @property
    def limit(self) -> int:
        """The longest canvas this plan allows."""
        return self.length.limit

    def whole(self, prompt: Tensor, slots: Tensor) -> Tensor:
        """The length of a canvas (B,) of `slots` behind prompts of these lengths: rounded up to whole causal blocks."""
        return slots if self.causal is None else self.causal.whole(prompt, slots)

    def first_block(self, prompt: Tensor) -> Tensor:
        """Where the first block starts (B,): at the prompt's end, or where the causal block of its end starts."""
        return prompt if self.causal is None else div(prompt, self.block, rounding_mode="floor") * self.block

    def frontier(self, rows: Rows) -> Tensor:
        """The slots (B, L) that may be written in the next pass: the masked ones of the active block."""
        window = rows.window(self.block)
        return window if self.causal is None else self.causal.frontier(rows.canvas, window)

    def proposing(self, rows: Rows) -> Tensor:
        """The slots (B, L) that propose a token in the next pass: the frontier, and where the block rule looks."""
        frontier = self.frontier(rows)
        return frontier if self.blocks is None else frontier | self.blocks.look(rows)

    def greedy(self, position: Tensor) -> Tensor | None:
        """True at the positions (N,) whose token is never drawn at random; None if every token may be."""
        return self.causal.leads(position) if self.causal is not None and self.causal.lead else None

    def ends(self, roles: Roles) -> tuple[int, ...]:
        """The ids that end an answer: EOS, and for block-causal models every stop id."""
        return (roles.eos,) if self.causal is None else roles.ends

    def fitted(self, room: int) -> Plan:
        """The plan with its longest canvas cut to `room` slots, rounded down to whole blocks.

        A first canvas that fits the room is kept as it is; one that does not is cut, too.
        """
        whole = room // self.block * self.block
        longest = max(whole, self.length.canvas) if self.length.canvas <= room else whole
        if longest < 1:
            raise ConfigError(
                f"block={self.block} does not fit the {room} slots that are left; shorten the prompt."
            )
        return self if self.limit <= longest else replace(self, length=self.length.bounded(longest))

    @property
    def approximations(self) -> tuple[str, ...]:
        """What makes this plan faster than its method with one token a pass on the whole canvas, at some risk.

        A commit rule that does not declare whether it is an approximation is listed under its own name.
        """
        commit = declared(self.commit, "approximation", name_of(self.commit))
        adjust = self.adjust and declared(self.adjust, "approximation", name_of(self.adjust))
        return tuple(name for name in (commit, adjust, "trim" if self.trim else None) if name)

    @property
    def patience(self) -> int:
        """Decoding passes without any change after which a row counts as stalled."""
        return self.length.patience(self.block, self.steps)

    def plain(self) -> dict[str, Any]:
        """The plan as JSON values: each rule by name with its settings."""
        values: dict[str, Any] = plain(self)
        return values


# ------------------------------------------------------------------------------------------------ presets
@dataclass(frozen=True)
class FamilyDefaults:
    """How a model family differs from LLaDA in the defaults of presets. Each family's file holds its values."""

    score: str = "confidence"  # the score by which TopK ranks slots; thresholds always compare probabilities
    schedule: str = "even"
    scores: str = "unbanned"  # or "renormalised": banned tokens leave the scored distribution
    proposal: type[Any] = GumbelProposal  # its settings become fields of the presets
    authors: Mapping[str, Any] = field(
        default_factory=lambda: {"cut": False}
    )  # set by @authors where they exist
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
    on: tuple[type[Any], ...] = ()  # rules with a switch that are on unless the user turns them off
    commit: type[Any] | None = None
    propose: Propose | None = None

    def fields(self, family: FamilyDefaults) -> list[PlanField]:
        """Every field of this preset, in the order in which they are shown."""
        own = {one.name: one for one in settings_of(Plan)}
        own["ban"] = replace(own["ban"], default=self.ban)
        own["stop"] = replace(own["stop"], default=self.stop)
        block, ban, stop, cut = own["block"], own["ban"], own["stop"], own["cut"]
        length = settings_of(self.length)
        if self.commit is not None:
            return [block, *length, ban, stop, *settings_of(self.commit), cut]
        scores = replace(SCORED, default=family.scores)
        return [
            *(block, *length, STEPS, ban, stop, *switched_fields(self.on), scores, own["mute"]),
            *(*settings_of(family.proposal), own["trim"], cut, own["leave_blocks"]),
        ]

    def build(self, family: FamilyDefaults, values: Mapping[str, Any]) -> Plan:
        """The plan from the value of every field."""
        length = made(self.length, values).in_blocks(values["block"])
        own = {one.name: values[one.name] for one in settings_of(Plan) if one.name in values}
        if self.commit is not None:
            return Plan(length, self.propose or MaskLast(), made(self.commit, values), **own)
        steps = values["steps"]
        if self.length.steps_are_total:
            blocks = length.canvas // values["block"]
            if steps % blocks:
                raise ConfigError(
                    f"steps={steps} does not spread over {blocks} blocks; use a multiple of {blocks}."
                )
            steps //= blocks
        commit, adjust, blocks = commit_rule(values, steps=steps), adjust_rule(values), block_rule(values)
        return Plan(length, made(family.proposal, values), commit, **own, adjust=adjust, blocks=blocks)


STEPS = PlanField(
    "steps",
    "integer",
    None,
    Range(at_least=1),
    {},
    "passes in total for a fixed canvas, passes per block otherwise (default: one token a pass)",
)
SCORED = PlanField(
    "scores",
    "string",
    "unbanned",
    None,
    {"unbanned": False, "renormalised": True},
    "unbanned: banned tokens keep their mass in the scores; renormalised: they do not",
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
        "Dream-Coder: EOS is penalised while much is masked", Fixed, stop="eos", on=(EosPenalty,)
    ),
    "append-blocks": Preset(
        "dLLM-Var's loop: a block is appended when the canvas is full without EOS", AppendedBlocks, stop="eos"
    ),
    "ada-block": Preset(
        "AdaBlock: a block ends where the model is about to end a line",
        Fixed,
        stop="eos",
        on=(DelimitedBlocks, Threshold),
    ),
}
ALIASES = {"eos": "original", "rainbow": "original"}


def plan(
    name: str = "void",
    *,
    defaults: FamilyDefaults | None = None,
    calibration: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Plan:
    """The preset `name` as a plan. `fields` win over the checkpoint's calibration, which wins over the defaults.

    `defaults` are those of the model (`model.decoding`); LLaDA's without it.
    """
    return describe(name, defaults=defaults, calibration=calibration, **fields)[0]


def schema(
    name: str, defaults: FamilyDefaults | None = None, *, calibration: Mapping[str, Any] | None = None
) -> list[PlanField]:
    """Every field of a preset with its type, default, bounds, choices and help, for tables, forms and servers."""
    _, values = describe(name, defaults=defaults, calibration=calibration)
    family = defaults or FamilyDefaults()
    _, preset, _ = _find(name, family)
    return [replace(one, default=values[one.name]) for one in preset.fields(family)]


def every_field() -> list[PlanField]:
    """Every field that some preset has for some family, once each, in the order in which they are shown."""
    families = [FamilyDefaults(proposal=proposal) for proposal in PROPOSALS]
    known = [one for preset in PRESETS.values() for family in families for one in preset.fields(family)]
    return list({one.name: one for one in reversed(known)}.values())[::-1]


def describe(
    name: str | Plan,
    *,
    defaults: FamilyDefaults | None = None,
    calibration: Mapping[str, Any] | None = None,
    **fields: Any,
) -> tuple[Plan, dict[str, Any]]:
    """The plan, and the value of every field it was built from; a ready plan comes back with its own values."""
    if isinstance(name, Plan):
        if fields:
            raise ConfigError(f"a ready plan takes no fields, got {', '.join(fields)}; set them in the plan.")
        return name, name.plain()
    if not isinstance(name, str):
        raise ConfigError(f"plan {name!r} is neither the name of a preset nor a Plan.")
    family = defaults or FamilyDefaults()
    base, preset, authors = _find(name, family)
    known = {one.name: one for one in preset.fields(family)}
    parity = {key: one.authors for key, one in known.items() if one.authors is not None}
    parity |= {key: value for key, value in family.authors.items() if key in known}
    given = {
        **family.fields.get(base, {}),
        **today(dict((calibration or {}).get(base, {}))),
        **(parity if authors else {}),
        **today({key: value for key, value in fields.items() if value is not None}),
    }
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(
            f"plan {name!r} has no field {', '.join(unknown)}{_hint(name, unknown, known, family)}"
        )
    values: dict[str, Any] = {}  # as typed
    resolved: dict[str, Any] = {}  # as the rules take them
    for key, one in known.items():
        default = DERIVED[key](preset, family, resolved) if key in DERIVED else one.default
        values[key] = given.get(key, default)
        resolved[key] = replace(one, default=default).resolve(values[key])
        if one.type == "number":
            values[key] = resolved[key]
    return preset.build(family, resolved), values


def _find(name: str, family: FamilyDefaults) -> tuple[str, Preset, bool]:
    """The preset's own name, the preset, and whether the suffix @authors was given."""
    bare, _, variant = name.partition("@")
    base, presets = ALIASES.get(bare, bare), family.presets
    if ":" in name:
        raise ConfigError(
            f"plan {name!r} names an object of a Python module, which only the command line's --plan loads; "
            "in Python pass the Plan itself."
        )
    if base not in presets or variant not in ("", "authors"):
        known = ", ".join([*presets, *(alias for alias, plan in ALIASES.items() if plan in presets)])
        if base in PRESETS and family.causal_block:
            raise ConfigError(
                f"plan {name!r} has no meaning for a block-causal model, whose slots see no later block; use one of "
                f"{known}."
            )
        raise ConfigError(f"plan {name!r} is unknown; use one of {known}, or <plan>@authors.")
    return base, presets[base], bool(variant)


def _hint(name: str, unknown: list[str], known: Mapping[str, PlanField], family: FamilyDefaults) -> str:
    """How a sentence ends that names fields which a plan does not have."""
    plans = {other: {one.name for one in preset.fields(family)} for other, preset in family.presets.items()}
    sampling = {one.name for proposal in PROPOSALS for one in settings_of(proposal)}
    hint = in_place_of(unknown, known, plans=plans, sampling=sampling)
    return f"{hint}; `voidpad plans {name} --model MODEL` lists its fields."


def _score_default(preset: Preset, family: FamilyDefaults, values: Mapping[str, Any]) -> str:
    """A threshold compares probabilities on every family, so its score is the confidence."""
    chosen = commit_rule(values, steps=None) if preset.commit is None else preset.commit
    return "confidence" if chosen.compares_probability else family.score


Derived = Callable[[Preset, FamilyDefaults, Mapping[str, Any]], Any]
DERIVED: dict[str, Derived] = {  # defaults that follow from other fields
    "steps": lambda preset, family, values: values["canvas" if preset.length.steps_are_total else "block"],
    "schedule": lambda preset, family, values: family.schedule,
    "mute": lambda preset, family, values: (
        tuple(dict.fromkeys((*preset.mute, *values["ban"]))) if values["scores"] else preset.mute
    ),
    "score": _score_default,
}
