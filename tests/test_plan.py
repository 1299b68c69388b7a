"""Plans as values: ranges, flat fields, limits, approximations, rules of the user's own, what a plan refuses."""

import copy
import json
import pickle

import pytest
import torch
from pydantic import Field

from cases import LENGTHS, case
from voidpad.decode import PRESETS, CommitRule, LengthRule, Plan, StopRule, decode, describe, plan, schema
from voidpad.decode.authors import AuthorsFactor
from voidpad.decode.commit import Factor, Threshold
from voidpad.decode.length import Daedal, Fixed, RhoEos, SmartCrop, VoidExpansion
from voidpad.decode.presets import ALIASES
from voidpad.decode.stop import EosTermination, Vanilla
from voidpad.errors import ConfigError, PlanError, VoidpadError
from voidpad.models import DREAM, FAMILIES, LLADA


# --------------------------------------------------------------------------------------- ranges of settings
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: VoidExpansion(tau_nonvoid=3), "tau_nonvoid"),
        (lambda: VoidExpansion(tau_gap=-1.5), "tau_gap"),
        (lambda: SmartCrop(tau=0.0), "tau"),
        (lambda: RhoEos(edit_growth="log"), "edit_growth"),
        (lambda: RhoEos(rho_low=0.9), "rho_low"),
        (lambda: Daedal(canvas=64, limit=32), "limit"),
        (lambda: Fixed(canvas=True), "canvas"),
        (lambda: Threshold(threshold=float("nan")), "threshold"),
        (lambda: Plan(block=10**30), "block"),
        (lambda: Plan(colour="red"), "colour"),
        (lambda: Plan(mute=[[1]]), "mute"),
        (lambda: Plan(propose="greedy"), "propose"),
        (lambda: Plan(length=Everything()), "length"),
        (lambda: Plan(trim=True, stop=Vanilla()), "trim"),
        # Growth that trimming undoes need never end.
        (lambda: Plan(length=Daedal(), trim=True, stop=EosTermination()), "trim"),
        (lambda: Plan(length=RhoEos(), trim=True, stop=EosTermination()), "trim"),
        (lambda: plan("void", trim=1), "trim"),
        (lambda: plan("daedal", block=10**300), "block"),
        (lambda: plan("void", temperature=1e300), "temperature"),
        (lambda: plan("void", steps=10**300), "steps"),
        (lambda: describe("void", {"defaults": 1}), "defaults"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name_in_one_line(make, field):
    with pytest.raises(PlanError) as refused:
        make()
    assert refused.value.field == field
    assert "\n" not in str(refused.value)
    assert pickle.loads(pickle.dumps(refused.value)).field == field


@pytest.mark.parametrize(
    ("name", "fields", "blamed"),
    [
        ("original", {"canvas": 10, "block": 4}, "canvas"),
        ("original", {"canvas": 8, "block": 4, "steps": 7}, "steps"),
        ("original", {"canvas": 8, "block": 4, "steps": 1}, "steps"),
        ("void-expansion", {"canvas": 64, "limit": 32}, "limit"),
        ("void-expansion@authors", {"canvas": 5, "limit": 7, "block": 4}, "limit"),
        ("smart-crop", {"canvas": 10, "block": 4}, "canvas"),
        ("daedal", {"canvas": 64, "limit": 32}, "limit"),
        ("rho-eos", {"canvas": 64, "limit": 32}, "limit"),
        ("append-blocks", {"block": 64, "limit": 32}, "limit"),
        ("original", {"threshold": 0.9, "entropy_bound": 0.1}, "entropy_bound"),
        ("original", {"factor": 1.0, "threshold": 0.7}, "factor"),
        ("original", {"entropy_order": "entropy", "threshold": 0.9}, "entropy_order"),
        ("original", {"eos_annealing": "linear"}, "eos_annealing"),
        ("original", {"position_decay": 0.25, "threshold": 0.9}, "position_decay"),
        ("original", {"position_decay": 0.25, "score": "neg_entropy"}, "position_decay"),
        ("original", {"steps": 512, "threshold": 0.9}, "steps"),
        ("original", {"steps": 64, "entropy_bound": 0.1}, "steps"),
        ("original", {"schedule": "dream", "factor": 1.0}, "schedule"),
    ],
)
def test_fields_that_do_not_go_together_are_refused_by_name(name, fields, blamed):
    with pytest.raises(PlanError) as refused:
        plan(name, **fields)
    assert refused.value.field == blamed
    assert "\n" not in str(refused.value)


# ------------------------------------------------------------------------------------------ flat fields
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("name", [*PRESETS, *ALIASES, *(f"{name}@authors" for name in PRESETS)])
def test_the_schema_is_what_the_plan_is_built_from(name, family):
    built, values = describe(name, defaults=FAMILIES[family].decoding)
    shown = schema(name, FAMILIES[family].decoding)
    assert {field: about["default"] for field, about in shown.items()} == values
    again = plan(name, defaults=FAMILIES[family].decoding, **values)
    assert again == built  # the defaults, typed out, give the same plan
    for about in json.loads(json.dumps(shown)).values():
        assert about["description"]
        assert "enum" not in about or about["default"] in about["enum"]
        assert about["type"] not in ("integer", "number") or "maximum" in about


def test_every_choice_of_every_field_makes_another_plan():
    for family in (one.decoding for one in FAMILIES.values()):
        for name in family.presets:
            for field, about in schema(name, family).items():
                on = {"ban": "void"}  # `scores` says what happens to the banned tokens
                on |= {"entropy_order": {"entropy_bound": 0.1}}.get(field, {})
                on |= {"eos_annealing": {"eos_penalty": 3.0}}.get(field, {})
                choices = about.get("enum", ())
                made = [plan(name, defaults=family, **{**on, field: choice}) for choice in choices]
                assert len(set(made)) == len(made), field


def test_names_may_be_separated_by_commas():
    assert plan("original", ban="void, 12,").ban == plan("original", ban=["void", 12]).ban == ("void", 12)


def test_fields_beside_a_threshold_are_not_those_of_a_schedule():
    _, values = describe("void", {"threshold": 0.9})
    assert (values["steps"], values["schedule"]) == (None, None)
    assert plan("void", **values) == plan("void", threshold=0.9)


def test_dream_scores_with_void_in_them_unless_asked_otherwise():
    """Renormalised scores lose answers at blocks above 32: 90.6 against 98.2 % right at block = canvas."""
    dream = FAMILIES["dream"].decoding
    for name in ("void", "void-expansion"):
        assert plan(name, defaults=dream).mute == ()
        assert plan(f"{name}@authors", defaults=dream).mute == ("void",)
        assert plan(name, defaults=dream, scores="renormalised").mute == ("void",)
    assert plan("original", defaults=dream, ban="void").mute == ("void",)


def test_only_authors_plans_repeat_the_slips_of_released_programs():
    for family in (LLADA, DREAM, FAMILIES["llada_moe"]):
        for name in ("original", "void", "void-expansion", "smart-crop"):
            for suffix, factor in (("", Factor), ("@authors", AuthorsFactor)):
                chosen = {"name": name + suffix, "defaults": family.decoding, "factor": 1.0}
                made = plan(**chosen)
                assert type(made.commit) is factor
                assert made.leaves_blocks == (family is DREAM and suffix != "")
                if made.leaves_blocks:  # Dream's released loop bounds the passes of every rule
                    in_total = name in ("original", "void")
                    assert plan(**chosen, steps=512).steps == (32 if in_total else 512)
                else:
                    with pytest.raises(PlanError) as refused:
                        plan(**chosen, steps=512)
                    assert refused.value.field == "steps"
    for loop_of_its_own in ("daedal@authors", "rho-eos@authors"):
        assert not plan(loop_of_its_own, defaults=DREAM.decoding).leaves_blocks


# ------------------------------------------------------------------------------------------- limits and trim
@pytest.mark.parametrize("name", PRESETS)
def test_the_limit_is_the_longest_canvas_trimmed_or_not(name):
    whole = plan(name)
    for made in (whole, *([plan(name, trim=True, stop="eos")] if "trim" in schema(name) else [])):
        assert made.limit == whole.length.longest
        assert made.fitted(100).limit == 96
        assert made.fitted(100).trim == made.trim


def test_a_fitted_plan_stays_inside_its_room():
    grows = plan("void-expansion", canvas=8, limit=64, block=4)
    assert grows.fitted(64) is grows
    assert (grows.fitted(31).limit, grows.fitted(31).length.canvas) == (28, 8)
    assert (grows.fitted(7).limit, grows.fitted(7).length.canvas) == (4, 4)
    uneven = plan("daedal", canvas=10, limit=50, block=8)
    assert uneven.fitted(12).limit == 10  # whole blocks, but never less than a first canvas that fits
    fixed = plan("void", canvas=32, block=8, steps=16)
    assert (fixed.fitted(20).limit, fixed.fitted(20).steps) == (16, 4)
    with pytest.raises(ConfigError, match="block=8 does not fit the 7 slots that are left"):
        fixed.fitted(7)


# --------------------------------------------------------------------------------------------- final prefixes
def emitted(c, chosen):
    """(prefixes by pass, outcome's ids) of every row."""
    prefixes: dict[int, list[list[int]]] = {}
    for step in decode(c.denoise, c.prompts, c.roles, chosen, seed=c.seed):
        final = chosen.length.final_prefix(step.after)
        for row, key in enumerate(step.after.key.tolist()):
            prefixes.setdefault(key, []).append(step.after.answer(row)[: int(final[row])])
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
        chosen = c.plan.replace(trim=True, stop=EosTermination()) if trim else c.plan
        for prefixes, ids in emitted(c, chosen):
            assert all(ids[: len(prefix)] == prefix for prefix in prefixes), number
            assert all(c.roles.mask not in prefix for prefix in prefixes), number
            sizes = [len(prefix) for prefix in prefixes]
            assert length == "rho" or sizes == sorted(sizes), number
            early += any(0 < size < len(ids) for size in sizes[:-1])
    assert early > 8, early  # something was final before the end


def test_a_rule_that_declares_nothing_has_no_final_prefix():
    c = case(0, ("fixed",))
    chosen = c.plan.replace(length=Bare(canvas=c.plan.length.canvas))
    assert all(not any(prefixes) for prefixes, _ in emitted(c, chosen))


# --------------------------------------------------------------------------------------- rules of the user's own
class Bare(LengthRule):
    canvas: int = Field(default=8, ge=1, le=64)


class Everything(CommitRule):
    """A commit rule that does not say whether it is an approximation."""

    def __call__(self, proposed, progress):
        return proposed.frontier


class Quarter(Everything):
    approximation = "quarter"

    def passes(self, block):
        return 4


class SameSlot(CommitRule):
    def __call__(self, proposed, progress):
        return torch.zeros_like(proposed.frontier).index_fill(1, torch.tensor([0]), True)


class Endless(LengthRule):
    canvas: int = Field(default=8, ge=1, le=64)

    def revise(self, before, rows, reading, block):
        return rows.resize(rows.stop + block).advance(block)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"commit": SameSlot()}, "commit=test_plan:SameSlot"),
        ({"length": Endless()}, "length=test_plan:Endless"),
    ],
)
def test_a_rule_that_breaks_its_contract_is_named(rules, message):
    c = case(0, ("fixed",))
    with pytest.raises(VoidpadError, match=message):
        list(decode(c.denoise, c.prompts, c.roles, c.plan.replace(**rules), seed=c.seed))


def test_a_rule_that_writes_several_tokens_is_named():
    assert plan("void").approximations == ()
    assert plan("daedal").approximations == plan("rho-eos").approximations == ()
    assert plan("void", threshold=0.9, trim=True).approximations == ("threshold", "trim")
    assert plan("void", factor=1.0).approximations == ("factor",)
    assert plan("void", entropy_bound=0.1).approximations == ("entropy_bound",)
    assert plan("eos-penalty", position_decay=0.25).approximations == ()
    assert Plan(commit=Everything()).approximations == (f"{__name__}:Everything",)
    quarter = Plan(commit=Quarter(), block=8)
    assert (quarter.approximations, quarter.steps) == (("quarter",), 4)


class Soon(StopRule):
    def __call__(self, rows):
        return rows.masked.sum(1) < 4


@pytest.mark.parametrize("name", [*PRESETS, *(f"{name}@authors" for name in PRESETS)])
def test_plans_are_values(name):
    own = Plan(commit=Quarter(), length=Bare(), stop=Soon(), trim=True)
    for made in (plan(name), plan(name, defaults=FAMILIES["dream"].decoding), own):
        for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert other == made
            assert hash(other) == hash(made)
        assert json.loads(json.dumps(made.plain()))["rule"] in ("Plan", "DreamLoop")


def test_a_limit_between_blocks_bounds_a_plan_made_by_hand():
    c = case(0, ("expansion",))
    rule = VoidExpansion(canvas=4, limit=7, window=4, tau_nonvoid=0.0, tau_gap=1.0)
    made = c.plan.replace(length=rule, block=4)
    canvases = {len(ids) for _, ids in emitted(c, made)}
    assert canvases == {7}


@pytest.mark.parametrize(
    ("family", "name", "fields", "hint"),
    [
        ("dream", "daedal", ["temperature"], "original, void, void-expansion and others"),
        ("llada", "void", ["limit", "tau_gap"], "void-expansion"),
        ("sdar", "static", ["threshold"], "dynamic"),
        ("llada", "void", ["canvs"], "did you mean canvas?"),
        ("llada", "void", ["colour"], "voidpad plans void"),
    ],
)
def test_a_field_that_a_plan_does_not_have_comes_with_what_to_use(family, name, fields, hint):
    with pytest.raises(PlanError) as refused:
        plan(name, defaults=FAMILIES[family].decoding, **dict.fromkeys(fields, 0.5))
    assert refused.value.field == fields[0]
    assert hint in str(refused.value)
