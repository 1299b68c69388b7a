"""From answers to programs: our default, and what the published post-processors keep and lose."""

import ast

import pytest

from voidpad.evaluate.tasks import humaneval, mbpp
from voidpad.evaluate.tasks.code import fullest_span, longest_span, program, source_of, tidy

F = {
    "prompt": 'def f(x):\n    """One more than x."""\n',
    "entry_point": "f",
    "test": "def check(candidate):\n    assert candidate(1) == 2",
}
HUMANEVAL = [humaneval.voidpad_program, humaneval.authors_program]
M = {"test_list": ["assert g(2) == 4", "assert g(3) == 6", "assert g(0) == 0"], "test_setup_code": ""}
MBPP = [mbpp.voidpad_program, mbpp.authors_program]


def passes(source: str, checks: str) -> bool:
    """Only for the texts of this file: benchmarks go through the sandbox."""
    try:
        exec(source + "\n" + checks, {"__name__": "candidate", "input": None})
    except Exception:
        return False
    return True


@pytest.mark.parametrize("grade", HUMANEVAL)
def test_the_example_of_the_specification(grade):
    answer = "Here:\n```python\ndef f(x):\n    return x+1\n```\nDone"
    source = grade(answer, F)
    assert passes(source, humaneval.checks(F))
    if grade is humaneval.authors_program:  # the stub has no return, so only the second definition survives
        assert source == "def f(x):\n    return x + 1"


@pytest.mark.parametrize("grade", HUMANEVAL)
@pytest.mark.parametrize("answer", ["```\ndef f(x):\n    return x+1\n```\nDone with it", "    return x + 1"])
def test_any_fence_counts_and_a_body_continues_the_stub(grade, answer):
    assert passes(grade(answer, F), humaneval.checks(F))


LONG_STUB = 'def f(x):\n    """One more.\n' + "    And so on.\n" * 9 + '    """\n'
LOST = {
    "prose around a function, a long stub": (
        {"prompt": LONG_STUB},
        "Like this:\n\ndef f(x):\n    return x + 1\n\nThis works, doesn't it?",
    ),
    "no return": (
        {"test": "def check(candidate):\n    assert list(candidate(2)) == [0, 1]"},
        "```python\ndef f(x):\n    for n in range(x):\n        yield n\n```",
    ),
    "a helper behind a dot": (
        {"test": "def check(candidate):\n    assert candidate(7) == '7'"},
        "```python\ndef helper(x):\n    return f' {x} '\n\ndef f(x):\n    return helper(x).strip()\n```",
    ),
    "a helper that only the tests call": (
        {
            "test": "def check(candidate):\n    assert candidate(twice(1)) == 3",
            "prompt": "def twice(x):\n    return 2 * x\n\n" + F["prompt"],
        },
        "```python\ndef f(x):\n    return x + 1\n```",
    ),
}


@pytest.mark.parametrize(("changes", "answer"), LOST.values(), ids=LOST)
def test_what_the_published_cleaner_loses_our_default_keeps(changes, answer):
    doc = F | changes
    assert passes(humaneval.voidpad_program(answer, doc), humaneval.checks(doc))
    assert not passes(humaneval.authors_program(answer, doc), humaneval.checks(doc))


def test_a_repeated_name_keeps_its_first_place_and_its_last_meaning():
    text = "a = 1\nb = 2\na = 3\nimport os\n"
    source = humaneval.CLEANER.emit(ast.parse(text), None, text)
    assert source == "import os\na = 3\nb = 2"


def test_spans():
    text = "Sure, here you go:\ndef f():\n    return 1\n\nThat is it."
    assert fullest_span(text) == "def f():\n    return 1"
    assert fullest_span("x = 1\n(\ny = 2") == "x = 1"
    assert fullest_span("(\n(") == longest_span("(\n(") == ""
    assert longest_span("a b\nx = 1\n\n\n\n(\ny = 1\nz = 2") == "x = 1"  # five lines, four of them blank
    assert fullest_span("a b\nx = 1\n\n\n\n(\ny = 1\nz = 2") == "y = 1\nz = 2"
    assert longest_span("oops (\n    x = 1\n    y = 2") == "x = 1"  # trimmed: the first line loses its indent
    assert tidy("\tx\r\ny\rz ") == "x\ny\nz"


def test_nothing_that_parses_is_no_program():
    for grade in HUMANEVAL:
        assert not passes(grade("((((", {**F, "prompt": "((\n"}), humaneval.checks(F))
    assert mbpp.authors_program("((((", M) == ""


@pytest.mark.parametrize(
    "answer",
    [
        "def g(x):\n    return 2 * x",
        "```python\ndef g(x):\n    return 2 * x\n```",
        "```py\ndef g(x):\n    return 2 * x\n``` and so on",
        "```\ndef g(x):\n    return 2 * x\n```",
        "```python\ndef g(x):\n    return 2 * x",
        "[BEGIN]\ndef g(x):\n    return 2 * x\n[DONE]\nprint(g(",
        "[BEGIN] 'def g(x):\n    return 2 * x' [DONE]",
        "BEGIN\ndef g(x):\n    return 2 * x\nDONE",
        "Here is the code:\ndef g(x):\n    return 2 * x",
    ],
)
def test_mbpp_answers_in_every_wrapping(answer):
    for grade in MBPP:
        assert passes(grade(answer, M), mbpp.checks(M)), grade.__name__


def test_mbpp_cleaners_differ_where_the_specification_says():
    assert mbpp.unwrapped("return 'No'") == "return 'No'"
    assert mbpp.unwrapped("'x = 1' [DONE] more") == "x = 1"
    assert mbpp.unwrapped(r"my\_name = 1 DONE") == "my_name = 1"
    constant = "import os\nN = 2\ndef g(x):\n    return N * x"
    assert all(passes(grade(constant, M), mbpp.checks(M)) for grade in MBPP)
    first = "N: int = 2\ndef g(x):\n    return N * x"
    assert passes(mbpp.voidpad_program(first, M), mbpp.checks(M))
    assert not passes(mbpp.authors_program(first, M), mbpp.checks(M))  # starts at the first definition
    assert "def h" not in mbpp.authors_program("def h():\n    return 0\ndef g(x):\n    return 2 * x", M)


def test_mbpp_entry_point_and_checks():
    doc = {
        "test_setup_code": "import math",
        "test_list": ["assert (g(2)) == 4", "assert 2", "assert 3", "assert 0"],
    }
    assert (mbpp.authors_entry(M), mbpp.authors_entry(doc), mbpp.function_under_test(doc)) == ("g", None, "g")
    assert mbpp.checks(doc) == "import math\nassert (g(2)) == 4\nassert 2\nassert 3"


def test_our_program_puts_future_imports_first():
    source = program("import os\nfrom __future__ import annotations\ndef f(): ...", entry="f")
    assert source.startswith("from __future__ import annotations\n")
    compile(source, "program", "exec")


# Answers that a cleaner may spoil

TABLES = [
    "table = []\nfor n in range(9):\n    table.append(n + 1)",
    "table = [0]\ntable.extend(range(2, 10))\ntable[0] = 1",
    "def fill(t):\n    t.extend(range(1, 10))\ntable = []\nfill(table)",
    "table = []\ndef fill():\n    table.extend(range(1, 10))\nfill()",
    "table = None\ndef fill():\n    global table\n    table = list(range(1, 10))\nfill()",
    "table = {}\ntable.update({n: n + 1 for n in range(9)})",
    "import heapq\ntable = list(range(1, 10))\nheapq.heapify(table)",
]
PROGRAMS = [
    "n = int(input())\ndef f(n):\n    return n + 1\nprint(f(n))",
    "a, b = 1, 2\ndef f(x):\n    return x + a",
    "t = [0] * 3\nfor i in range(3):\n    t[i] = i\ndef f(x):\n    return t[2]",
    "x = 1\nx += 1\ndef f(y):\n    return x",
    "class A:\n    b = 1\ndef f(x):\n    return x + A.b",
    "def f(x):\n    return x + 1\ndef other(x: Missing):\n    return x\nassert f(1) == 3",
    "def f(x):\n    return x + 1\ndef main():\n    while True:\n        f(1)\nif __name__:\n    main()",
    "def g(x):\n    return x + 1\nf = g\nraise SystemExit",
    # Statements that fill a table.
    *(f"{table}\ndef f(x):\n    return table[x]\nprint(f(int(input())))\nmain()" for table in TABLES),
    # An entry point inside a block.
    "if True:\n    def f(x):\n        return x + 1",
    "import sys\nif sys.version_info > (3,):\n    def f(x):\n        return x + 1\nelse:\n    f = None",
    "try:\n    from nowhere import f\nexcept ImportError:\n    def f(x):\n        return x + 1",
    "try:\n    from nowhere import one\nexcept ImportError:\n    one = 1\ndef f(x):\n    return x + one",
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_our_program_runs_what_is_needed_and_survives_the_rest(text):
    for source in (program(text, entry="f"), humaneval.voidpad_program(f"```python\n{text}\n```", F)):
        assert passes(source, humaneval.checks(F)), source


@pytest.mark.parametrize(
    "answer",
    [
        "```python\nimport math\n```\nThen:\n```python\ndef g(x):\n    return math.floor(2.5) * x\n```",
        "```python\ndef twice(x):\n    return 2 * x\n```\n```python\ndef g(x):\n    return twice(x)\n```",
        "```\nthis is (not Python\n```\n```python\ndef g(x):\n    return 2 * x\n```",
    ],
)
def test_earlier_blocks_are_kept(answer):
    assert passes(mbpp.voidpad_program(answer, M), mbpp.checks(M))
    doc = {**F, "prompt": "def g(x):\n", "entry_point": "g", "test": "def check(g):\n    assert g(2) == 4"}
    assert passes(humaneval.voidpad_program(answer, doc), humaneval.checks(doc))


@pytest.mark.parametrize(
    "answer",
    [
        "DONE = 2\ndef g(x):\n    return DONE * x",
        "def g(x):\n    IS_DONE = 2\n    return IS_DONE * x\n[DONE]",
        "def g(x):\n    state = 'DONE'\n    return 2 * x if state == 'DONE' else 0",
        "BEGIN = 1\nDONE = 2\ndef g(x):\n    return DONE * x * BEGIN\n[DONE]\nNow the tests (",
        "[BEGIN]\nDONE = 2\ndef g(x):\n    return DONE * x\n[DONE]\nprint(g(",
        "def g(x):\n    # DONE: doubled\n    return 2 * x\nDONE\nIt's done.",
        "[BEGIN]\ndef g(x):\n    return 2 * x if x != 'a' else 'a'\n[DONE]\nIt's (done",
    ],
)
def test_the_letters_done_inside_a_program_do_not_end_it(answer):
    source = mbpp.voidpad_program(answer, M)
    assert passes(source, mbpp.checks(M)), source


UNPRINTABLE = {
    "no-break space in an f-string": "    y = f\"{chr(32).join(['a', '\u00a0b'])}\"\n    return x + 1",
    "line break in an f-string": "    y = f\"\"\"{str(x) + chr(10) + '''\n'''}\"\"\"\n    return x + 1",
    "integer of many digits": f"    y = 0x{'f' * 5000}\n    return x + 1",
}


@pytest.mark.parametrize("body", UNPRINTABLE.values(), ids=UNPRINTABLE)
@pytest.mark.parametrize("grade", HUMANEVAL)
def test_an_answer_that_python_parses_and_cannot_print_is_still_run(grade, body):
    source = grade(f"```python\ndef f(x):\n{body}\n```", F)
    assert passes(source, humaneval.checks(F)), source[:300]


def test_a_statement_is_copied_without_its_neighbours_on_the_line():
    text = "\u00e9 = 1; y = 0x" + "f" * 5000 + "; z = 3\n@a\n@b\ndef f():\n    return 0x" + "f" * 5000 + "; 1"
    _, y, _, f = ast.parse(text).body
    assert source_of([y], text) == "y = 0x" + "f" * 5000
    assert source_of([f], text) == text.partition("\n")[2]
