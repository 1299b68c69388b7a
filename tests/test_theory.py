"""The theorems and the oracle length model of studies/theory: the numbers of specification 8, and what always holds."""

import json
from fractions import Fraction

import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from studies.theory.__main__ import task_lengths, theory
from studies.theory.oracle import ROLES, WORD, LengthOracle
from studies.theory.theorems import Case, LengthModel, agree, predict, spread
from voidpad.builtin.tasks import CANVAS
from voidpad.errors import ConfigError
from voidpad.models import load
from voidpad.training.padding import POLICIES, pad
from voidpad.training.prepared import Example

LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=30)
SPEC = LengthModel.weighted({1: ".35", 2: ".25", 5: ".40"})  # 8.6


# 8.5: the theorems


def test_theorem_examples():
    first = predict(LengthModel.of([2, 3, 3, 5, 8]), 9, 9)
    assert (first.start, first.spread, first.fixpoint) == (4, (), 4)
    lengths = LengthModel.of([1, 2, 2, 2, 3, 3, 9, 9, 9, 9])
    assert [lengths.share(m) for m in (1, 2, 3)] == [Fraction(1, 10), Fraction(4, 10), Fraction(6, 10)]
    second = predict(lengths, 10, 10)
    assert (second.start, second.rounds, second.fixpoint) == (4, ((3,),), 3)
    assert spread(lengths, 3) == ()


def test_oracle_world():
    told = predict(SPEC, 6, 6)
    assert [SPEC.share(i - 1) for i in (2, 3, 4, 5, 6)] == [Fraction(n, 100) for n in (35, 60, 60, 60, 100)]
    assert (told.start, told.spread, list(told.opening)) == (3, (2,), [3, 4, 5, 6])


def test_theorems_need_a_canvas_that_holds_half_the_answers():
    with pytest.raises(ConfigError, match=r"canvas=5: only 20.0% .* use a canvas of at least 9"):
        predict(LengthModel.of([3, 8, 8, 8, 9]), 5, 5)
    assert predict(LengthModel.of([3, 8, 8, 8, 9]), 9, 4).opening == range(9, 5)  # r past the block: no claim
    with pytest.raises(ConfigError, match="not all 0"):
        LengthModel.weighted({3: "0"})


@given(LENGTHS, st.integers(1, 22), st.integers(1, 22))
def test_conditional_identity(lengths, i, r):
    """P(l <= i-1 | l <= r-1) = F(i-1) / F(r-1), exactly, wherever the condition has mass."""
    known = LengthModel.of(lengths)
    if i <= r and known.share(r - 1):
        assert known.given(i - 1, r - 1) == known.share(i - 1) / known.share(r - 1)


@given(LENGTHS)
def test_what_the_prediction_means(lengths):
    known = LengthModel.of(lengths)
    told = predict(known, 25, 25)
    half = Fraction(1, 2)
    assert all((known.share(i - 1) > half) == (i >= told.start) for i in range(1, 26))
    for start, reached in zip(
        [told.start, *(part[0] for part in told.rounds)], [*told.rounds, ()], strict=True
    ):
        assert reached == tuple(range(start - len(reached), start))  # no gap before the suffix
        chances = {i: known.given(i - 1, start - 1) for i in range(1, start)}
        assert set(reached) == {i for i, chance in chances.items() if chance > half}


@given(LENGTHS, st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_theorems_hold_for_the_oracle(lengths, symbols):
    """Both sides of both theorems on the perfect model: probabilities exactly, and every predicted slot."""
    known = LengthModel.of(lengths)
    oracle = LengthOracle(known, POLICIES["eos"], 22, symbols)
    told = predict(known, 22, 22)
    found = agree(oracle, ROLES, [Case([WORD], known)], canvas=22, block=22)
    assert found.opening.hits == found.opening.slots == 22 - told.start + 1
    assert found.spread.hits == found.spread.slots == len(told.spread)
    assert found.beyond.slots == told.start - 1 - len(told.spread)
    assert found.opening_gap < 1e-12
    assert not found.spread_gap or found.spread_gap < 1e-12
    if symbols == 1:  # one word only: whatever is not EOS is that word, so nothing beyond half is EOS
        halves = [2 * known.given(i - 1, told.start - 1) == 1 for i in range(1, told.start)]
        assert found.beyond.hits <= sum(halves)


def test_agreement_reads_each_row_with_its_own_lengths():
    """Two prompts with different answers, as one batch: a mix-up of rows would show."""
    short, long = LengthModel.of([1]), LengthModel.of([4])

    def denoise(canvas, where):
        oracles = [
            LengthOracle(short if n == 1 else long, POLICIES["eos"], 6) for n in canvas.prompt.tolist()
        ]
        rows = [canvas.select(torch.tensor([row])) for row in range(len(canvas))]
        return torch.cat([o(row, row.slots) for o, row in zip(oracles, rows, strict=True)])

    cases = [Case([WORD, WORD], long), Case([WORD], short)]
    found = agree(denoise, ROLES, cases, canvas=6, block=6)
    assert (found.opening.hits, found.opening.slots, found.opening_gap < 1e-12) == (7, 7, True)
    wrong = agree(denoise, ROLES, [Case([WORD, WORD], short)], canvas=6, block=6)
    assert wrong.opening.hits < wrong.opening.slots


# 8.6: the oracle length model


@given(LENGTHS, st.sampled_from(["eos", "void", "rainbow"]), st.data())
@settings(max_examples=40, deadline=None)
def test_oracle_is_a_posterior(lengths, padding, data):
    """Against counting: frequencies over all padded answers that agree with what is visible."""
    known = LengthModel.of(lengths)
    oracle = LengthOracle(known, POLICIES[padding], 12, symbols=1)
    padded = [Example([WORD], [WORD] * n) for n in lengths]
    rows = pad(padded, padding, ROLES, width=torch.full((len(lengths),), 13)).ids[:, 1:]
    one = rows[data.draw(st.integers(0, len(lengths) - 1))]
    seen = torch.where(
        torch.tensor(data.draw(st.lists(st.booleans(), min_size=12, max_size=12))), one, ROLES.mask
    )
    kept = rows[((rows == seen) | (seen == ROLES.mask)).all(1)]
    expected = torch.nn.functional.one_hot(kept, WORD + 1).double().mean(0)
    assert torch.allclose(oracle.posterior(seen), expected, atol=1e-12)


# The program.

app = typer.Typer()
app.command()(theory)


def told_by(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    if done.exception:
        raise done.exception
    return done.output


def test_the_program_without_a_model():
    found = json.loads(told_by("--json"))
    assert (found["r"], found["spread"], found["fixpoint"]) == (3, [2], 2)
    canvases = ["cEEEEE", "cccccE", "cEVVVV", "cE....", "cccccE"]
    assert [decode["canvas"] for decode in found["oracle"]] == canvases
    shown = told_by("--lengths", "1,2,2,2,3,3,9,9,9,9", "--canvas", 10, "--padding", "eos")
    assert "r = 4" in shown
    assert "so are slot 3" in shown
    assert "exact" in shown
    with pytest.raises(ConfigError, match="3:x"):
        told_by("--lengths", "3:x")


def test_theorems_hold_on_the_built_in_model():
    model = load("tiny-eos")
    drawn = [task_lengths("tiny_steps", index, 200) for index in range(4)]
    cases = [Case(model.encode(prompt), LengthModel.of(lengths)) for prompt, lengths in drawn]
    found = agree(model.denoiser(), model.roles, cases, canvas=CANVAS, block=CANVAS)
    assert found.opening.value > 0.95
    assert found.spread.value > 0.95
