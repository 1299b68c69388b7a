"""The checking process: runs the trusted checks and requests every value they need from the program's process."""

import ast
import builtins
import functools
import importlib
import json
import operator
import os
import re
import socket
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from voidpad.sandbox.wire import (
    Channel,
    ChannelClosed,
    Peer,
    ProgramExit,
    ProtocolError,
    exception_from,
    is_programs,
)

_DETAIL_LIMIT = 1500
# Modules that the checks may use because the program's text imports them; the checks get their own copy.
MODULES = frozenset({
    "array", "bisect", "calendar", "cmath", "collections", "copy", "datetime", "decimal", "fractions",
    "functools", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics",
    "string", "sys", "textwrap", "time", "typing",
})  # fmt: skip
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType,
              functools.partial, operator.itemgetter, operator.attrgetter, operator.methodcaller)  # fmt: skip


class StopChecks(BaseException):
    """Ends the checks, which seldom catch a BaseException; carries the verdict's reason and detail."""


@dataclass(frozen=True)
class CheckerTask:
    """The input of the checking process: trusted texts, and the program's text, of which only imports are read."""

    program: str
    checks: str
    entry: str | None = None  # the name under test, the only built-in name that a program may redefine
    helpers: str = ""  # definitions of the task that the checks use
    limits: dict[str, float] = field(default_factory=dict)  # by name, for messages
    weak: bool = False  # for messages


class ProgramConnection:
    """The checks' connection to the program's process.

    After the program has exited or violated the protocol, `lost` is set and every further request fails.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.lost: StopChecks | None = None
        self.handles: dict[str, None] = {}  # the class names of the objects that crossed as handles
        self._exported: list[object] = []
        self._peer = Peer(
            Channel(sock),
            {"call": self._call_back, "next": self._next_back},
            keep=self._may_export,
            remote=self._remote,
        )

    @property
    def notes(self) -> list[str]:
        """What the sandbox does differently from one process, as far as it was noticed."""
        return list(self._peer.notes)

    def give_up(self, detail: str, reason: str = "opaque") -> StopChecks:
        """Mark the program as lost and return the exception to raise, which every later request raises again."""
        self.lost = self.lost or StopChecks(reason, detail)
        return self.lost

    def ask(self, verb: str, *args: object, **named: object) -> Any:
        try:
            return self._guard(lambda: self._peer.ask(verb, *args, **named))
        except StopIteration as error:
            if verb == "next":
                raise
            # StopIteration from a call would silently end a loop of the checks.
            raise exception_from(
                ("RuntimeError",), (), f"the program raised StopIteration: {error}"
            ) from None

    def await_ready(self) -> None:
        self._guard(self._peer.await_ready)

    def _guard(self, act: Callable[[], Any]) -> Any:
        if self.lost is None:
            try:
                return act()
            except ChannelClosed:
                self.give_up("the program ended before its checks did", "gone")
            except ProgramExit as ended:
                name, text = ended.args
                self.give_up(f"{name}: {text}", "opaque" if name == "Uncrossable" else "exited")
            except ProtocolError as error:
                self.give_up(str(error))
        raise self.lost or AssertionError("unreachable")

    def _remote(self, label: str) -> "RemoteObject":
        self.handles[label] = None
        return RemoteObject(self, label)

    def _may_export(self, value: object) -> bool:
        """Whether the program may get a handle for `value`: for functions and iterators, which it may use up."""
        allowed = isinstance(value, _FUNCTIONS) or (
            hasattr(value, "__next__") and type(value) is not RemoteObject
        )
        if allowed:
            self._exported.append(value)
        return allowed

    def _call_back(self, target: Any, *args: Any, **named: Any) -> Any:
        function: Any = target if isinstance(target, _FUNCTIONS) else None
        return self._exported_by_checks(function)(*args, **named)

    def _next_back(self, target: Any) -> Any:
        return next(self._exported_by_checks(target))

    def _exported_by_checks(self, target: Any) -> Any:
        if not any(target is exported for exported in self._exported):
            raise PermissionError("the checks never passed this to the program")
        return target


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
        """The program's object learns that the block ends, but cannot suppress the checks' exceptions."""
        leave = self.__owner.ask("getattr", self, "__exit__")
        told = kind is not None and error is not None and issubclass(kind, Exception) and is_programs(error)
        if leave(*((_crossing(kind), str(error), None) if told else (None, None, None))) and told:
            raise self.__refuse("leave it to a {} to suppress an exception")

    def __hash__(self) -> int:
        return id(self)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        raise self.__refuse("make a subclass of the program's class")

    def __reduce_ex__(self, protocol: object) -> Any:
        raise self.__refuse("copy a {}")

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


def _crossing(kind: type[BaseException] | None) -> type[BaseException] | None:
    return kind if kind is not None and vars(builtins).get(kind.__name__) is kind else RuntimeError


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

    def __init__(self, program: ProgramConnection, task: CheckerTask) -> None:
        super().__init__(__name__="checks", __builtins__=builtins)
        self._program, self._task = program, task

    def __missing__(self, name: str) -> Any:
        if name != self._task.entry:
            if hasattr(builtins, name):
                return getattr(builtins, name)
            if name in self._helpers:
                self._require(name, name in self._defined)
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
        exec(compile(self._task.helpers, "<helpers>", "exec", dont_inherit=True, optimize=0), names)
        return {name: value for name, value in names.items() if not name.startswith("__")}

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        try:
            return list(_top_level(ast.parse(self._task.program).body))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []  # the program did not run either

    @cached_property
    def _defined(self) -> set[str]:
        """The names that the program's text binds by a definition or a plain assignment."""
        targets = [n for node in self._statements if isinstance(node, ast.Assign) for n in node.targets]
        names = {node.id for node in targets if isinstance(node, ast.Name)}
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        return names | {node.name for node in self._statements if isinstance(node, kinds)}

    @cached_property
    def _imported(self) -> dict[str, Any]:
        """Harmless modules, and their members, that the program's text imports under their own names."""
        names: dict[str, Any] = {}
        for node in self._statements:
            if isinstance(node, ast.Import):
                wanted = {alias.name for alias in node.names if alias.asname in (None, alias.name)}
                names |= {name: importlib.import_module(name) for name in wanted & MODULES}
            elif isinstance(node, ast.ImportFrom) and node.module in MODULES and not node.level:
                module = importlib.import_module(str(node.module))
                wanted = {alias.name for alias in node.names if alias.asname in (None, alias.name)}
                names |= {name: getattr(module, name) for name in wanted if hasattr(module, name)}
        return names


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run with the module, also those inside `if`, `try`, `with` and loops."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            handlers = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.ExceptHandler)]
            yield from _top_level([*inner, *(child for handler in handlers for child in handler.body)])


def judge(sock: socket.socket, task: CheckerTask) -> tuple[str, str]:
    """Run the checks: the verdict's reason and detail. A pass needs the program to be connected until the end."""
    program = ProgramConnection(sock)
    try:
        tree = ast.parse(task.checks)
        program.await_ready()
        code = compile(tree, "<checks>", "exec", dont_inherit=True, optimize=0)
        exec(code, CheckNamespace(program, task))
        outcome = ("passed", "")
    except StopChecks as abort:
        outcome = abort.args
    except MemoryError as error:
        outcome = ("memory", _line(error, task, program))
    except BaseException as error:
        outcome = ("error" if is_programs(error) else "failed", _line(error, task, program))
    return program.lost.args if program.lost else outcome


def _line(error: BaseException, task: CheckerTask, program: ProgramConnection) -> str:
    """One line for people: the failing check, the exception, and hints if the sandbox may have caused it."""
    at, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<checks>":
            at = trace.tb_lineno
        trace = trace.tb_next
    lines = task.checks.splitlines()
    check = lines[at - 1].strip() if at and at <= len(lines) else ""
    try:
        message = str(error.__dict__.get("text", error))
    except BaseException:  # the message contains a RemoteObject, and the program did not provide its text
        message = "<unprintable>"
    text = f"{f'line {at}: {check}: ' if check else ''}{type(error).__name__}: {message}".removesuffix(": ")
    hints = program.notes
    if program.handles and re.search(r"\btype\(|__class__|\bcallable\(|\bawait\b|asyncio", check):
        hints = [f"the checks see a handle of the program's {', '.join(program.handles)}", *hints]
    if is_programs(error):
        hints = [*filter(None, [_restriction(error, message, task)]), *hints]
    hint = f" (in the sandbox {'; '.join(hints)})" if hints else ""
    return text[: _DETAIL_LIMIT - len(hint)] + hint


def _restriction(error: BaseException, message: str, task: CheckerTask) -> str:
    """What the sandbox does not allow, where an exception of the program looks like the result of that."""
    limits = task.limits
    missing = re.match(r"No module named '(\w+)", message)
    if isinstance(error, ModuleNotFoundError) and missing:
        if missing[1] in sys.stdlib_module_names:
            return "of the weak mode only the usual modules of the standard library can be imported"
        return "only Python's standard library can be imported"
    allowed = {
        "can't start new thread": "{processes} processes and threads are allowed",
        "[Errno 11]": "{processes} processes and threads are allowed",
        "[Errno 12]": "{memory_mb} MB of memory are allowed",
        "[Errno 24]": "256 open files are allowed",
        "[Errno 27]": "{disk_mb} MB of files are allowed",
        "[Errno 28]": "{disk_mb} MB of files are allowed",
    }
    for words, what in allowed.items():
        if words in message:
            return what.format_map(limits)
    if isinstance(error, MemoryError):
        return f"{limits.get('memory_mb')} MB of memory are allowed"
    if type(error).__name__ == "gaierror":
        return "there is no network"
    if type(error).__name__ == "ZoneInfoNotFoundError":
        return "there are no files of time zones"
    if isinstance(error, PermissionError):
        none = ["no other programs", "no network"] + ["no files"] * task.weak
        none += ["no further processes"] * (not limits.get("forks"))
        return f"this system call is refused: {', '.join(none)}"
    if isinstance(error, OSError | ImportError) and task.weak:
        return "there are no files"
    if isinstance(error, OSError) and re.search(r"\[Errno 30\]|: '/(?!tmp/)", message):
        return "there are Python's library and an empty folder, no other files"
    return ""


def main(sock: socket.socket, task: CheckerTask, verdict: int) -> bool:
    """Write the verdict to a descriptor. True if the program exited early, so that its exit status matters."""
    reason, detail = judge(sock, task)
    os.write(verdict, json.dumps([reason, detail[:_DETAIL_LIMIT]]).encode())
    return reason == "gone"
