"""MBPP: three worked examples, then a sentence and three asserts; the answer is a whole program."""

import ast
import builtins
import re
from itertools import product
from pathlib import Path

from voidpad.evaluate.tasks import Doc, Splits, from_hub, read_lines, split_of
from voidpad.evaluate.tasks.code import (
    Cleaner,
    longest_span,
    names_outside_attributes,
    program,
    tidy,
    tree_of,
)
from voidpad.evaluate.tasks.graders import isolated, no_program

TESTS = 3
SHOT_IDS = (2, 3, 4)
TEST_IDS = range(11, 511)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
AUTHORS = Cleaner(FUNCTIONS, (ast.Assign, ast.AnnAssign), returning=False, uses=names_outside_attributes)
BLOCK = re.compile(r"```[^\n`]*+\n?+(.*?)\n?```", re.DOTALL)
ASSERTED = re.compile(r"assert\s+([A-Za-z_]\w*)\s*\(")
DEFINED = re.compile(r"^[^\S\n]*(?:async\s+)?def\s+([a-zA-Z_]\w*)", re.MULTILINE)
STARTS = ("def ", "async def ", "class ", "import ", "from ")
# The published patterns, in their order: text between the marks that is quoted, half quoted or bare, then the remains.
INSIDES, DONES, BEGINS = ("'(.*)'", "'(.*)", "(.*)"), (r"\[DONE\]", "DONE"), (r"\[BEGIN\]", "BEGIN")
WRAPPERS = [rf"{begin}\s*{inside}\s*{done}" for inside, done, begin in product(INSIDES, DONES, BEGINS)]
WRAPPERS += [r"\[BEGIN\]\s*'(.*)", r"\[BEGIN\](.*)", r"'(.*)'\s*\[DONE\]"]


def items(folder: Path | None = None) -> Splits:
    """One file of 974, or the hub's four parts of it; the test part is the 500 that its authors set aside."""
    needs = ("task_id", "text", "code", "test_list", "test_setup_code")
    if folder:
        found = read_lines(folder, "mbpp.jsonl")
    else:
        parts = from_hub("google-research-datasets/mbpp", "full").values()
        found = sorted((item for part in parts for item in part), key=lambda item: item["task_id"])
    found = [{key: item[key] for key in needs} | {"entry_point": function_under_test(item)} for item in found]
    return {
        "everything": split_of(found),
        "test": split_of(item for item in found if item["task_id"] in TEST_IDS),
        "shots": split_of(item for item in found if item["task_id"] in SHOT_IDS),
    }


def prompt(doc: Doc) -> str:
    tests = "\n".join(doc["test_list"][:TESTS])
    return (
        f"You are an expert Python programmer, and here is your task: {doc['text']} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )


def solution(doc: Doc) -> str:
    return f"{doc['code']}\n[DONE]"


def checks(doc: Doc) -> str:
    return "\n".join(part for part in [doc["test_setup_code"], *doc["test_list"][:TESTS]] if part)


def authors_entry(doc: Doc) -> str | None:
    found = ASSERTED.search("\n".join(doc["test_list"][:TESTS]))
    return found[1] if found else None


def function_under_test(doc: Doc) -> str | None:
    """The function under test: the first that the asserts call and Python does not have, else the first."""
    tree = tree_of("\n".join(doc["test_list"][:TESTS]))
    calls = [node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.Call)]
    called = [node.func.id for node in calls if isinstance(node.func, ast.Name)]
    return next((name for name in called if not hasattr(builtins, name)), next(iter(called), None))


def unwrapped(text: str) -> str:
    """The inside of the first wrapper that fits; quotes go only with a wrapper, `DONE` always ends it."""
    tried = (re.search(wrapper, text, re.DOTALL) for wrapper in WRAPPERS)
    inside = next((found[1] for found in tried if found), None)
    text = re.split(r"\s*\[?DONE\]?", text if inside is None else inside, maxsplit=1)[0]
    text = text.replace(r"\_", "_").strip()
    if inside is not None and len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1]
    return text.strip()


def unfenced(text: str) -> str:
    """Without a closed block: a leading fence line goes, and everything from a later fence."""
    text = text.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2]
    return text.split("```", 1)[0]


def voidpad_program(answer: str, doc: Doc) -> str:
    return program(answer, entry=function_under_test(doc) or "")


def authors_program(answer: str, doc: Doc) -> str:
    """As the paper's release: the first block, else what follows from the first definition or import on."""
    if blocks := BLOCK.findall(answer.strip()):
        code = unwrapped(blocks[0])
    else:
        lines = unwrapped(unfenced(answer)).splitlines()
        first = next((at for at, line in enumerate(lines) if line.lstrip().startswith(STARTS)), 0)
        code = "\n".join(lines[first:]).strip()
    defined = DEFINED.search(code)
    entry = authors_entry(doc) or (defined[1] if defined else None)
    text = tidy(code)
    whole = "\n".join(text.splitlines()[:100]).strip()
    source = whole if tree_of(whole) else longest_span(text)
    tree = tree_of(source)
    if tree is None:
        return ""
    return AUTHORS.emit(tree, entry if entry in AUTHORS.definitions(tree) else None, source)


voidpad_filter = isolated(voidpad_program, no_program)
authors_filter = isolated(authors_program, no_program)
