"""From a model's answer to a program, for HumanEval and MBPP.

First the search for the lines that parse, then `Cleaner`, which describes what the published post-processors keep,
then `program`, our default, which loses less. All are pure functions on text and syntax trees.
"""

import ast
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

SEARCH_LINES = 100  # the published post-processors look at no more
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def tidy(text: str) -> str:
    return text.replace("\t", "    ").replace("\r\n", "\n").replace("\r", "\n").strip()


def tree_of(source: str) -> ast.Module | None:
    """The syntax tree, or None for what Python cannot parse, whatever the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes such as "\d" in the model's code
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def fullest_span(text: str) -> str:
    """The run of lines that parses and has most non-blank lines; earliest start, then earliest end, wins."""
    lines = text.splitlines()[:SEARCH_LINES]
    filled = [0, *itertools.accumulate(bool(line.strip()) for line in lines)]
    spans = itertools.combinations(range(len(lines) + 1), 2)
    ordered = sorted(spans, key=lambda span: (filled[span[0]] - filled[span[1]], span))
    return _first_that_parses("\n".join(lines[start:end]) for start, end in ordered)


def longest_span(text: str) -> str:
    """The longest run of lines that parses once its ends are trimmed; the earliest of that length."""
    lines = text.splitlines()[:SEARCH_LINES]
    ordered = sorted(itertools.combinations(range(len(lines) + 1), 2), key=lambda span: span[0] - span[1])
    return _first_that_parses("\n".join(lines[start:end]).strip() for start, end in ordered)


def _first_that_parses(sources: Iterable[str]) -> str:
    return next((source for source in sources if source.strip() and tree_of(source)), "")


# What the published post-processors keep


def names(node: ast.AST) -> set[str]:
    """Every name a node mentions, wherever it stands."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _children_outside_attributes(node: ast.AST) -> Iterator[ast.AST]:
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        child = waiting.pop()
        yield child
        if not isinstance(child, ast.Attribute):
            waiting.extend(ast.iter_child_nodes(child))


def names_outside_attributes(node: ast.AST) -> set[str]:
    """Names, but nothing of `a.b`: a helper used only as `helper(x).strip()` is not seen."""
    return {inner.id for inner in _children_outside_attributes(node) if isinstance(inner, ast.Name)}


def names_and_last_attributes(node: ast.AST) -> set[str]:
    """Names, and of `a.b` only the `b`."""
    last = (inner.attr for inner in _children_outside_attributes(node) if isinstance(inner, ast.Attribute))
    return names_outside_attributes(node) | set(last)


def reachable(roots: Iterable[str], uses: Mapping[str, set[str]]) -> set[str]:
    """The names to which the roots lead, themselves included."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(uses.get(name, set()))
    return seen


@dataclass(frozen=True)
class Cleaner:
    """A published post-processor's view of a program's top level: imports, and definitions by name."""

    functions: tuple[type[ast.stmt], ...]
    assignments: tuple[type[ast.stmt], ...]
    returning: bool  # functions count only if they contain a `return`
    uses: Callable[[ast.AST], set[str]]

    def definitions(self, tree: ast.Module) -> dict[str, ast.stmt]:
        """By name: the place of the first definition, the content of the last."""
        return {name: node for node in tree.body if (name := self._name(node)) is not None}

    def _name(self, node: ast.stmt) -> str | None:
        if isinstance(node, ast.ClassDef):
            return node.name
        if isinstance(node, self.functions):
            returns = any(isinstance(inner, ast.Return) for inner in ast.walk(node))
            return node.name if returns or not self.returning else None  # type: ignore[attr-defined]
        if isinstance(node, self.assignments):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target  # type: ignore[attr-defined]
            return target.id if isinstance(target, ast.Name) else None
        return None

    def emit(self, tree: ast.Module, entry: str | None, text: str) -> str:
        """Imports, then the definitions reachable from `entry`, or all without one; `tree` is that of `text`."""
        found = self.definitions(tree)
        uses = {name: self.uses(node) for name, node in found.items()}
        keep = reachable([entry], uses) if entry else set(found)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        return source_of([*imports, *(node for name, node in found.items() if name in keep)], text)


def source_of(nodes: Iterable[ast.stmt], text: str) -> str:
    """The statements as Python prints them; `text` is what they were parsed from.

    Python cannot print everything that it can parse, such as a hexadecimal number of thousands of digits. Such a
    statement is taken from the text as it stands.
    """
    return "\n".join(_printed(node, text) for node in nodes)


def _printed(node: ast.stmt, text: str) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError):
        decorators = (ast.get_source_segment(text, one) for one in getattr(node, "decorator_list", []))
        return "\n".join([*(f"@{one}" for one in decorators), ast.get_source_segment(text, node) or ""])


def defines(source: str, name: str) -> bool:
    return re.search(rf"(?m)^[^\S\n]*def\s+{re.escape(name)}\s*\(", source) is not None


# Our default

BLOCK = re.compile(r"```[^\n`]*+\n(.*?)(?:```|\Z)", re.DOTALL)
BEGIN = re.compile(r"\[BEGIN\]|^[ \t]*'?BEGIN'?[ \t]*$", re.MULTILINE)
DONE = re.compile(r"\[DONE\]|^[ \t]*'?DONE'?[ \t]*$", re.MULTILINE)


def code_in(answer: str, entry: str) -> str:
    """The fenced blocks of an answer up to the one that defines the entry point: imports and helpers are often shown
    first. Without such a block the first one, and without any the answer."""
    blocks = [block for block in BLOCK.findall(answer) if block.strip()] or [answer.split("```")[0]]
    at = next((n for n, block in enumerate(blocks) if defines(block, entry)), 0)
    before = [block for block in map(tidy, blocks[:at]) if tree_of(block) is not None]
    return "\n".join([*before, blocks[at]])


def without_marks(code: str) -> str:
    """What stands between the marks of MBPP's prompt. The letters DONE inside a name or a text are no mark."""
    inside = DONE.split(BEGIN.split(code, maxsplit=1)[-1], maxsplit=1)[0].replace(r"\_", "_").strip("\n")
    quoted = inside.strip().startswith("'") and inside.strip().endswith("'")
    return inside.strip()[1:-1] if quoted else inside


def program(answer: str, *, entry: str, stub: str = "") -> str:
    """The whole program of an answer, without what runs the entry point itself: sample calls, the model's own tests.

    Imports, and functions and classes that the entry point may need, stay as they are. Every other statement may fail
    without consequence: one may fill a table that is needed, and another may ask for input that is not there.
    """
    code = code_in(answer, entry)
    text = tidy(f"{stub}\n{code}")
    tree = tree_of(text)
    if tree is None:
        code = without_marks(code)
        span = fullest_span(tidy(code))  # of the answer alone: a long stub could be fuller than the function
        text = tidy(f"{stub}\n{span if defines(span, entry) else code}")
        text = text if tree_of(text) else fullest_span(text)
        tree = tree_of(text) or ast.Module(body=[], type_ignores=[])
    uses: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, DEFINITIONS) or entry in _defined(node):
            for name in _defined(node):
                uses[name] = uses.get(name, set()) | names(node)
    needed = reachable([entry], uses)
    kept: list[ast.stmt] = []
    for node in tree.body:
        defined = _defined(node)
        if isinstance(node, ast.Import | ast.ImportFrom) or entry in defined:
            kept.append(node)
        elif isinstance(node, DEFINITIONS):
            kept.append(node if defined & needed else _may_fail(node))
        elif entry not in reachable(names(node), uses):
            kept.append(_may_fail(node))
    # Python wants `from __future__` before all else, but a stub stands before the model's own imports.
    return source_of(sorted(kept, key=lambda node: getattr(node, "module", None) != "__future__"), text)


def _defined(node: ast.stmt) -> set[str]:
    """The functions, classes and variables that a statement defines, also inside `if`, `try`, `with` and loops."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    stored = {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }
    return stored | {inner.name for inner in ast.walk(node) if isinstance(inner, DEFINITIONS)}


def _may_fail(node: ast.stmt) -> ast.stmt:
    handler = ast.ExceptHandler(type=ast.Name("BaseException", ast.Load()), name=None, body=[ast.Pass()])
    return ast.copy_location(ast.Try(body=[node], handlers=[handler], orelse=[], finalbody=[]), node)
