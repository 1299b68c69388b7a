"""The checking process: runs the trusted checks and requests every value they need from the program's process."""

import ast
import builtins
import importlib
import re
import socket
import symtable
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, NamedTuple

from voidpad.sandbox.wire import ChannelClosed, Peer, ProgramExit, ProtocolError, exception_from, is_programs

_DETAIL_LIMIT = 1500
# Modules that the checks may use because the program's text imports them; the checks get their own copy.
MODULES = frozenset({
    "array", "bisect", "calendar", "cmath", "collections", "copy", "datetime", "decimal", "fractions",
    "functools", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics",
    "string", "sys", "textwrap", "time", "typing",
})  # fmt: skip


class StopChecks(BaseException):
    """Ends the checks, which seldom catch a BaseException; carries the verdict's reason and detail."""


class ProgramTest(NamedTuple):
    """An untrusted program and the trusted texts that test it.

    `entry` names the function under test. The checks take it from the program even where Python has a builtin
    of that name; every other builtin and every standard module in the checks is Python's own. `helpers` are
    definitions of the task that the checks use: the program must define those names as well, but the checks
    never use the program's versions. The checking process reads of the program's text only what it imports.
    """

    program: str
    checks: str
    entry: str | None = None
    helpers: str = ""


class ProgramConnection(Peer):
    """The checks' end of the connection.

    After the program has exited or violated the protocol, `lost` is set and every further request fails.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.lost: StopChecks | None = None
        self.handles: dict[str, None] = {}  # the class names of the objects that crossed as handles
        self.verbs = {
            "call": lambda target, *args, **named: self._passed(target)(*args, **named),
            "next": lambda target: next(self._passed(target)),
        }

    def _passed(self, target: Any) -> Any:
        """A function or iterator that the checks have passed to the program; it may use nothing else."""
        if not any(target is one for one in self.kept):
            raise PermissionError("the checks never passed this to the program")
        return target

    def may_keep(self, value: object) -> bool:
        """The program may get handles for functions and iterators, which it may use up."""
        return callable(value) or hasattr(value, "__next__")

    def make_remote(self, label: str) -> "RemoteObject":
        self.handles[label] = None
        return RemoteObject(self, label)

    def give_up(self, detail: str, reason: str = "opaque") -> StopChecks:
        """Mark the program as lost and return the exception to raise, which every later request raises again."""
        self.lost = self.lost or StopChecks(reason, detail)
        return self.lost

    def ask(self, verb: str, *args: object, **named: object) -> Any:
        with self._connected():
            try:
                return super().ask(verb, *args, **named)
            except StopIteration as error:
                if verb == "next":
                    raise
                # StopIteration from a call would silently end a loop of the checks.
                text = f"the program raised StopIteration: {error}"
                raise exception_from(("RuntimeError", "Exception", "BaseException"), (), text) from None

    def await_ready(self) -> None:
        with self._connected():
            super().await_ready()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Inside, the end of the connection and a violation of the protocol end the checks."""
        if self.lost is not None:
            raise self.lost
        try:
            yield
        except ChannelClosed:
            raise self.give_up("the program ended before its checks did", "gone") from None
        except ProgramExit as ended:
            name, text = ended.args
            raise self.give_up(f"{name}: {text}", "opaque" if name == "Uncrossable" else "exited") from None
        except ProtocolError as error:
            raise self.give_up(str(error)) from None


class RemoteObject:
    """The checks' side of an object that lives in the program's process and is not plain data.

    It can be called, read, changed and iterated: the answer is plain data or another RemoteObject. It cannot be
    compared: operators that would pass the expected value to the program's own methods (==, <, -, in) end the
    checks, as does everything else that would let the program decide whether a check holds.
    """

    __slots__ = ("__label", "__owner")
    __owner: ProgramConnection
    __label: str

    def __init__(self, owner: ProgramConnection, label: str) -> None:
        object.__setattr__(self, "_RemoteObject__owner", owner)
        object.__setattr__(self, "_RemoteObject__label", label)

    def __iter__(self) -> Any:
        iterator = self.__owner.ask("iter", self)
        return iterator if type(iterator) is RemoteObject else iter(iterator)

    def __enter__(self) -> Any:
        return self.__owner.ask("getattr", self, "__enter__")()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """The program's object learns that the block ends, but never of an exception, which it could suppress."""
        if error is not None and is_programs(error):
            raise self.__refuse("leave it to a {} to suppress an exception")
        self.__owner.ask("getattr", self, "__exit__")(None, None, None)

    def __hash__(self) -> int:
        return id(self)

    def __ask(self, verb: str, kind: type | None, *args: object, **named: object) -> Any:
        """Have the program's process do `verb` to the object; Python needs the answer to be a `kind`."""
        value = self.__owner.ask(verb, self, *args, **named)
        if kind is not None and type(value) is not kind:
            raise TypeError(f"{verb}() of the program's {self.__label} gave a {type(value).__name__}")
        return value

    def __refuse(self, what: str) -> StopChecks:
        """End the checks; also called by the operators below."""
        label = self.__label
        return self.__owner.give_up(
            f"the checks {what.format(label)}, and a {label} is not plain data: the sandbox does not "
            "let a program's own methods decide whether a check holds"
        )


def _asking(verb: str, kind: type | None) -> Callable[..., Any]:
    def method(self: Any, *args: object, **named: object) -> Any:
        return self._RemoteObject__ask(verb, kind, *args, **named)

    return method


def _refusing(what: str) -> Callable[..., Any]:
    def method(self: Any, *args: object) -> Any:
        raise self._RemoteObject__refuse(what)

    return method


for _verb in ("call", "getattr", "setattr", "delattr", "getitem", "setitem", "delitem", "next"):
    setattr(RemoteObject, f"__{_verb}__", _asking(_verb, None))
for _verb, _kind in {"len": int, "bool": bool, "str": str, "repr": str}.items():
    setattr(RemoteObject, f"__{_verb}__", _asking(_verb, _kind))
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or",
               "xor", "lshift", "rshift")  # fmt: skip
_REFUSED = {
    "compare with a {}": ("eq", "ne", "lt", "le", "gt", "ge", "contains", "instancecheck", "subclasscheck"),
    "compute with a {}": ("neg", "abs", "round", "int", "float", "index", *_ARITHMETIC,
                          *(f"r{name}" for name in _ARITHMETIC)),
    "await a {}": ("await",),
    "copy a {}": ("reduce_ex",),
    "make a subclass of a {}": ("mro_entries",),
}  # fmt: skip
for _what, _names in _REFUSED.items():
    for _name in _names:
        setattr(RemoteObject, f"__{_name}__", _refusing(_what))


class CheckNamespace(dict[str, Any]):
    """The global names of the checks, resolved by trusted code from the task and the program's text.

    In this order: what the checks define; the entry point, which is the program's; Python's builtins; the
    helpers of the task; modules and their functions that the program's text imports, as the checks' own copies;
    and any other name as the program's. So the program supplies the function under test and the classes its
    arguments are made of, but nothing that judges them, and no answer of its process changes what a name means.
    """

    def __init__(self, program: ProgramConnection, test: ProgramTest) -> None:
        super().__init__(__name__="checks", __builtins__=builtins)
        self._program, self._test = program, test

    def __missing__(self, name: str) -> Any:
        if name != self._test.entry:
            if hasattr(builtins, name):
                return getattr(builtins, name)
            if name in self._helpers:
                self._require(name, name in self._bound and self._bound[name].is_assigned())
                return self._helpers[name]
            if name in MODULES or name in self._imported:
                self._require(name, name in self._imported)
                return self._imported[name]
        kind, value = self._program.ask("name", name)
        if kind == "module":
            raise self._program.give_up(f"the checks need the module {value!r}: import it there")
        if kind == "missing":
            self._require(name, False)
        return value

    def _require(self, name: str, defined: bool) -> None:
        if not defined:
            raise NameError(f"name {name!r} is not defined by the program")

    @cached_property
    def _helpers(self) -> dict[str, Any]:
        """What the task's helpers define; they never see a name of the program."""
        names: dict[str, Any] = {"__name__": "helpers", "__builtins__": builtins}
        exec(compile(self._test.helpers, "<helpers>", "exec", dont_inherit=True, optimize=0), names)
        return {name: value for name, value in names.items() if not name.startswith("__")}

    @cached_property
    def _bound(self) -> dict[str, symtable.Symbol]:
        """The names that the program's text binds at its top level; none where it is not Python and did not run."""
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            self._tree = ast.parse(self._test.program)
            table = symtable.symtable(self._test.program, "<program>", "exec")
            return {symbol.get_name(): symbol for symbol in table.get_symbols()}
        return {}

    @cached_property
    def _imported(self) -> dict[str, Any]:
        """Harmless modules, and their members, that the program's text imports under their own names."""
        names: dict[str, Any] = {}
        for node in ast.walk(self._tree) if self._bound else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                wanted = {alias.name for alias in node.names if alias.asname in (None, alias.name)}
                if isinstance(node, ast.Import):
                    names |= {name: importlib.import_module(name) for name in wanted & MODULES}
                elif node.module in MODULES and not node.level:
                    module = importlib.import_module(str(node.module))
                    names |= {name: getattr(module, name) for name in wanted if hasattr(module, name)}
        imported = {name for name, symbol in self._bound.items() if symbol.is_imported()}
        return {name: value for name, value in names.items() if name in imported}


def judge(sock: socket.socket, test: ProgramTest, allowed: str) -> tuple[str, str]:
    """Run the checks: the verdict's reason and detail. A pass needs the program to be connected until the end.

    The reason "gone" says that the program exited early, so that its exit status matters. `allowed` says what a
    program has, for the detail of one that seems to have failed for the lack of something.
    """
    program = ProgramConnection(sock)
    try:
        tree = ast.parse(test.checks)
        program.await_ready()
        code = compile(tree, "<checks>", "exec", dont_inherit=True, optimize=0)
        exec(code, CheckNamespace(program, test))
        outcome = ("passed", "")
    except StopChecks as abort:
        outcome = abort.args
    except MemoryError as error:
        outcome = ("memory", _line(error, program, test.checks, allowed))
    except BaseException as error:
        outcome = ("error" if is_programs(error) else "failed", _line(error, program, test.checks, allowed))
    reason, detail = program.lost.args if program.lost else outcome
    return reason, detail[:_DETAIL_LIMIT]


def _line(error: BaseException, program: ProgramConnection, checks: str, allowed: str) -> str:
    """One line for people: the failing check, the exception, and hints if the sandbox may have caused it."""
    at, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<checks>":
            at = trace.tb_lineno
        trace = trace.tb_next
    lines = checks.splitlines()
    check = lines[at - 1].strip() if at and at <= len(lines) else ""
    try:
        message = str(error.__dict__.get("text", error))
    except BaseException:  # the message contains a RemoteObject, and the program did not provide its text
        message = "<unprintable>"
    text = f"{f'line {at}: {check}: ' if check else ''}{type(error).__name__}: {message}".removesuffix(": ")
    hints = sorted(program.late_changes)
    if program.handles and re.search(r"\btype\(|__class__|\bcallable\(|\bawait\b|asyncio", check):
        hints.append(f"the checks see a handle of the program's {', '.join(program.handles)}")
    restricted = "can't start new thread" in message or type(error).__name__ == "ZoneInfoNotFoundError"
    if is_programs(error) and (restricted or isinstance(error, OSError | ImportError | MemoryError)):
        hints.append(allowed)
    hint = f" (in the sandbox {'; '.join(hints)})" if hints else ""
    return text[: _DETAIL_LIMIT - len(hint)] + hint
