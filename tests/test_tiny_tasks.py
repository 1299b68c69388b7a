"""Laws of the generated tasks: answers are right, splits are disjoint, text survives the tokenizer."""

import re
import subprocess
import sys
from random import Random

import pytest
import torch

from studies.builtin.prepare import chunk, examples, main, prepare
from studies.builtin.vocabulary import build
from voidpad.builtin.problems import first_number, last_number, split_of
from voidpad.builtin.tasks import CANVAS, TASKS, check, heldout, program
from voidpad.builtin.tokenizer import RAINBOW, ROLES, SPECIAL, tokenizer, wrap
from voidpad.training import prepared as data

every_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def answers(task, count, seed=3):
    rng = Random(seed)
    for _ in range(count):
        problem = task.sample(rng)
        yield problem, task.answer(problem, rng)


@every_task
def test_every_number_answer_is_right_and_every_program_parses(task):
    for problem, text in answers(task, 500):
        if task.is_code:
            assert program(problem, text) is not None
            assert program(problem, text, first=True) == program(problem, text)
        else:
            assert last_number(text) == first_number(text) == problem.target


def test_generated_programs_pass_their_asserts():
    # Our own generator's code, so it may run unsandboxed; one process for all of it.
    parts = []
    for name in ("tiny_complete", "tiny_write"):
        for problem, text in answers(TASKS[name], 300):
            parts.append(f"{program(problem, text)}\n{problem.target}")
    source = "\n".join(parts) + "\nprint(len('done'))"
    done = subprocess.run(
        [sys.executable, "-I", "-"], input=source, capture_output=True, text=True, timeout=600
    )
    assert done.stdout == "4\n", done.stderr[-500:]


def test_asserts_notice_a_wrong_step():
    rng, caught, total = Random(5), 0, 0
    for name in ("tiny_complete", "tiny_write"):
        for _ in range(40):
            problem = TASKS[name].sample(rng)
            text = TASKS[name].answer(problem, rng)
            broken = text.replace(" * 2", " * 7").replace(" * 3", " * 8")
            if broken == text:
                continue
            space: dict = {}
            exec(program(problem, broken), space)
            total += 1
            try:
                exec(problem.target, space)
            except AssertionError:
                caught += 1
    assert total > 30
    assert caught == total


def test_a_terse_answer_has_no_steps_and_is_rare():
    for task in TASKS.values():
        short = [text for _, text in answers(task, 1500) if len(tokenizer()(text).input_ids) < 30]
        assert 0.04 < len(short) / 1500 < 0.10


@every_task
def test_no_test_prompt_is_in_the_training_data(task):
    rng = Random(1)
    train = {task.sample(rng).prompt for _ in range(8000)}
    test = {problem.prompt for problem in heldout(task.name, 200)}
    assert len(test) == 200
    assert not train & test
    assert {split_of(prompt) for prompt in train} == {"train"}
    assert {split_of(prompt) for prompt in test} == {"test"}


def test_prepared_examples_are_training_examples():
    prompts = [prompt for prompt, _ in examples(4000, Random("tiny train 0 0"))]
    bare = [prompt.removeprefix("<|user|>").removesuffix("<|assistant|>") for prompt in prompts]
    assert all(split_of(prompt) == "train" for prompt in bare)
    assert [wrap(prompt) for prompt in bare] == prompts


def test_test_sets_are_stable_and_grow_at_the_end():
    assert heldout("tiny_steps", 20) == heldout("tiny_steps", 30)[:20]
    assert heldout("tiny_steps", 20) != heldout("tiny_steps", 20, seed=1)


@every_task
def test_text_survives_the_tokenizer(task):
    words = tokenizer()
    for problem, text in answers(task, 500, seed=8):
        for part in (problem.prompt, text):
            ids = words(part).input_ids
            assert words.unk_token_id not in ids
            assert words.decode(ids) == part


def test_the_shipped_vocabulary_is_the_one_the_tasks_give():
    assert build(4000, seed=2).get_vocab() == tokenizer().get_vocab()


def test_roles_and_special_names():
    words = tokenizer()
    assert (words.mask_token_id, words.eos_token_id) == (ROLES.mask, ROLES.eos)
    assert words.convert_tokens_to_ids(list(RAINBOW)) == list(ROLES.rainbow)
    assert ROLES.rainbow[0] == ROLES.void
    assert words.decode(list(range(len(SPECIAL))), skip_special_tokens=True) == ""


def test_wrap_is_the_chat_template():
    prompt = heldout("tiny_complete", 1)[0].prompt
    messages = [{"role": "user", "content": prompt}]
    templated = tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert templated == wrap(prompt)


def test_wrong_answers_are_wrong():
    problem = heldout("tiny_steps", 1)[0]
    other = str(10 + (int(problem.target) + 1) % 90)
    assert last_number(f"#### {other}") != problem.target
    assert last_number(problem.target) is None
    assert last_number(f"#### {problem.target}\n#### {other}") == other
    assert first_number(f"#### {problem.target}\n#### {other}") == problem.target
    assert check(problem, f"#### {problem.target}")
    assert not check(problem, f"#### {other}")
    code = heldout("tiny_write", 1)[0]
    assert program(code, "def calc(x:\n    return x") is None
    assert not check(code, "def calc(x:\n    return x")
    with pytest.raises(ValueError, match="pass a sandbox"):
        check(code, "def calc(x):\n    return x")


def test_prepared_file_holds_the_examples(tmp_path, capsys):
    main(["--out", str(tmp_path / "a.safetensors"), "--examples", "4100", "--seed", "7"])
    assert "examples" in capsys.readouterr().out
    stored = data.read(tmp_path / "a.safetensors")
    assert stored.roles == ROLES
    assert int(stored.pairs.response.max()) < CANVAS
    tokens, prompt, response = chunk((7, 0, 4000, False))
    assert torch.equal(stored.pairs.tokens[: len(tokens)].long(), torch.from_numpy(tokens).long())
    assert stored.pairs.prompt[: len(prompt)].tolist() == prompt.tolist()
    first = stored.pairs.tokens[: prompt[0] + response[0]].tolist()
    text, answer = next(examples(1, Random("tiny train 7 0")))
    assert tokenizer().decode(first) == text + answer


@pytest.mark.slow
def test_the_number_of_workers_does_not_change_the_data(tmp_path):
    prepare(tmp_path / "one", 9000, workers=1)
    prepare(tmp_path / "two", 9000, workers=2)
    one, two = data.read(tmp_path / "one").pairs, data.read(tmp_path / "two").pairs
    assert torch.equal(one.tokens, two.tokens)
    assert torch.equal(one.response, two.response)


def test_the_drill_copies_the_name_of_the_function(tmp_path):
    main(["--out", str(tmp_path / "names.safetensors"), "--examples", "50", "--names"])
    pairs = data.read(tmp_path / "names.safetensors").pairs
    assert len(pairs) == 50
    names = set()
    for start, prompt, response in zip(pairs.start, pairs.prompt, pairs.response, strict=True):
        middle = int(start + prompt)
        asked, answer = (
            tokenizer().decode(pairs.tokens[a:b].tolist())
            for a, b in ((int(start), middle), (middle, middle + int(response)))
        )
        head = re.fullmatch(r"def (\w+)\(x\):", answer)
        assert head is not None
        assert f"Write a function {head[1]}(x) for a list x." in asked
        names.add(head[1])
    assert len(names) > 4
