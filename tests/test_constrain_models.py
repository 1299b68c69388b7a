"""Constraints with networks: families, presets, caches, batches, streaming, decisions, and the command line."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import torch
from pydantic import BaseModel, Field

from voidpad import choice, json_schema, regex
from voidpad.constrain import ConstraintError
from voidpad.decode import PRESETS
from voidpad.diagnose.trace import Recorder
from voidpad.errors import ConfigError
from voidpad.models import FAMILIES, random_model, save
from voidpad.models.checkpoint import PreparedPrompt

EVERYDAY = json.loads((Path(__file__).parent / "everyday_schemas.json").read_text())
FEW = list(EVERYDAY)[5::30]  # in `make test`; all of them in `make test-slow`
SCHEMAS = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in EVERYDAY]
DATE = r"[0-9]{4}-[01][0-9]-[0-3][0-9]( or later)?"


def model_of(family: str, **fields):
    """A random model whose EOS and VOID are common enough to occur."""
    model = random_model(family, vocab=140, context=2048, seed=5, **fields)
    with torch.no_grad():
        model.net.lm_head.weight[[model.roles.eos, model.roles.void]] *= 2
    return model


@pytest.fixture(scope="module")
def models():
    return {family: model_of(family) for family in ("llada", "dream", "sdar")}


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_random_models_write_what_everyday_schemas_allow(models, family, name):
    model, constraint = models[family], json_schema(EVERYDAY[name])
    longest = -(-(model.compiler(constraint).shortest + 60) // 32) * 32
    plan = "dynamic" if model.card.causal_block else "void"
    fields = {"canvas": longest, "block": model.card.causal_block or 32, "threshold": 0.3}
    (result,) = model.generate(["an example"], plan, constraint=constraint, **fields)
    jsonschema.Draft202012Validator(EVERYDAY[name]).validate(json.loads(result.text))
    assert result.constraint.matched


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_writes_what_the_pattern_allows(family):
    model = model_of(family, layers=1)
    fields = {"canvas": 32, "block": model.card.causal_block or 16}
    results = model.generate(["a", "two words"], constraint=regex(DATE), **fields)
    assert all(re.fullmatch(DATE, result.text) for result in results)


REFUSED = {"daedal", "rho-eos", "eos-never"}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_obeys_or_refuses(models, name):
    model = models["llada"]
    fields = {"canvas": 32, "block": 8} if name not in ("daedal", "rho-eos") else {}
    if name in REFUSED:
        with pytest.raises(ConstraintError):
            model.generate(["a"], name, constraint=regex(DATE), **fields)
        return
    (result,) = model.generate(["a"], name, constraint=regex(DATE), **fields)
    assert re.fullmatch(DATE, result.text)


@pytest.mark.parametrize("cache", ["dual", "dual:2", "prompt:3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_caches_and_temperatures_change_no_match(models, cache, temperature):
    fields = {"cache": cache, "temperature": temperature, "canvas": 48, "block": 16, "threshold": 0.5}
    results = models["dream"].generate(["a", "bc"], "void", constraint=regex(DATE), **fields)
    assert all(re.fullmatch(DATE, result.text) for result in results)


def test_rows_with_and_without_constraints_share_passes_and_do_not_disturb_each_other(models):
    model = models["llada"]
    held = [
        regex(DATE),
        None,
        choice(["red", "green"]),
        json_schema(EVERYDAY["geo_point"]),
    ]
    prompts = ["one", "two", "three", "four"]
    fields = {"plan": "void", "canvas": 64, "block": 16, "temperature": 0.7, "threshold": 0.4}
    together = model.generate(prompts, constraint=held, seed=3, **fields)
    assert [result.constraint is None for result in together] == [False, True, False, False]
    free = model.generate(prompts, seed=3, **fields)
    assert together[1].ids == free[1].ids
    assert together[2].text in ("red", "green")
    narrow = model.generate(prompts, constraint=held, seed=3, rows=1, **fields)
    assert [result.ids for result in narrow] == [result.ids for result in together]


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


def test_a_pydantic_class_is_a_constraint(models):
    (result,) = models["dream"].generate(["who"], "void", constraint=Person, canvas=96, threshold=0.5)
    Person.model_validate_json(result.text)
    assert result.constraint.longest == 96
    assert result.constraint.states > 20


def test_what_is_no_constraint_is_refused(models):
    with pytest.raises(ConstraintError):
        models["llada"].generate(["a"], constraint="yes|no")
    with pytest.raises(ConfigError):
        models["llada"].generate(["a", "b"], constraint=[None])
    with pytest.raises(ConstraintError):  # the characters are not in the vocabulary
        models["llada"].generate(["a"], constraint=choice(["中"]))
    with pytest.raises(ConfigError):
        models["llada"].decide("a", [])


def test_a_trace_says_which_slots_were_forced(models):
    """A random model hardly ever wants the letters of a choice."""
    model = models["llada"]
    recorder = Recorder(model, plan_name="void")
    held = [choice(["left"]), None]
    model.generate(
        ["a", "b"], "void", constraint=held, canvas=16, block=16, listen=recorder, observe=recorder.observe
    )
    constrained, free = sorted(recorder.traces, key=lambda trace: trace.row)
    assert {slot for one in constrained.passes for slot in one.forced} >= {0, 1, 2, 3}
    assert all(one.forced is None for one in free.passes)


# Decisions


def test_a_decision_in_one_pass_is_a_product(models):
    """By hand: every way to write the choice, here one token a letter, then the end, then padding."""
    model = models["llada"]
    choices = ["yes", "no", "maybe"]
    ids = model.encode("is it?")
    decision = model.decide("is it?", choices)
    assert decision.estimate == "product"
    assert sum(decision.probabilities.values()) == pytest.approx(1)
    slots = 6
    row = torch.tensor([[*ids, *[model.roles.mask] * slots]])
    with torch.inference_mode():
        p = model.net(row).logits[0, len(ids) :].double().softmax(-1)
    roles = model.roles
    padding = sorted({*roles.ends, *roles.rainbow, roles.void})
    weights = {}
    for text in choices:
        letters = [model.tokenizer.convert_tokens_to_ids(letter) for letter in text]
        weight = torch.stack([p[slot, token] for slot, token in enumerate(letters)]).prod()
        if len(text) < slots:
            weight = weight * p[len(text), list(roles.ends)].sum() * p[len(text) + 1 :, padding].sum(1).prod()
        weights[text] = float(weight)
    total = sum(weights.values())
    assert decision.probabilities == pytest.approx({text: w / total for text, w in weights.items()}, rel=1e-6)
    assert decision.best == max(weights, key=weights.get)


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
def test_the_chain_rule_multiplies_one_pass_for_each_token(models, family):
    model = models[family]
    choices = ["ab", "c"]
    decision = model.decide("pick", choices, exact=True)
    assert (decision.estimate, decision.passes) == ("chain", 3)
    ids = model.encode("pick")
    block = model.card.causal_block
    slots = 3 if not block else -(-(len(ids) + 3) // block) * block - len(ids)
    from voidpad.decode.rows import Rows

    logs = []
    for text in choices:
        letters = [model.tokenizer.convert_tokens_to_ids(letter) for letter in text]
        total = 0.0
        for place in range(len(letters) + 1):
            written = [*ids, *letters[:place]]
            canvas = Rows.blank([written], slots - place, model.roles)
            where = canvas.offset == len(written)
            with torch.inference_mode():
                log_p = model.denoiser()(canvas, where & canvas.masked).double().log_softmax(-1)[0]
            ends = list(model.roles.ends)
            total += float(log_p[letters[place]] if place < len(letters) else log_p[ends].logsumexp(0))
        logs.append(total)
    wanted = torch.tensor(logs, dtype=torch.float64).softmax(0).tolist()
    assert list(decision.probabilities.values()) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_what_all_choices_begin_with_is_given(models, exact):
    """The same decision as about the rest, after a prompt that ends with what they share."""
    model = models["llada"]
    ids = model.encode("pick")
    prefix = [model.tokenizer.convert_tokens_to_ids(letter) for letter in "say "]
    first, longer = (PreparedPrompt(tuple(one), model.plan()) for one in (ids, [*ids, *prefix]))
    whole = model.decide(first, ["say ab", "say c"], exact=exact)
    rest = model.decide(longer, ["ab", "c"], exact=exact)
    assert list(whole.probabilities.values()) == pytest.approx(list(rest.probabilities.values()), rel=1e-6)
    assert whole.passes == rest.passes


# Command line


def test_the_command_line_takes_a_regex_a_schema_and_choices_or_refuses_in_one_line(
    models, tmp_path, voidpad
):
    save(models["llada"], tmp_path / "model")
    (tmp_path / "schema.json").write_text(json.dumps(EVERYDAY["geo_point"]))
    (tmp_path / "odd.json").write_text('{"type": "integer", "multipleOf": 2}')
    shared = f"generate where --model {tmp_path}/model --canvas 96 --json"
    [row] = voidpad(shared, "--regex", DATE).rows
    assert re.fullmatch(DATE, row["text"])
    assert row["constraint"]["matched"] is True
    [row] = voidpad(shared, "--json-schema", tmp_path / "schema.json").rows
    jsonschema.validate(json.loads(row["text"]), EVERYDAY["geo_point"])
    [row] = voidpad(shared, "--choice", "left,right").rows
    assert row["text"] in ("left", "right")
    for options in (
        ("--regex", "(?=a)"),
        ("--json-schema", tmp_path / "odd.json"),
        ("--regex", "a", "--choice", "b"),
        ("--regex", "a", "--plan", "daedal"),
    ):
        ran = voidpad(f"generate hi --model {tmp_path}/model", *options)
        assert (ran.status, len(ran.err.strip().splitlines())) == (2, 1)
