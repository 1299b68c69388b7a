"""The paper's mechanism on the weights that ship: the prior is learnt, EOS overflows, VOID does not, and why."""

import pytest

from voidpad.builtin.tasks import CANVAS
from voidpad.diagnose.attention import hidden_eos
from voidpad.diagnose.eos_prior import measure, same_canvas, void_tail
from voidpad.diagnose.overflow import USABLE, survey
from voidpad.diagnose.questions import has_builtin_vocab, of_tasks, task_pairs
from voidpad.models import load, random_model

TASKS = ["steps", "expr"]


@pytest.fixture(scope="module")
def models():
    return {name: load(name) for name in ("tiny-eos", "tiny-void")}


def test_who_speaks_the_built_in_words(models):
    assert all(has_builtin_vocab(model) for model in models.values())
    assert not has_builtin_vocab(random_model("llada"))


@pytest.mark.parametrize(("name", "taught"), [("tiny-eos", "eos"), ("tiny-void", "void")])
def test_curves_align(models, name, taught):
    """On equal canvases p_i is F; q_i follows it for the token that pads, and the other token stays rare."""
    model = models[name]
    found = measure(model.denoiser(), model.roles, same_canvas(task_pairs(TASKS, 24), CANVAS), tokens=16384)
    for one in found:
        mean, _ = one.gap("model", "target", least=1)
        assert mean < 0.06 if one.token == taught else mean > 0.3


def test_only_void_has_a_signal(models):
    prompts = {name: [model.encode(q.prompt) for q in of_tasks(TASKS, 4)] for name, model in models.items()}
    tails = {n: void_tail(m.denoiser(), m.roles, prompts[n], canvas=CANVAS) for n, m in models.items()}
    assert tails["tiny-eos"] < 0.05 < USABLE < tails["tiny-void"]


@pytest.mark.slow
def test_hiding_eos_recovers_answers():
    model, asked = load("tiny-dream-eos"), of_tasks(["steps"], 8)
    ids = [model.encode(q.prompt) for q in asked]
    whole = model.plan("original", canvas=CANVAS, block=CANVAS, stop="eos")
    right = []
    for forbid in (None, hidden_eos):
        answers = survey(model, ids, [whole], forbid=forbid)
        right.append(sum(q.right(a.text) for q, a in zip(asked, answers, strict=True)))
    assert right[1] > right[0]
