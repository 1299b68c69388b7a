"""HumanEval: the stub is the prompt, the answer a body or a whole function; tests call the entry point."""

import ast
from pathlib import Path

from voidpad.evaluate.tasks import Doc, Splits, from_hub, read_lines, split_of
from voidpad.evaluate.tasks.code import (
    Cleaner,
    defines,
    fullest_span,
    names,
    names_and_last_attributes,
    program,
    reachable,
    source_of,
    tidy,
    tree_of,
)
from voidpad.evaluate.tasks.graders import isolated, no_program

PYTHON_FENCE = "```python\n"
FENCE = "```"
CLEANER = Cleaner((ast.FunctionDef,), (ast.Assign,), returning=True, uses=names_and_last_attributes)


def items(folder: Path | None = None) -> Splits:
    found = read_lines(folder, "HumanEval.jsonl") if folder else from_hub("openai/openai_humaneval")["test"]
    return {"test": split_of({**item, "helpers": helpers(item)} for item in found)}


def checks(doc: Doc) -> str:
    return f"{doc['test']}\ncheck({doc['entry_point']})"


def helpers(doc: Doc) -> str:
    """The functions of the prompt that the tests call, and what these need: the tests' own copy of them."""
    tree, tests = tree_of(doc["prompt"]), tree_of(doc["test"])
    if tree is None or tests is None:
        return ""
    entry = doc["entry_point"]
    functions = {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != entry
    }
    called = reachable(names(tests) & set(functions), {name: names(node) for name, node in functions.items()})
    kept = [node for name, node in functions.items() if name in called]
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return source_of([*imports, *kept], doc["prompt"]) if kept else ""


def voidpad_program(answer: str, doc: Doc) -> str:
    return program(answer, entry=doc["entry_point"], stub=doc["prompt"])


def authors_program(answer: str, doc: Doc) -> str:
    """As the paper's release: any fence counts; names are filtered if the answer defines the entry point."""
    fence = PYTHON_FENCE if PYTHON_FENCE in answer else FENCE
    completion = answer.split(fence, 1)[-1].split(FENCE)[0]
    entry = doc["entry_point"] if defines(completion, doc["entry_point"]) else None
    span = fullest_span(tidy(f"{doc['prompt']}\n{completion}"))
    tree = tree_of(span)
    return CLEANER.emit(tree, entry, span) if tree else ""


voidpad_filter = isolated(voidpad_program, no_program)
authors_filter = isolated(authors_program, no_program)
