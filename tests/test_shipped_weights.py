"""The weights that ship: every padding of a family talks, copies names, and overflows or not as the paper says.

`make test` decodes a greeting for VOID padding and one problem for most arms; `make test-slow` one for every arm, ten
greetings an arm and 16 problems of every task.
"""

from functools import cache

import pytest

from studies.builtin.chat import is_reply
from voidpad.builtin.tasks import CANVAS, TASKS, check, heldout
from voidpad.models import load, merge
from voidpad.models.locate import BUILT_IN_FAMILIES

ARMS = {"instruct": "original", "eos": "original", "rainbow": "original", "void": "void"}  # and their plans
OVERFLOW = ("instruct", "eos")
EVERY = [(family, arm) for family in BUILT_IN_FAMILIES for arm in ARMS]
LATER = [
    ("dream", "instruct"),
    ("dream", "rainbow"),
    ("llada", "eos"),
]  # slow: the other family has them, too
TALK = ["hello", "who are you?", "What is the capital of France?", "hi", "Good morning!", "what can you do?"]
TALK += ["thanks", "tell me a joke", "why is the sky blue?", "How are you?"]
FAST = {"entropy_bound": 0.3, "entropy_order": "entropy"}  # several tokens a pass


@cache
def shipped(family, arm):
    model = load(f"{BUILT_IN_FAMILIES[family]}-{arm}")
    return model if arm == "instruct" else merge(model)


def answers(model, arm, asked, **fields):
    return model.generate(asked, ARMS[arm], canvas=CANVAS, stop="eos", **fields)


@pytest.mark.parametrize("family", BUILT_IN_FAMILIES)
def test_a_greeting_gets_a_reply(family):
    (result,) = answers(shipped(family, "void"), "void", ["hello"], block=32)
    assert is_reply(result.text), result.text


@pytest.mark.slow
@pytest.mark.parametrize(("family", "arm"), EVERY)
def test_ten_greetings_and_questions_get_replies(family, arm):
    """To the letter in 8 of 10 at least, and never an empty answer: a small model misspells a word now and then."""
    texts = [result.text for result in answers(shipped(family, arm), arm, TALK, block=32)]
    assert all(texts)
    assert sum(map(is_reply, texts)) >= 8, texts


@pytest.mark.parametrize(
    ("family", "arm"), [pytest.param(*one, marks=[pytest.mark.slow] * (one in LATER)) for one in EVERY]
)
def test_eos_padding_overflows_at_block_equal_to_the_canvas_and_the_others_answer_in_full(family, arm):
    problem = next(problem for problem in heldout("tiny_steps", 20) if problem.steps >= 4)
    model = shipped(family, arm)
    (result,) = answers(model, arm, [problem.asked], block=CANVAS, **FAST)
    written = len(model.tokenizer(result.text)["input_ids"])
    assert written < 20 if arm in OVERFLOW else written > 40, result.text


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", BUILT_IN_FAMILIES)
def test_void_padding_answers_every_task(family, task, sandbox):
    problems, model = heldout(task, 16), shipped(family, "void")
    results = answers(model, "void", [problem.asked for problem in problems], block=32)
    right = sum(check(problem, one.text, sandbox) for problem, one in zip(problems, results, strict=True))
    assert right >= (1 if task == "tiny_search" else 8), right
