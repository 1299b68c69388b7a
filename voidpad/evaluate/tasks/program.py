"""Our default way from an answer's code to the program under test: keep what may be needed, drop the rest.

Functions without `return` (generators, in-place changes) stay, and so does a helper that only the tests call.
Loose statements (sample calls, prints, prompts for input) go. Python's own scoping decides what a function
needs, so a local variable never keeps a top-level statement of the same name alive.
"""

import ast
import symtable
from collections.abc import Iterator
from typing import Any

from voidpad.evaluate.tasks.code import UNPARSABLE, fullest_span, names, reachable, source_of, tidy, tree_of

EMPTY = ast.Module(body=[], type_ignores=[])
BLOCKS = ast.For | ast.While | ast.If | ast.With | ast.Try


def program(text: str, *, entry: str, tests: str) -> str:
    """The statements that `entry` or the tests may need, in order; every definition if `entry` is missing."""
    text = tidy(text)
    tree = tree_of(text)
    if tree is None:
        text = fullest_span(text)
        tree = tree_of(text) or EMPTY
    bound = [(node, _bound_names(node)) for node in tree.body]
    if any(entry in mine for _, mine in bound):
        keep = reachable([entry, *names(tree_of(tests) or EMPTY)], _needs(bound))
    else:
        keep = set().union(*(mine for node, mine in bound if not isinstance(node, BLOCKS)))
    kept = [node for node, mine in bound if mine & keep or imports(node)]
    # Python wants `from __future__` before all else, but a stub stands before the model's own imports.
    return source_of(sorted(kept, key=lambda node: getattr(node, "module", None) != "__future__"), text)


def _needs(bound: list[tuple[ast.stmt, set[str]]]) -> dict[str | int, set[Any]]:
    """A name needs the statements (by number) that bind it, and a statement needs the names it looks up."""
    needs: dict[str | int, set[Any]] = {}
    for number, (node, mine) in enumerate(bound):
        needs[number] = free_names(node)
        for name in mine:
            needs.setdefault(name, set()).add(number)
    return needs


def imports(node: ast.stmt) -> bool:
    """An import, also one that is tried."""
    if isinstance(node, ast.Try):
        return all(imports(inner) for inner in node.body)
    return isinstance(node, ast.Import | ast.ImportFrom)


def _bound_names(node: ast.stmt) -> set[str]:
    """The top-level names that a statement binds or changes; empty for one that only does something."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | BLOCKS):
        return set().union(*(names(target) for target in ast.walk(node) if _stored(target)))
    return set()


def _stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store)


def free_names(node: ast.stmt) -> set[str]:
    """The names a statement looks up at the top level."""
    try:
        table = symtable.symtable(ast.unparse(node), "program", "exec")
    except UNPARSABLE:  # parses, but no compiler takes it, such as `return` outside a function
        return names(node)
    inner = (symbol for scope in _scopes(table) for symbol in scope.get_symbols() if symbol.is_global())
    return {symbol.get_name() for symbol in [*table.get_symbols(), *inner] if symbol.is_referenced()}


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _scopes(child)
