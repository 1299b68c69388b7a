"""What the names in the checks mean is decided by trusted code; no program has a say in it."""

import builtins
import sys

import pytest

from voidpad.evaluate.tasks import humaneval, mbpp
from voidpad.evaluate.tasks.task import program_test

if not sys.platform.startswith("linux"):
    pytest.skip("the sandbox is made of Linux namespaces", allow_module_level=True)

# Rewrites the program's side of the protocol: whatever it is asked for, it has its own object of the claimed name.
CLAIM = """
def claim(name):
    import sys
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if hasattr(value, "verbs"):
                own, honest = sys.modules["candidate"].__dict__, value.verbs["name"]
                claimed = name, "claimed"
                value.verbs["name"] = lambda asked: ("value", own[name]) if asked in claimed else honest(asked)
        frame = frame.f_back
"""


def test_the_claim_reaches_the_programs_side_of_the_protocol(sandbox):
    """Or the forgeries below would prove nothing."""
    program = f"{CLAIM}\nclaim('real')\ndef real(): return 7"
    assert sandbox.run(program, "assert claimed() == 7").passed


FORGED_BUILTINS = {
    "abs": ("assert abs(f(3) - 9) < 1e-6", "def abs(x): return 0"),
    "range": ("for n in range(5):\n    assert f(n) == n * n", "def range(*a): return []"),
    "tuple": ("assert tuple(f(3)) == tuple([9])", "def tuple(x): return ()"),
    "len": ("assert len(f(3)) == 9", "def len(x): return 9"),
    "str": ("assert str(f(3)) == '9'", "def str(x): return '9'"),
    "all": ("assert all([f(3) == 9])", "def all(x): return True"),
    "sorted": ("assert sorted(f(3)) == [9]", "def sorted(x): return [9]"),
    "isinstance": ("assert isinstance(f(3), str)", "def isinstance(*a): return True"),
    "set": ("assert set(f(3)) == {9}", "def set(x): return frozenset([9])"),
    "sum": ("assert sum(f(3)) == 9", "def sum(x): return 9"),
    "print": ("print(f(3))\nassert f(3) == 9", "def print(*a): return None"),
    "AssertionError": (
        "try:\n    assert f(3) == 9\nexcept AssertionError:\n    raise",
        "AssertionError = ValueError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED_BUILTINS)
@pytest.mark.parametrize("entry", ["f", None])
def test_a_builtin_in_the_checks_is_never_the_programs(name, entry, sandbox):
    checks, definition = FORGED_BUILTINS[name]
    program = f"{CLAIM}\n{definition}\ndef f(x): return [5, 5]\nclaim({name!r})"
    assert not sandbox.run(program, checks, entry=entry).passed


def test_only_the_entry_point_may_be_named_like_a_builtin(sandbox):
    program = "def sum(a, b): return a * b\ndef abs(x): return 0"
    checks = "assert sum(10, 15) == 150\nassert sum(1, 1) == 1"
    assert sandbox.run(program, checks, entry="sum").passed
    assert not sandbox.run(program, checks).passed
    assert not sandbox.run(program, "assert abs(sum(2, 2) - 9) == 0", entry="sum").passed


@pytest.mark.parametrize(
    "program",
    [
        "class sys:\n getsizeof = staticmethod(lambda x: 7)\ndef f(x): return 7",
        "import sys\nclass sys:\n getsizeof = staticmethod(lambda x: 7)\ndef f(x): return 7",
        "import sys\nsys.getsizeof = lambda x: 7\ndef f(x): return 7",
        "import operator as sys\nsys.getsizeof = lambda x: 7\ndef f(x): return 7",
        "import types\nsys = types.ModuleType('sys')\nsys.getsizeof = lambda x: 7\ndef f(x): return 7",
        "globals()['sys'] = type('M', (), {'getsizeof': staticmethod(lambda x: 7)})\ndef f(x): return 7",
    ],
)
def test_a_module_in_the_checks_is_never_the_programs(program, sandbox):
    assert not sandbox.run(program, "assert f((1, 2)) == sys.getsizeof((1, 2))", entry="f").passed


def test_modules_and_functions_that_the_text_imports_are_the_checks_own(sandbox):
    right = "def f(x): return sys.getsizeof(x)"
    checks = "assert f((1, 2)) == sys.getsizeof((1, 2))"
    assert sandbox.run(f"import sys\n{right}", checks, entry="f").passed
    assert sandbox.run(f"try:\n    import os, sys\nexcept ImportError:\n    pass\n{right}", checks).passed
    near = "assert isclose(f(3), 9)"
    assert sandbox.run("from math import isclose\ndef f(x): return x * x", near).passed
    lie = "from math import isclose\ndef isclose(a, b): return True\ndef f(x): return 5"
    assert not sandbox.run(lie, near).passed
    opaque = sandbox.run("import subprocess", "subprocess.run([])")
    assert opaque.reason == "opaque"
    day = "from datetime import datetime\ndef f(): return datetime(2024, 1, 2)"
    assert sandbox.run(day, "assert f() == datetime(2024, 1, 2)").passed
    missing = sandbox.run("def f(x): return 56", checks, entry="f")
    assert missing.reason == "failed"
    assert "'sys' is not defined" in missing.detail


def test_helpers_belong_to_the_checks_but_the_program_must_define_them_too(sandbox):
    helpers = "import math\ndef encode(s): return s[::-1] * math.floor(1.5)"
    checks = "def check(f):\n    assert f(encode('ab')) == 'ab'\ncheck(decode)"
    honest = "def encode(s): return s[::-1]\ndef decode(s): return s[::-1]"
    forged = "def encode(s): return s\ndef decode(s): return s"
    assert sandbox.run(honest, checks, entry="decode", helpers=helpers).passed
    assert not sandbox.run(forged, checks, entry="decode", helpers=helpers).passed
    # The published harnesses run program and tests in one namespace, where a lost helper is a NameError.
    lost = sandbox.run("def decode(s): return s[::-1]", checks, entry="decode", helpers=helpers)
    assert "'encode' is not defined" in lost.detail


# The benchmark's own tasks, through the default filter

WRONG = {
    4: ("abs", "def abs(x): return 0", "0.0"),
    33: ("tuple", "def tuple(x): return 0", "[]"),
    37: ("tuple", "def tuple(x): return 0", "[]"),
    32: ("poly", "def poly(xs, x): return 0.0", "0.0"),
    38: ("encode_cyclic", "def encode_cyclic(s): return s", "args[0]"),
    50: ("encode_shift", "def encode_shift(s): return s", "args[0]"),
}


@pytest.mark.parametrize("number", WRONG)
def test_humaneval_tasks_are_not_passed_by_a_forger(number, sandbox, data_dir):
    doc = humaneval.items(data_dir / "benchmarks")["test"][number]
    name, definition, value = WRONG[number]
    answer = (
        f"```python\n{CLAIM}\n{definition}\ndef {doc['entry_point']}(*args, _={name} and claim({name!r})):"
    )
    answer += f"\n    return {value}\n```"
    program = humaneval.voidpad_program(answer, doc)
    assert definition.split("(")[0] in program
    assert "claim" in program
    assert not sandbox.run(*program_test(program, humaneval.checks(doc), doc)).passed
    right = humaneval.voidpad_program(doc["canonical_solution"], doc)
    assert sandbox.run(*program_test(right, humaneval.checks(doc), doc)).passed


def test_every_mbpp_task_has_its_function(data_dir):
    docs = mbpp.items(data_dir / "benchmarks")["everything"]
    builtin = [doc["task_id"] for doc in docs if hasattr(builtins, doc["entry_point"])]
    assert builtin == [126]
    assert all(f"def {doc['entry_point']}" in doc["code"] for doc in docs)


def test_a_forged_expected_value_of_mbpp_596_fails(sandbox, data_dir):
    doc = next(d for d in mbpp.items(data_dir / "benchmarks")["everything"] if d["task_id"] == 596)
    forged = "class sys:\n    getsizeof = staticmethod(lambda x: 7)\ndef tuple_size(x):\n    return 7"
    program = mbpp.voidpad_program(forged, doc)
    assert "class sys" in program
    assert not sandbox.run(*program_test(program, mbpp.checks(doc), doc)).passed
