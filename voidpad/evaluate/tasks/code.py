"""From a model's answer to a program: pure functions on text and syntax trees, shared by HumanEval and MBPP.

`Cleaner` describes what the published post-processors keep; `program.py` is our default, which drops less.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

SEARCH_LINES = 100  # the published post-processors look at no more; a search over all spans is quadratic
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
Uses = Callable[[ast.AST], set[str]]


def tidy(text: str) -> str:
    return text.replace("\t", "    ").replace("\r\n", "\n").replace("\r", "\n").strip()


def tree_of(source: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model's "\d" is its own affair
        try:
            return ast.parse(source)
        except UNPARSABLE:
            return None


def fullest_span(text: str) -> str:
    """The run of lines that parses and has most non-blank lines; earliest start, then earliest end, wins."""
    lines = text.splitlines()[:SEARCH_LINES]
    full = [bool(line.strip()) for line in lines]
    spans = [(start, end) for start in range(len(lines)) for end in range(start + 1, len(lines) + 1)]
    spans.sort(key=lambda span: (-sum(full[span[0] : span[1]]), span))
    return _first_parsing("\n".join(lines[start:end]) for start, end in spans if any(full[start:end]))


def longest_span(text: str) -> str:
    """The longest run of lines that parses once its ends are trimmed; the earliest of that length."""
    lines = text.splitlines()[:SEARCH_LINES]
    sizes = range(len(lines), 0, -1)
    spans = (lines[at : at + size] for size in sizes for at in range(len(lines) - size + 1))
    trimmed = ("\n".join(span).strip() for span in spans)
    return _first_parsing(span for span in trimmed if span)


def _first_parsing(sources: Iterable[str]) -> str:
    return next((source for source in sources if tree_of(source) is not None), "")


def has_return(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Return) for inner in ast.walk(node))


def names(node: ast.AST) -> set[str]:
    """Every name a node mentions, wherever it stands."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def names_and_attributes(node: ast.AST) -> set[str]:
    return names(node) | {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}


def _children_outside_attributes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.Attribute):
            yield from _children_outside_attributes(child)


def names_outside_attributes(node: ast.AST) -> set[str]:
    """Names, but nothing of `a.b`: a helper used only as `helper(x).strip()` is not seen."""
    return {inner.id for inner in _children_outside_attributes(node) if isinstance(inner, ast.Name)}


def names_and_last_attributes(node: ast.AST) -> set[str]:
    """Names, and of `a.b` only the `b`."""
    last = (inner.attr for inner in _children_outside_attributes(node) if isinstance(inner, ast.Attribute))
    return names_outside_attributes(node) | set(last)


def reachable(roots: Iterable[str], uses: dict[str, set[str]]) -> set[str]:
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
    uses: Uses

    def definitions(self, tree: ast.Module) -> dict[str, ast.stmt]:
        """By name: the place of the first definition, the content of the last."""
        found: dict[str, ast.stmt] = {}
        for node in tree.body:
            name = self._name(node)
            if name is not None:
                found[name] = node
        return found

    def _name(self, node: ast.stmt) -> str | None:
        if isinstance(node, ast.ClassDef):
            return node.name
        if isinstance(node, self.functions):
            return node.name if has_return(node) or not self.returning else None  # type: ignore[attr-defined]
        if isinstance(node, self.assignments):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target  # type: ignore[attr-defined]
            return target.id if isinstance(target, ast.Name) else None
        return None

    def emit(self, tree: ast.Module, entry: str | None) -> str:
        """Imports, then the definitions reachable from `entry`, or all of them without one."""
        found = self.definitions(tree)
        uses = {name: self.uses(node) for name, node in found.items()}
        keep = reachable([entry], uses) if entry else set(found)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        return source_of([*imports, *(node for name, node in found.items() if name in keep)])


def source_of(nodes: Iterable[ast.stmt]) -> str:
    try:
        return "\n".join(ast.unparse(node) for node in nodes)
    except RecursionError:  # parsed, but too deep to print: no program we could run either
        return ""


def defines(source: str, name: str) -> bool:
    return re.search(rf"(?m)^\s*def\s+{re.escape(name)}\s*\(", source) is not None
