"""Plans and the settings of rules: ranges, generated fields, limits, approximations, what a plan refuses."""

import copy
import json
import pickle
from dataclasses import dataclass, fields, replace

import pytest
import torch

from cases import LENGTHS, case, steps_of
from voidpad.decode import PRESETS, DecodingRule, LengthRule, Plan, describe, plan, schema
from voidpad.decode.adjust import Credit, EosPenalty
from voidpad.decode.block_ends import DelimitedBlocks
from voidpad.decode.commit import (
    EntropyBound,
    Factor,
    Hierarchical,
    HighConfidence,
    LocalLeap,
    Threshold,
    TopK,
)
from voidpad.decode.eos_length import Daedal, RhoEos
from voidpad.decode.fields import settings_of
from voidpad.decode.length import AppendedBlocks, Fixed, SmartCrop, VoidExpansion
from voidpad.decode.plan import ALIASES, every_field
from voidpad.decode.propose import GumbelProposal, SampledProposal
from voidpad.decode.stop import eos_termination, vanilla
from voidpad.errors import ConfigError, VoidpadError
from voidpad.models import FAMILIES

RULES = [Fixed, VoidExpansion, SmartCrop, Daedal, RhoEos, TopK, Threshold, HighConfidence, Factor]
RULES += [EntropyBound, LocalLeap, Hierarchical, EosPenalty, Credit, AppendedBlocks, DelimitedBlocks]
RULES += [GumbelProposal, SampledProposal, Plan]


# --------------------------------------------------------------------------------------- ranges of settings
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VoidExpansion(tau_nonvoid=3), "tau_nonvoid=3 must lie in [0, 1]."),
        (lambda: VoidExpansion(tau_gap=-1.5), "tau_gap=-1.5 must lie in [-1, 1]."),
        (lambda: VoidExpansion(cap_rounding="up"), "cap_rounding='up' is unknown; use one of ceil, floor."),
        (lambda: SmartCrop(tau=0.0), "tau=0.0 must lie in (0, 1]."),
        (lambda: RhoEos(interval=0.0), "interval=0.0 must be more than 0."),
        (lambda: RhoEos(edit_growth="log"), "edit_growth='log' is unknown; use one of const, linear, exp."),
        (lambda: Daedal(canvas=64, limit=32), "limit=32 is below canvas=64; raise limit or lower canvas."),
        (lambda: Fixed(canvas=0), "canvas=0 must be at least 1."),
        (lambda: Fixed(canvas=8.0), "canvas=8.0 must be of type integer; the default is 512."),
        (lambda: Fixed(canvas=True), "canvas=True must be of type integer; the default is 512."),
        (lambda: Threshold(float("nan")), "threshold=nan is no number; the default is 0.9."),
        (lambda: Plan(block=0), "block=0 must be at least 1."),
        (lambda: Plan(ban="void"), "ban='void' must be a tuple of role names and token ids."),
        (lambda: plan("void-expansion", tau_nonvoid=3), "tau_nonvoid=3.0 must lie in [0, 1]."),
        (lambda: plan("void", score=len), "score=<built-in function len> is unknown; use one of confidence"),
        (lambda: plan("void", trim=1), "trim=1 must be of type boolean; the default is False."),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_line(make, message):
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_setting_refuses_what_lies_just_outside_its_bounds(rule):
    for one in settings_of(rule):
        assert one.help, one.name
        if one.bounds is None:
            continue
        step = 1 if one.type == "integer" else 1e-9
        outside = [one.bounds.above] if one.bounds.above is not None else []
        outside += [one.bounds.at_least - step] if one.bounds.at_least is not None else []
        outside += [one.bounds.at_most + step] if one.bounds.at_most is not None else []
        assert outside, one.name
        for value in outside:
            with pytest.raises(ConfigError, match=f"^{one.name}="):
                rule(**{one.name: type(one.default)(value)})


def test_every_rule_of_a_preset_owns_its_fields():
    """A field of a length rule, or of a proposal, that a user could not set would have no default of its own."""
    switched = (Threshold, Factor, EntropyBound, LocalLeap, Hierarchical, EosPenalty, Credit, DelimitedBlocks)
    lengths = (Fixed, VoidExpansion, SmartCrop, Daedal, RhoEos, AppendedBlocks)
    for rule in (*lengths, *switched, GumbelProposal, SampledProposal):
        assert [one.name for one in settings_of(rule)] == [one.name for one in fields(rule)]


# ------------------------------------------------------------------------------------------ generated fields
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("name", [*PRESETS, *ALIASES, *(f"{name}@authors" for name in PRESETS)])
def test_the_schema_is_what_the_plan_is_built_from(name, family):
    built, values = describe(name, defaults=FAMILIES[family].decoding)
    shown = schema(name, FAMILIES[family].decoding)
    assert {one.name: one.default for one in shown} == values
    again = plan(name.partition("@")[0], defaults=FAMILIES[family].decoding, **values)
    assert again == built  # the defaults, typed out, give the same plan
    for one in shown:
        plain = json.loads(json.dumps(one.plain()))
        assert set(plain) == {"name", "type", "default", "choices", "at_least", "above", "at_most", "help"}
        assert not plain["choices"] or plain["default"] in plain["choices"]
        one.resolve(one.default)
    assert {one.name for one in shown} <= {one.name for one in every_field()}


def test_every_choice_of_every_field_makes_another_plan():
    for family in (one.decoding for one in FAMILIES.values()):
        for name in family.presets:
            for one in schema(name, family):
                on = {"ban": "void"}  # `scores` says what happens to the banned tokens
                on |= {"entropy_order": {"entropy_bound": 0.1}}.get(one.name, {})
                on |= {"eos_annealing": {"eos_penalty": 3.0}}.get(one.name, {})
                if name == "ada-block":  # its own rules leave no choice of a schedule, a score or an order
                    on = {"threshold": 0.0, "delimiter_threshold": 0.0, **on}
                made = [plan(name, defaults=family, **{**on, one.name: choice}) for choice in one.choices]
                assert len(set(made)) == len(made), one.name


def test_the_old_name_of_a_field_still_works_and_says_so():
    with pytest.warns(FutureWarning, match="the plan field scheduler is now called edit_growth"):
        old = plan("rho-eos", scheduler="linear")
    assert old == plan("rho-eos", edit_growth="linear") != plan("rho-eos")
    with pytest.warns(FutureWarning, match="edit_growth"):
        assert plan("rho-eos", calibration={"rho-eos": {"scheduler": "linear"}}) == old


# ------------------------------------------------------------------------------------------- limits and trim
LIMITS = {
    "original": 512,
    "void": 512,
    "void-expansion": 512,
    "daedal": 2048,
    "rho-eos": 2048,
    "smart-crop": 512,
    "eos-last": 512,
    "eos-never": 512,
    "eos-penalty": 512,
    "append-blocks": 512,
    "ada-block": 512,
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_limit_is_the_longest_canvas_trimmed_or_not(name):
    whole = plan(name)
    assert whole.limit == LIMITS[name]
    assert whole.fitted(100).limit == 96
    if whole.length.trims:
        trimmed = plan(name, trim=True, stop="eos")
        assert trimmed.limit == LIMITS[name]
        assert trimmed.fitted(100).limit == 96
        assert trimmed.fitted(100).trim


@pytest.mark.parametrize("trim", [False, True])
def test_a_fitted_plan_stays_inside_its_room(trim):
    grows = plan("void-expansion", canvas=8, limit=64, block=4, trim=trim)
    assert grows.fitted(64) is grows
    assert (grows.fitted(31).limit, grows.fitted(31).length.canvas) == (28, 8)
    assert (grows.fitted(7).limit, grows.fitted(7).length.canvas) == (4, 4)
    assert grows.fitted(31).trim == trim
    uneven = plan("daedal", canvas=10, limit=50, block=8)
    assert uneven.fitted(12).limit == 10  # whole blocks, but never less than a first canvas that fits
    fixed = plan("void", canvas=32, block=8, steps=16)
    assert (fixed.fitted(20).limit, fixed.fitted(20).steps) == (16, 4)
    with pytest.raises(ConfigError, match="block=8 does not fit the 7 slots that are left"):
        fixed.fitted(7)


def test_trim_needs_a_stop_rule():
    with pytest.raises(ConfigError, match="needs stop=eos"):
        Plan(trim=True, stop=vanilla)
    for rule in (Daedal(), RhoEos()):  # growth that trimming undoes need never end
        with pytest.raises(ConfigError, match=f"the tail by which {type(rule).__name__} sets the length"):
            Plan(rule, trim=True, stop=eos_termination)


# --------------------------------------------------------------------------------------------- final prefixes
def emitted(c, chosen):
    """(prefixes by pass, outcome's ids) of every row."""
    prefixes: dict[int, list[list[int]]] = {}
    for step in steps_of(c.denoise, c.prompts, c.roles, chosen, seed=c.seed):
        final = chosen.length.final_prefix(step.after)
        for row, key in enumerate(step.after.canvas.key.tolist()):
            prefixes.setdefault(key, []).append(step.after.canvas.answer(row)[: int(final[row])])
        for outcome in step.finished.values():
            yield prefixes.pop(outcome.key), outcome.ids


TRIMMED = [(length, False) for length in LENGTHS] + [
    (length, True) for length in ("fixed", "expansion", "crop")
]


@pytest.mark.parametrize(("length", "trim"), TRIMMED)
def test_a_final_prefix_is_a_prefix_of_the_outcome(length, trim):
    early = 0
    for number in range(60 if length == "rho" else 30):
        c = case(LENGTHS.index(length) + len(LENGTHS) * number)
        chosen = replace(c.plan, trim=True, stop=eos_termination) if trim else c.plan
        for prefixes, ids in emitted(c, chosen):
            assert all(ids[: len(prefix)] == prefix for prefix in prefixes), number
            assert all(c.roles.mask not in prefix for prefix in prefixes), number
            sizes = [len(prefix) for prefix in prefixes]
            assert length == "rho" or sizes == sorted(sizes), number
            early += any(0 < size < len(ids) for size in sizes[:-1])
    assert early > 8, early  # something was final before the end


def test_the_committed_prefix_is_not_final_for_rho_eos():
    """Why rho-EOS declares less than the others: its contractions drop written tokens, its insertions move the EOS."""
    broken = 0
    for number in range(30):
        c = case(LENGTHS.index("rho") + len(LENGTHS) * number)
        seen: dict[int, list[list[int]]] = {}
        for step in steps_of(c.denoise, c.prompts, c.roles, c.plan, seed=c.seed):
            written = step.after.committed_prefix
            for row, key in enumerate(step.after.canvas.key.tolist()):
                seen.setdefault(key, []).append(step.after.canvas.answer(row)[: int(written[row])])
            for outcome in step.finished.values():
                broken += any(outcome.ids[: len(part)] != part for part in seen.pop(outcome.key))
    assert broken > 0


def test_a_rule_that_declares_nothing_has_no_final_prefix():
    c = case(0, ("fixed",))
    chosen = replace(c.plan, length=Bare(c.plan.length.canvas))
    assert all(not any(prefixes) for prefixes, _ in emitted(c, chosen))


# --------------------------------------------------------------------------------------- rules of the user's own
@dataclass(frozen=True)
class Bare(LengthRule):
    canvas: int = 8


@dataclass(frozen=True)
class Everything(DecodingRule):
    """A commit rule that does not say whether it is an approximation."""

    def __call__(self, score, frontier, progress):
        return frontier


class Quarter(Everything):
    approximation = "quarter"
    steps = 4


def every_slot(score, frontier, progress):
    return torch.ones_like(frontier)


@dataclass(frozen=True)
class Endless(LengthRule):
    canvas: int = 8

    def revise(self, before, rows, look, block):
        return replace(rows, canvas=rows.canvas.resize(rows.canvas.stop + block)).advance(block)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"commit": every_slot}, "commit=test_plan:every_slot chose a slot outside the frontier"),
        ({"length": Endless()}, "length=test_plan:Endless grew a canvas past its limit of 8"),
    ],
)
def test_a_rule_that_breaks_its_contract_is_named(rules, message):
    c = case(0, ("fixed",))
    with pytest.raises(VoidpadError, match=message):
        list(steps_of(c.denoise, c.prompts, c.roles, replace(c.plan, **rules), seed=c.seed))


def all_at_once(score, frontier, progress):
    return frontier


@dataclass
class Mutable:
    def __call__(self, score, frontier, progress):
        return frontier


def test_a_rule_that_writes_several_tokens_is_named():
    assert plan("void").approximations == ()
    assert plan("daedal").approximations == plan("rho-eos").approximations == ()
    assert plan("void", threshold=0.9, trim=True).approximations == ("threshold", "trim")
    assert plan("void", factor=1.0).approximations == ("factor",)
    assert plan("void", entropy_bound=0.1).approximations == ("entropy_bound",)
    assert plan("void", threshold=0.9, leap=0.75).approximations == ("leap",)
    assert plan("void", threshold=0.9, each_run=0.4).approximations == ("each_run",)
    assert plan("void", threshold=0.9, credit=0.7).approximations == ("threshold", "credit")
    assert plan("eos-penalty", position_decay=0.25).approximations == ()
    assert Plan(commit=Everything()).approximations == (f"{__name__}:Everything",)
    assert Plan(commit=all_at_once).approximations == (f"{__name__}:all_at_once",)
    quarter = Plan(commit=Quarter(), block=8)
    assert (quarter.approximations, quarter.steps) == (("quarter",), 4)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"commit": Mutable()}, "is not hashable; make its class a frozen dataclass."),
        (
            {"commit": lambda score, frontier, progress: frontier},
            "cannot be pickled; define it at the top level",
        ),
        ({"stop": lambda canvas: canvas.masked.any(1)}, "cannot be pickled; define it at the top level"),
        ({"propose": "greedy"}, "propose='greedy' is no rule; give a function or an object with __call__."),
        ({"stop": 3}, "stop=3 is unknown; use one of vanilla, eos."),
        ({"length": Everything()}, "is no length rule; make its class inherit from LengthRule."),
    ],
)
def test_rules_that_cannot_be_used_are_refused_when_the_plan_is_made(rules, message):
    with pytest.raises(ConfigError) as refused:
        Plan(**rules)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", PRESETS)
def test_plans_are_values(name):
    for made in (plan(name), Plan(commit=Quarter(), length=Bare(), stop=eos_termination, trim=True)):
        for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert other == made
            assert hash(other) == hash(made)
        assert json.loads(json.dumps(made.plain()))["rule"] == "Plan"


def test_a_limit_between_blocks_bounds_a_plan_made_by_hand():
    c = case(0, ("expansion",))
    rule = VoidExpansion(canvas=4, limit=7, window=4, tau_nonvoid=0.0, tau_gap=1.0)
    made = replace(c.plan, length=rule, block=4)
    canvases = {len(ids) for _, ids in emitted(c, made)}
    assert canvases == {7}


@pytest.mark.parametrize(
    ("family", "name", "fields", "hint"),
    [
        ("llada", "original", ["top_p"], "; this model samples by temperature alone; "),
        ("llada", "daedal", ["top_p"], "; it does not sample; "),
        (
            "dream",
            "daedal",
            ["temperature"],
            "; plans that have it: original, void, void-expansion and others; ",
        ),
        ("llada", "void", ["limit", "tau_gap"], "; plans that have them: void-expansion; "),
        ("sdar", "static", ["threshold"], "; plans that have it: dynamic; "),
        ("llada", "void", ["canvs"], " (did you mean canvas?); "),
        ("llada", "void", ["colour"], "; "),
    ],
)
def test_a_field_that_a_plan_does_not_have_comes_with_what_to_use(family, name, fields, hint):
    with pytest.raises(ConfigError) as refused:
        plan(name, defaults=FAMILIES[family].decoding, **dict.fromkeys(fields, 0.5))
    start = f"plan {name!r} has no field {', '.join(fields)}"
    assert str(refused.value) == f"{start}{hint}`voidpad plans {name} --model MODEL` lists its fields."
