"""`model.fill`: templates, lengths of gaps, constraints, the command and the server."""

import json
import re

import httpx
import pytest
import torch

from serving import serving
from voidpad import choice, regex
from voidpad.diagnose import trace
from voidpad.errors import ConfigError
from voidpad.models import random_model, save
from voidpad.models.fill import Gap, _surest_length, baseline, parse_template

BOTH = pytest.mark.parametrize("family", ["llada", "dream"])


@pytest.fixture(scope="module")
def models():
    return {family: random_model(family, vocab=140, context=256, seed=3) for family in ("llada", "dream")}


def test_templates_and_their_gaps():
    texts, gaps = parse_template("a [[gap]] b [[gap:3]]\n[[gap:2-9]]!")
    assert texts == ["a ", " b ", "\n", "!"]
    assert gaps == [Gap(), Gap(3, 3, stated=True), Gap(2, 9, stated=True)]
    assert parse_template("x<[[hole:4]]>[[gap]]", "hole")[0] == ["x<", ">[[gap]]"]


@pytest.mark.parametrize(
    "text", ["no gap", "[[gap]] first", "a [[gap:0]]", "a [[gap:9-2]]", "a" + "[[gap]]" * 40]
)
def test_templates_that_cannot_be_filled(models, text):
    with pytest.raises(ConfigError, match="template"):
        models["llada"].fill(text)


@BOTH
@pytest.mark.parametrize("length", ["fixed", "cal", "void-gap"])
def test_fixed_text_stays_and_lengths_keep_their_bounds(models, family, length):
    model = models[family]
    done = model.fill("one [[gap:5]] two [[gap:2-6]] three [[gap]].", length=length, slots=4)
    assert done.text == f"one {done.gaps[0]} two {done.gaps[1]} three {done.gaps[2]}."
    assert done.slots[0] == 5
    assert 2 <= done.slots[1] <= 6
    assert (done.passes_probe > 0) == (length != "fixed")
    assert [len(gap) for gap in done.result.gaps] == list(done.slots)
    ends = {model.roles.eos, model.roles.void, model.roles.mask}
    assert not ends & {token for gap in done.result.gaps for token in gap}


@BOTH
def test_gaps_obey_their_constraints(models, family):
    model = models[family]
    done = model.fill(
        "from [[gap:1-8]] to [[gap:4]] by [[gap:3]]",
        constraint=[regex("[0-9]+-[a-c]+"), choice(["Oslo", "Rome"]), None],
    )
    assert re.fullmatch("[0-9]+-[a-c]+", done.gaps[0])
    assert done.gaps[1] in ("Oslo", "Rome")
    with pytest.raises(ConfigError, match="too short"):
        model.fill("to [[gap:2]]", constraint=choice(["Oslo"]))


def test_the_length_that_is_surest_is_chosen():
    """A network that is sure of exactly seven slots: `cal` finds the seven from its start at eight."""

    def probe(sizes):
        p = torch.zeros(len(sizes), max(sizes), 8, dtype=torch.double)
        for row, size in enumerate(sizes):
            p[row, :size, 0] = baseline(size) * (1.3 - 0.05 * abs(size - 7))
        return p

    assert _surest_length(probe, Gap(1, 20))[0] == 7


def test_the_command_fills_a_file(models, tmp_path, voidpad):
    save(models["llada"], tmp_path / "model")
    (tmp_path / "text").write_text("a [[gap:4]] b [[gap:3]] c\n")
    words = f"--model {tmp_path}/model --fill {tmp_path}/text --trace {tmp_path}/trace.jsonl"
    [said] = voidpad(f"generate {words} --json").rows
    wanted = models["llada"].fill("a [[gap:4]] b [[gap:3]] c\n")
    assert (said["text"], said["gaps"], said["slots"]) == (wanted.text, list(wanted.gaps), [4, 3])
    [recorded] = trace.read(tmp_path / "trace.jsonl")
    assert recorded.result.ids == wanted.result.ids
    assert recorded.header.template.count(recorded.header.roles.mask) == 7


@pytest.mark.parametrize("plan", ["void", "void-expansion"])  # the second is a server's default
def test_the_server_fills_a_suffix_and_a_template(models, plan):
    model = models["llada"]
    with serving(model, plan=plan, fields={"canvas": 48, "block": 8}, name="mine") as running:

        def ask(**fields):
            body = {"model": "mine", "seed": 0, "max_tokens": 6, **fields}
            return httpx.post(running.url + "/v1/completions", json=body, timeout=300)

        reply = ask(prompt="one ", suffix=" two").json()["choices"][0]
        wanted = model.fill("one [[gap:6]] two")
        assert reply["text"] == wanted.gaps[0]
        assert reply["finish_reason"] == "stop"
        reply = ask(prompt="", voidpad={"template": "a [[gap:4]] b [[gap:2]]"}).json()["choices"][0]
        wanted = model.fill("a [[gap:4]] b [[gap:2]]")
        assert reply["text"] == wanted.text
        assert reply["voidpad"]["gaps"] == list(wanted.gaps)
        streamed = ask(
            prompt="", stream=True, voidpad={"template": "a [[gap:4]] b [[gap:2]]", "canvas_events": True}
        )
        *chunks, done = [part.removeprefix("data: ") for part in streamed.text.strip().split("\n\n")]
        said = [json.loads(chunk) for chunk in chunks]
        assert done == "[DONE]"
        assert "".join(choice["text"] for one in said for choice in one["choices"]) == wanted.text
        assert said[-1]["voidpad"]["gaps"] == list(wanted.gaps)
        passes = [one for one in said if one.get("voidpad", {}).get("record", {}).get("type") == "pass"]
        assert len(passes) == wanted.result.passes_decode
        for fields in (
            {"prompt": "", "voidpad": {"template": "no gap"}},
            {"prompt": "a", "suffix": "b", "n": 2},
            {"prompt": ["a", "b"], "suffix": "c"},
        ):
            assert ask(**fields).status_code == 400, fields
