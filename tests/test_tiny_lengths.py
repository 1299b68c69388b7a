"""The data's lengths make a perfect model overflow under EOS padding, and not under VOID padding."""

from random import Random

import pytest
import torch

from studies.builtin.lengths import MIRRORED, TERSE_BELOW, measure, problem_with_steps
from studies.builtin.oracle import oracle
from voidpad.builtin.problems import last_number
from voidpad.builtin.tasks import CANVAS, TASKS
from voidpad.builtin.tokenizer import ROLES, tokenizer
from voidpad.decode.presets import plan
from voidpad.decode.rows import Rows
from voidpad.engine.batching import Engine


def answer(model, name, **fields):
    (outcome,) = Engine(model, ROLES).run([model.prompt], plan(name, canvas=CANVAS, stop="eos", **fields))
    return outcome


# One task of words and one of code in `make test`; every one of them in `make test-slow`.
EACH = [
    pytest.param(
        task, id=task.name, marks=[] if task.name in ("tiny_steps", "tiny_write") else pytest.mark.slow
    )
    for task in MIRRORED
]


@pytest.mark.parametrize("task", EACH)
def test_a_perfect_model_overflows_under_eos_padding_alone(task):
    problem = problem_with_steps(task, Random(2), split="test")
    eos = oracle(problem, "eos", draws=1200)
    assert len(answer(eos, "original", block=CANVAS).tokens) <= TERSE_BELOW
    assert len(answer(eos, "original", block=32).tokens) > TERSE_BELOW
    void = oracle(problem, "void", draws=1200)
    full = answer(void, "void", block=CANVAS)
    assert len(full.tokens) > TERSE_BELOW
    assert full.passes_decode < CANVAS
    assert len(answer(void, "void", block=CANVAS, ban="").tokens) <= TERSE_BELOW
    if not task.is_code:
        assert last_number(tokenizer().decode(full.tokens[:-1])) == problem.target


def test_the_oracle_gives_the_share_of_agreeing_answers():
    problem = TASKS["tiny_steps"].sample(Random(0))
    model = oracle(problem, "void", draws=500)
    canvas = Rows.blank([list(model.prompt)], CANVAS, ROLES)
    p = model(canvas, canvas.slots).exp()
    assert torch.allclose(p.sum(1), torch.ones(CANVAS), atol=1e-5)
    share = (model.rows[:, 0] == tokenizer().convert_tokens_to_ids("####")).float().mean()
    assert p[0, tokenizer().convert_tokens_to_ids("####")] == pytest.approx(float(share))


def test_the_suffix_beats_the_opening_and_terse_answers_are_rare():
    for task in MIRRORED:
        for one in measure(task, prompts=2, draws=400):
            assert one.creep > one.opening
            assert 0.02 < one.terse < 0.12
            assert one.over < 0.02
