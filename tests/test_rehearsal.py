"""The paper's tables end to end on random checkpoints in the released layout, as its readers would run them."""

import re

import pytest

from studies.paper.measured import pairs
from studies.paper.rehearse import random_adapter, random_release, rehearse
from voidpad.experiments.report.frame import frame
from voidpad.models import DREAM, LLADA, load

FAMILIES = pytest.mark.parametrize("family", [LLADA, DREAM], ids=lambda family: family.name)


@pytest.fixture(scope="module")
def weights(data_dir, tmp_path_factory):
    """Releases and adapters that the tests of this module share; the rehearsal makes what is missing."""
    return tmp_path_factory.mktemp("rehearsal")


@FAMILIES
def test_a_random_release_loads_like_the_real_one(data_dir, tmp_path, family):
    folder = random_release(family, data_dir, tmp_path / "release")
    model = load(folder)
    assert model.family is family
    assert model.card.family == family.name
    assert load(folder).net.num_parameters() < 6_000_000
    template = "<|im_start|>assistant" if family is DREAM else "<|start_header_id|>assistant"
    ids = model.encode("How many?")
    assert template in model.tokenizer.decode(ids)
    [answer] = model.generate(["How many?"], "original", canvas=8, block=4)
    assert len(answer.ids) == 8
    tuned = load(folder, random_adapter(folder, tmp_path / "adapter", seed=1))
    assert tuned.roles == model.roles
    assert [one.ids for one in tuned.generate(["How many?"], "void", canvas=8, block=4)] != [answer.ids]


@pytest.mark.slow
def test_table_4_from_random_weights(data_dir, all_layers, weights, capsys):
    """Adaptive lengths, adapters, Dream's own tokenizer, four benchmarks, graders and sandbox."""
    took = rehearse(["paper-table4"], data_dir, weights, "--limit", "2", "--device", "cpu")
    assert took.keys() == {"paper-table4"}
    said = capsys.readouterr().out
    assert re.search(r"(?m)^Decoding all items of these 12 cells on this device: about [\d.]+ hours\.$", said)
    rows = frame([weights / "paper-table4.sweep.json"])
    scores = [pair for pair in pairs(rows[rows["n"].notna()]) if pair.inside is not None]
    assert len(scores) >= 12
    # Of two answers none is right, so that published scores over 65.8 lie outside: GSM8K's.
    assert not all(pair.inside for pair in scores)
    report = (weights / "paper-table4-report" / "report.md").read_text()
    assert "have not finished" not in report
    assert "| dream-7b-instruct |" in report
