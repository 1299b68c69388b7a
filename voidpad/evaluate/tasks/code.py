"""From a model's answer to a program: pure functions on text and syntax trees, shared by HumanEval and MBPP.

First the search for the lines that parse, then `Cleaner`, which describes what the published post-processors keep,
then `program`, our default, which drops less.
"""

import ast
import builtins
import itertools
import re
import symtable
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

SEARCH_LINES = 100  # the published post-processors look at no more
PARSED_CHARACTERS = 6_000_000  # more than any answer of a few hundred lines needs; bounds hostile ones
CLAUSE = re.compile(r"(?:else|elif|except|finally)\b")
UNTERMINATED = re.compile(r"unterminated string literal \(detected at line (\d+)\)")
LINE_END = re.compile("\r\n|\r|\n")  # what ends a line for Python's parser, unlike str.splitlines
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
Node = TypeVar("Node", bound=Hashable)
Uses = Callable[[ast.AST], set[str]]
EMPTY = ast.Module(body=[], type_ignores=[])
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
BLOCKS = ast.For | ast.While | ast.If | ast.With | ast.Try


def tidy(text: str) -> str:
    return text.replace("\t", "    ").replace("\r\n", "\n").replace("\r", "\n").strip()


def tree_of(source: str) -> ast.Module | None:
    """The syntax tree, or None for what Python cannot parse, whatever the reason."""
    parsed = _parsed(source)
    return parsed if isinstance(parsed, ast.Module) else None


def _parsed(source: str) -> ast.Module | Exception:
    """The syntax tree, or the reason why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes such as "\d" in the model's code
        try:
            return ast.parse(source)
        except UNPARSABLE as error:
            return error


def fullest_span(text: str) -> str:
    """The run of lines that parses and has most non-blank lines; earliest start, then earliest end, wins."""
    runs = _LineRuns(text.splitlines()[:SEARCH_LINES], trimmed=False)
    filled = [0, *itertools.accumulate(bool(line.strip()) for line in runs.lines)]
    size = len(runs.lines)
    pairs = [(start, end) for start in range(size) for end in range(start + 1, size + 1)]
    pairs.sort(key=lambda pair: (filled[pair[0]] - filled[pair[1]], pair))
    return runs.first_that_parses(pair for pair in pairs if filled[pair[0]] < filled[pair[1]])


def longest_span(text: str) -> str:
    """The longest run of lines that parses once its ends are trimmed; the earliest of that length."""
    runs = _LineRuns(text.splitlines()[:SEARCH_LINES], trimmed=True)
    size = len(runs.lines)
    pairs = ((at, at + length) for length in range(size, 0, -1) for at in range(size - length + 1))
    return runs.first_that_parses(pair for pair in pairs if runs.source(*pair))


class _LineRuns:
    """The runs of lines of one answer, and which of them parse.

    There are thousands of runs, but most are decided by what they share with others. Where lines [a, b) are whole
    statements and line b starts a new one, lines [a, c) parse exactly if lines [b, c) do. Where lines [a, b) hold
    an error before their last line that nothing after it can mend, lines [a, c) do not parse for any c > b. The
    rest is parsed, and bounded by the number of characters given to the parser.
    """

    def __init__(self, lines: list[str], *, trimmed: bool) -> None:
        self.lines, self._trimmed = lines, trimmed
        self._characters_left = PARSED_CHARACTERS
        self._parses: dict[tuple[int, int], bool] = {}
        self._statement_ends: dict[int, int | None] = {}
        self._hopeless: dict[int, int] = {}  # by start: no run that ends here or later parses
        self._starts = [at for at, line in enumerate(lines) if _starts_statement(line)]

    def source(self, start: int, end: int) -> str:
        text = "\n".join(self.lines[start:end])
        return text.strip() if self._trimmed else text

    def first_that_parses(self, pairs: Iterable[tuple[int, int]]) -> str:
        """The source of the first run that parses, or an empty text."""
        for at, pair in enumerate(pairs):
            if self._characters_left < 0:
                return ""
            # Most answers parse as a whole, and then there is no need to look at their statements.
            if self._try(*pair) if at == 0 else self._run_parses(*pair):
                return self.source(*pair)
        return ""

    def _run_parses(self, start: int, end: int) -> bool:
        while (after := self._statement_end(start)) is not None and after < end:
            start = after
        if (start, end) not in self._parses:
            self._parses[start, end] = self._try(start, end)
        return self._parses[start, end]

    def _statement_end(self, start: int) -> int | None:
        """The first line that starts a new statement such that the lines from `start` up to it parse."""
        if start not in self._statement_ends:
            ends = (end for end in self._starts if end > start and self._try(start, end, whole=True))
            self._statement_ends[start] = next(ends, None)
        return self._statement_ends[start]

    def _try(self, start: int, end: int, *, whole: bool = False) -> bool:
        """Whether a run parses; `whole` if lines follow it, so that its end must not be trimmed."""
        if end >= self._hopeless.get(start, end + 1) or self._characters_left < 0:
            return False
        text = "\n".join(self.lines[start:end])
        source = (text.lstrip() if whole else text.strip()) if self._trimmed else text
        self._characters_left -= len(source)
        parsed = _parsed(source)
        if line := _line_of_final_error(parsed):
            dropped = len(text) - len(text.lstrip()) if self._trimmed else 0
            line += start + text.count("\n", 0, dropped) - 1
            follows = (at + 1 for at in range(line + 1, end) if self.lines[at].strip())
            if (hopeless := next(follows, None)) is not None:
                self._hopeless[start] = hopeless
        return isinstance(parsed, ast.Module)


def _line_of_final_error(error: ast.Module | Exception) -> int | None:
    """The line of an error at the last token that the parser read, or in a token that ended with its line."""
    if not isinstance(error, SyntaxError):
        return None
    if error.msg in ("invalid syntax", "unexpected indent"):
        return error.lineno
    ended = UNTERMINATED.match(error.msg)
    return int(ended[1]) if ended else None


def _starts_statement(line: str) -> bool:
    """Whether a line, outside of brackets and strings, can only be the start of a top-level statement."""
    return bool(line[:1].strip()) and line[0] != "#" and CLAUSE.match(line) is None


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


def reachable(roots: Iterable[Node], uses: Mapping[Node, set[Node]]) -> set[Node]:
    seen: set[Node] = set()
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

    Python cannot print everything that it can parse: an f-string whose expression holds a character that must be
    escaped, a hexadecimal number of thousands of digits. Such a statement is taken from the text as it stands.
    """
    return "\n".join(_printed(node, text) for node in nodes)


def _printed(node: ast.stmt, text: str) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError):
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        lines = LINE_END.split(text)[first - 1 : node.end_lineno]
        # Several statements may share a line; columns are counted in bytes.
        last = lines[-1].encode()[: node.end_col_offset].decode()
        start = node.col_offset if first == node.lineno else 0
        lines[-1] = last
        lines[0] = lines[0].encode()[start:].decode()
        return "\n".join(lines)


def defines(source: str, name: str) -> bool:
    return re.search(rf"(?m)^[^\S\n]*def\s+{re.escape(name)}\s*\(", source) is not None


# Our default


def joined_blocks(blocks: list[str], entry: str) -> str:
    """The first fenced block that defines the entry point, with the earlier ones that parse: imports and helpers are
    often shown first. Without such a block, the first."""
    at = next((n for n, block in enumerate(blocks) if defines(block, entry)), 0)
    before = [block for block in map(tidy, blocks[:at]) if tree_of(block) is not None]
    return "\n".join([*before, blocks[at]])


def program(text: str, *, entry: str, tests: str) -> str:
    """The statements that `entry` or the tests may need, in order; every definition if `entry` is missing.

    Functions without `return` (generators, in-place changes) stay, and so does a helper that only the tests call.
    A loose statement stays if it fills a table that is needed (`table.append(1)`, `fill(table)`, `sieve()`); others
    (sample calls, prints, prompts for input) go. Python's own scoping decides what a function needs, so a local
    variable never keeps a top-level statement of the same name alive.
    """
    text = tidy(text)
    tree = tree_of(text)
    if tree is None:
        text = fullest_span(text)
        tree = tree_of(text) or EMPTY
    tables = {
        name for node in _inside(tree.body) if not isinstance(node, DEFINITIONS) for name in _bound(node)
    }
    functions = {
        node.name: free_names(node) | _declared_global(node)
        for node in _inside(tree.body)
        if isinstance(node, ast.FunctionDef) and node.name not in (entry, "main")
    }
    bound = [
        (node, set().union(*(_bound(inner) | _filled(inner, tables, functions) for inner in _inside([node]))))
        for node in tree.body
    ]
    if any(entry in mine for _, mine in bound):
        keep = reachable([entry, *names(tree_of(tests) or EMPTY)], _needs(bound))
    else:
        keep = set().union(*(mine for node, mine in bound if not isinstance(node, BLOCKS | ast.Expr)))
    kept = [node for node, mine in bound if mine & keep or imports(node)]
    # Python wants `from __future__` before all else, but a stub stands before the model's own imports.
    return source_of(sorted(kept, key=lambda node: getattr(node, "module", None) != "__future__"), text)


def _inside(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run with the module: those of `body`, and those inside `if`, `try`, `with` and loops."""
    for node in body:
        yield node
        if isinstance(node, BLOCKS):
            handlers = getattr(node, "handlers", [])
            parts = [
                getattr(part, name, [])
                for part in (node, *handlers)
                for name in ("body", "orelse", "finalbody")
            ]
            yield from _inside(itertools.chain(*parts))


def _bound(node: ast.stmt) -> set[str]:
    """The top-level names that one statement binds or changes by itself."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    targets: list[ast.AST] = []
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = [node]
    elif isinstance(node, ast.For):
        targets = [node.target]
    elif isinstance(node, ast.With):
        targets = [item.optional_vars for item in node.items if item.optional_vars]
    elif isinstance(node, ast.If | ast.While):
        targets = [node.test]
    stored = [
        inner
        for target in targets
        for inner in ast.walk(target)
        if isinstance(inner, ast.Name | ast.Subscript | ast.Attribute) and isinstance(inner.ctx, ast.Store)
    ]
    return set().union(*map(names, stored))


def _filled(node: ast.stmt, tables: set[str], functions: Mapping[str, set[str]]) -> set[str]:
    """The tables that a loose call may fill: whose method it is, which it is given, or which its function uses."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return set()
    called = node.value.func
    if isinstance(called, ast.Name):
        own = functions.get(called.id, set())
        if hasattr(builtins, called.id) or "input" in own or called.id not in functions:
            return set()
        given = set().union(*(names(argument) for argument in node.value.args))
        return (own | given) & tables
    owner = called
    while isinstance(owner, ast.Attribute | ast.Subscript | ast.Call):
        owner = owner.func if isinstance(owner, ast.Call) else owner.value
    given = {argument.id for argument in node.value.args if isinstance(argument, ast.Name)}
    return (names(owner) | given) & tables


def _declared_global(node: ast.AST) -> set[str]:
    return {name for inner in ast.walk(node) if isinstance(inner, ast.Global) for name in inner.names}


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
