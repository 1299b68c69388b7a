"""Graders: no answer raises, hangs or takes quadratic time, and the fast searches give what the slow ones gave."""

import ast
import itertools
import re
import subprocess
import sys
import time
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from faulty_grader import spell
from test_tasks_code import HUMANEVAL, MBPP, F, M, passes
from voidpad.builtin.tasks import heldout
from voidpad.evaluate.tasks import builtin_tasks, graders, gsm8k, humaneval, math500, mbpp
from voidpad.evaluate.tasks.code import SEARCH_LINES, fullest_span, longest_span, source_of
from voidpad.evaluate.tasks.graders import each, isolated, no_program

CODE = [*((grade, F) for grade in HUMANEVAL), *((grade, M) for grade in MBPP)]
CODE_IDS = [f"{grade.__module__.split('.')[-1]}.{grade.__name__}" for grade, _ in CODE]


# Answers that Python parses and cannot print

UNPRINTABLE = {
    "no-break space in an f-string": "    y = f\"{chr(32).join(['a', '\u00a0b'])}\"\n    return x + 1",
    "line break in an f-string": "    y = f\"\"\"{str(x) + chr(10) + '''\n'''}\"\"\"\n    return x + 1",
    "integer of many digits": f"    y = 0x{'f' * 5000}\n    return x + 1",
    "negative exponent of a huge number": f"    return x + 1 + 0 * 0x{'1' * 9000}",
}


@pytest.mark.parametrize("body", UNPRINTABLE.values(), ids=UNPRINTABLE)
@pytest.mark.parametrize("grade", HUMANEVAL)
def test_an_answer_that_python_cannot_print_is_still_run(grade, body):
    source = grade(f"```python\ndef f(x):\n{body}\n```", F)
    assert passes(source, humaneval.checks(F)), source[:300]


@pytest.mark.parametrize("grade", MBPP)
def test_mbpp_answers_that_python_cannot_print_are_still_run(grade):
    answer = "import math; N = 0x" + "f" * 5000 + "\n@(lambda g: g)\ndef g(x):\n    " + "n = '\u00a0'\n    "
    assert passes(grade(answer + "return 2 * x + 0 * math.floor(float(N > 0) - 1)", M), mbpp.checks(M))


def test_a_statement_is_copied_without_its_neighbours_on_the_line():
    text = "\u00e9 = 1; y = 0x" + "f" * 5000 + "; z = 3\n@a\n@b\ndef f():\n    return 0x" + "f" * 5000 + "; 1"
    _, y, _, f = ast.parse(text).body
    assert source_of([y], text) == "y = 0x" + "f" * 5000
    assert source_of([f], text) == text.partition("\n")[2]


# No exception leaves a filter

FRAGMENTS = (
    "def f(x):", "def g(x):\n", "    return x + 1\n", "return 2 * x\n", "```", "```python\n", "[BEGIN]",
    "[DONE]", "DONE",
    "BEGIN", "'", '"', '"""', "\n", "\n    ",
    " ", "\t", "\r", "\r\n", "\f", "\0", "(", ")", "[", "]", "{", "}", "\\", "#",
    "# ", "#### ", "$", "1", "-5", "1,000.", ".", ",", "\\boxed{", "\\frac{1}{2}", "\\text{", "!", "^",
    "_", "\\_",
    "x", "=", ":", ";", "@", "lambda", "else:", "try:", "except:", "if x:", "class A:", "import os",
    "from a import b",
    "async ", "await ", "f'{", "}'", "f\"{'\u00a0'}\"", "0x" + "f" * 4000, "9" * 5000, "\u00a0", "\u2028",
    "\ud800", "\u202e",
    "\U0001f600", "\ufeff", "e\u0301", "(" * 150, "-" * 500, "a." * 300, "[" * 80 + "]" * 80, "*", "**",
    "...", "nonlocal x",
)  # fmt: skip
near_code = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join)
any_text = st.text(max_size=60) | st.text(st.characters(), max_size=30) | near_code
ITEMS = {name: dict(zip(("task", "prompt", "steps", "target", "stub"),
                        (p.task, p.prompt, p.steps, p.target, p.stub), strict=True))
         for name in ("tiny_steps", "tiny_complete") for p in heldout(name, 1)}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(any_text)
def test_no_text_makes_a_code_grader_raise(text):
    for grade, doc in CODE:
        assert isinstance(grade(text, doc), str)


@settings(max_examples=150, deadline=None)
@given(any_text)
def test_no_text_makes_another_filter_raise(text):
    for found in (gsm8k.strict_filter, gsm8k.flexible_filter):
        (value,) = found([[text]], [{}])
        assert gsm8k.score({"answer": "#### 5"}, [value])["exact_match"] in (0.0, 1.0)
    for found in (builtin_tasks.last_answer_filter, builtin_tasks.first_answer_filter):
        assert isinstance(found([[text]], [ITEMS["tiny_steps"]])[0], str)
    for found in (builtin_tasks.last_program_filter, builtin_tasks.first_program_filter):
        assert isinstance(found([[text]], [ITEMS["tiny_complete"]])[0], str)
    assert isinstance(math500.plain(text), str)


@settings(max_examples=40, deadline=None)
@given(near_code)
def test_no_text_makes_math500_raise(text):
    for grade in (math500.voidpad_judgement, math500.authors_judgement):
        assert grade(f"\\boxed{{{text}}}", {"gold": "2"}).correct in (True, False)


# Children with hard limits


def test_children_grade_in_order_and_faults_cost_one_answer_each():
    texts = ["a", "hang", "b", "raise", "grow", "die", "\ud800\0", "c"]
    grade = isolated(spell, lambda reason: f"wrong: {reason}", seconds=5)
    start = time.monotonic()
    results = grade([[text] for text in texts], [{"n": n} for n in range(len(texts))])
    assert time.monotonic() - start < 120
    assert [results[n] for n in (0, 2, 6, 7)] == ["a/0", "b/2", "\ud800\0/6", "c/7"]
    assert "over 5 seconds" in results[1]
    assert "KeyError" in results[3]
    assert results[3].isprintable()
    assert "MemoryError" in results[4]
    assert results[5].startswith("wrong: grading was stopped")
    assert grade([], []) == []


def test_a_formula_that_no_alarm_stops_is_wrong():
    grade = isolated(math500.voidpad_judgement, math500.wrong, seconds=10.0)
    docs = [{"gold": "5"}] * 2
    start = time.monotonic()
    hostile, right = grade([[r"\boxed{((9!)!)!}"], [r"\boxed{5}"]], docs)
    assert not hostile.correct
    assert right == math500.Judgement(True, "math-verify", True)
    assert time.monotonic() - start < 120


def test_the_filters_of_parsers_run_in_children():
    for module in (humaneval, mbpp, math500):
        filters = [value for name, value in vars(module).items() if name.endswith("_filter")]
        assert len(filters) == 2
        assert {value.__qualname__ for value in filters} == {isolated(spell, str).__qualname__}


def test_a_child_that_grades_does_not_load_the_package():
    """Importing torch takes longer than grading all of HumanEval."""
    code = """
import sys
from voidpad.evaluate.tasks import graders, gsm8k, humaneval, math500, mbpp
print([name for name in ("torch", "transformers", "lm_eval", "datasets", "voidpad.decode") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_child_runs_nothing_of_the_current_folder(tmp_path, monkeypatch):
    for name in ("queue", "importlib", "socket", "json", "faulty_helper"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    for path in ([], [""], [str(tmp_path)]):
        monkeypatch.setattr(sys, "path", [*path, *filter(None, sys.path)])
        assert isolated(spell, str)([["a"]], [{"n": 1}]) == ["a/1"]
    assert not (tmp_path / "ran").exists()


def test_a_program_that_cannot_be_made_says_why():
    grade = each(lambda text, doc: 1 / 0, no_program)
    (source,) = grade([["x"]], [{}])
    with pytest.raises(ValueError, match="the answer is not a program: ZeroDivisionError"):
        exec(source)
    assert graders.reason_of(ValueError("\x1b[0m\n\u202e")).isprintable()


# Linear time

SIZE = 40_000
LONG = {
    "letters": "a" * SIZE,
    "letters in a fence": "```" + "a" * SIZE,
    "letters in a python fence": "```python\n" + "a" * SIZE,
    "spaces": "x" + " " * SIZE + "x",
    "newlines": "x" + "\n" * SIZE + "x",
    "quotes": "'" * SIZE,
    "begins": "[BEGIN]" * (SIZE // 7),
    "begins and quotes": "[BEGIN] '" * (SIZE // 9),
    "dones": " DONE" * (SIZE // 5),
    "quoted dones": "' [DONE" * (SIZE // 7),
    "backticks": "`" * SIZE,
    "brackets": "(\n" * (SIZE // 2),
    "defs": "def " * (SIZE // 4),
    "def lines": "def\n" * (SIZE // 4),
    "broken lines": "x = 1 +\n" * (SIZE // 8),
    "long broken lines": "\n".join(["a b " * (SIZE // 400)] * 100),
    "long open lines": "\n".join(["(" + "1, " * (SIZE // 300)] * 100),
    "long lines, some broken": "\n".join((["x = [" + "1, " * (SIZE // 300) + "]"] * 33 + ["a b"]) * 3),
    "names": "a, " * (SIZE // 3) + "= 1",
    "targets": "(" + ",".join(f"a{n}" for n in range(SIZE // 6)) + ") = f",
    "many statements": "\n".join(f"a{n} = f" for n in range(SIZE // 8)),
    "hashes": "#### " * (SIZE // 5),
    "digits": "1" * SIZE,
    "commas": "1," * (SIZE // 2),
    "boxes": "\\boxed{" * (SIZE // 7),
    "texts": "\\text{" * (SIZE // 6),
}


SLOW = {"long open lines": pytest.mark.slow}  # stopped after a number of characters, in some seconds


@pytest.mark.parametrize("text", [pytest.param(LONG[k], id=k, marks=SLOW.get(k, ())) for k in LONG])
def test_a_long_answer_takes_little_time(text):
    for grade, doc in CODE:
        start = time.process_time()
        grade(text, doc)
        assert time.process_time() - start < 10  # at most two searches; over 25 seconds before
    start = time.process_time()
    math500.plain(text)
    gsm8k.bare(gsm8k.flexible_extract(text))
    gsm8k.bare(gsm8k.strict_match(text))
    gsm8k.bare(text)
    assert time.process_time() - start < 2


# The fast searches are the slow ones


def all_runs_fullest(text):
    lines = text.splitlines()[:SEARCH_LINES]
    full = [bool(line.strip()) for line in lines]
    spans = [(start, end) for start in range(len(lines)) for end in range(start + 1, len(lines) + 1)]
    spans.sort(key=lambda span: (-sum(full[span[0] : span[1]]), span))
    return first_parsing("\n".join(lines[start:end]) for start, end in spans if any(full[start:end]))


def all_runs_longest(text):
    lines = text.splitlines()[:SEARCH_LINES]
    spans = (
        lines[at : at + size] for size in range(len(lines), 0, -1) for at in range(len(lines) - size + 1)
    )
    return first_parsing(source for source in ("\n".join(span).strip() for span in spans) if source)


def first_parsing(sources):
    for source in sources:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ast.parse(source)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
        return source
    return ""


LINES = (
    "x = 1", "def f(x):", "    return x", "    y = 2", "        z = 3", "", "  ", "# a", "    # b",
    "if x:", "else:",
    "elif y:", "try:", "except E:", "finally:", "with a as b:", "@d", "(", ")", "[1,", "2]", "'''",
    '"""', "a b", "it's",
    "f(a b", "x = \\", "1 \\", "class A: pass", "if x: y", "x = 1;", "'abc\\", "def'", "x = '''a",
    "a''' + b", "  x = 1",
    "\u00a0x", "x = 1\u00a0", "x = 1 # \u00a0", "\u3000", "for a in b:", "match x:", "    case 1:",
    "print 5", "x y z",
    "f(x=1, 2)", "a = b = (", "]", "lambda: (yield)", "return 5", "'a' 'b'", "\"a' b", "{'a':", "1}",
    "x +=", "del", "0x",
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=9).map("\n".join))
@example("def f(x):\n@d\nclass A: pass")
@example("(\n a b\n $\n)\nx = 1")
def test_runs_of_lines_are_found_as_by_trying_all(text):
    assert fullest_span(text) == all_runs_fullest(text)
    assert longest_span(text) == all_runs_longest(text)


BEGINS, DONES = (r"\[BEGIN\]", "BEGIN"), (r"\[DONE\]", "DONE")
INSIDES = (r"\s*'(.*)'\s*", r"\s*'(.*)\s*", r"\s*(.*)\s*")  # quoted, half quoted, bare
WRAPPERS = [
    re.compile(pattern, re.DOTALL)
    for pattern in [
        *(begin + inside + done for inside, done, begin in itertools.product(INSIDES, DONES, BEGINS)),
        r"\[BEGIN\]\s*'(.*)",
        r"\[BEGIN\](.*)",
        r"'(.*)'\s*\[DONE\]",
    ]
]


def unwrapped_by_patterns(text):
    """The published patterns."""
    inside = next((found[1] for found in (wrapper.search(text) for wrapper in WRAPPERS) if found), None)
    text = re.split(r"\s*\[?DONE\]?", text if inside is None else inside, maxsplit=1)[0]
    text = text.replace(r"\_", "_").strip()
    if inside is not None and len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1]
    return text.strip()


WRAPPED = st.lists(
    st.sampled_from(
        ["[BEGIN]", "BEGIN", "[DONE]", "DONE", "'", " ", "\n", "x", "[", "]", "\\_", "\u00a0", "''"]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=250, deadline=None)
@given(WRAPPED)
def test_wrappers_come_off_as_by_the_published_patterns(text):
    assert mbpp.unwrapped(text) == unwrapped_by_patterns(text)


FENCED = st.lists(st.sampled_from(["```", "`", "\n", "python", "PY", "a", " ", "\r"]), max_size=12).map(
    "".join
)


@settings(max_examples=250, deadline=None)
@given(FENCED)
def test_fences_open_and_close_as_by_the_published_patterns(text):
    pattern = r"```(?:python|py)?[^\n`]*\n?(.*?)\n?```"
    assert mbpp.BLOCK.findall(text) == re.findall(pattern, text, re.DOTALL | re.IGNORECASE)
    assert mbpp.BLOCK.findall(text) == re.findall(r"```[^\n`]*\n?(.*?)\n?```", text, re.DOTALL)
    assert humaneval.BLOCK.findall(text) == re.findall(r"```[^\n`]*\n(.*?)(?:```|\Z)", text, re.DOTALL)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["def", " ", "\n", "f", "g", "(", "async", "\u2028", "x"]), max_size=10).map(
        "".join
    )
)
def test_definitions_are_found_as_by_the_published_patterns(text):
    slow = re.search(r"^\s*(?:async\s+)?def\s+([a-zA-Z_]\w*)", text, re.MULTILINE)
    fast = mbpp.DEFINED.search(text)
    assert (fast and fast[1]) == (slow and slow[1])
    assert humaneval.defines(text, "f") == bool(re.search(r"(?m)^\s*def\s+f\s*\(", text))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["#### ", "####", "5", ".", "\n", "$", ","]), max_size=8).map("".join))
def test_numbers_are_bared_as_by_the_published_patterns(text):
    bare = re.sub(r"(?s).*#### ", "", text.replace(",", "").replace("$", ""))
    assert gsm8k.bare(text) == re.sub(r"\.$", "", bare).lower()
