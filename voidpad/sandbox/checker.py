"""The checking process: runs the trusted checks and requests every value they need from the program's process."""

import ast
import builtins
import importlib
import json
import os
import re
import socket
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from voidpad.sandbox.peer import UNCROSSABLE, Peer, ProgramError, ProgramExit, exception_from
from voidpad.sandbox.remote import RemoteObject, StopChecks
from voidpad.sandbox.wire import Channel, ChannelClosed, ProtocolError

_DETAIL_LIMIT = 1500
# Modules that the checks may use because the program's text imports them; the checks get their own copy.
MODULES = frozenset({
    "array", "bisect", "calendar", "cmath", "collections", "copy", "datetime", "decimal", "fractions",
    "functools", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics",
    "string", "sys", "textwrap", "time", "typing",
})  # fmt: skip
_FUNCTIONS = (types.FunctionType, types.LambdaType, types.BuiltinFunctionType, types.MethodType,
              types.MethodDescriptorType)  # fmt: skip


@dataclass(frozen=True)
class CheckerTask:
    """The input of the checking process: trusted texts, and the program's text, of which only imports are read."""

    program: str
    checks: str
    entry: str | None = None  # the name under test, the only built-in name that a program may redefine
    helpers: str = ""  # definitions of the task that the checks use
    limits: dict[str, float] = field(default_factory=dict)  # by name, for messages


class ProgramConnection:
    """The checks' connection to the program's process.

    After the program has exited or violated the protocol, `lost` is set and every further request fails.
    """

    def __init__(self, sock: socket.socket, *, lenient: bool) -> None:
        self.lost: StopChecks | None = None
        self.lenient = lenient
        self._exported: list[object] = []
        self._peer = Peer(
            Channel(sock),
            {"call": self._call_back},
            keep=self._may_export,
            remote=lambda label: RemoteObject(self, label),
        )

    def give_up(self, reason: str, detail: str) -> StopChecks:
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
                self.give_up("gone", "the program ended before its checks did")
            except ProgramExit as ended:
                name, text = ended.args
                self.give_up("opaque" if name == UNCROSSABLE else "exited", f"{name}: {text}")
            except ProtocolError as error:
                self.give_up("opaque", str(error))
        raise self.lost or AssertionError("unreachable")

    def _may_export(self, value: object) -> bool:
        """Whether the program may get a handle for `value`: only for functions, which it may call."""
        if isinstance(value, _FUNCTIONS):
            self._exported.append(value)
        return isinstance(value, _FUNCTIONS)

    def _call_back(self, target: Any, *args: object, **named: object) -> Any:
        if not any(target is exported for exported in self._exported):
            raise PermissionError("the checks never passed this to the program")
        return target(*args, **named)


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
            raise self._program.give_up("opaque", f"the checks need the module {value!r}: import it there")
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


def judge(sock: socket.socket, task: CheckerTask, *, lenient: bool) -> tuple[str, str]:
    """Run the checks: the verdict's reason and detail. A pass needs the program to be connected until the end."""
    program = ProgramConnection(sock, lenient=lenient)
    try:
        tree = ast.parse(task.checks)
        program.await_ready()
        code = compile(tree, "<checks>", "exec", dont_inherit=True, optimize=0)
        exec(code, CheckNamespace(program, task))
        outcome = ("passed", "")
    except StopChecks as abort:
        outcome = abort.args
    except MemoryError as error:
        outcome = ("memory", _line(error, task))
    except BaseException as error:
        outcome = ("error" if isinstance(error, ProgramError) else "failed", _line(error, task))
    return program.lost.args if program.lost else outcome


def _line(error: BaseException, task: CheckerTask) -> str:
    """One line for people: the failing check, the exception, and a hint if the sandbox may have caused it."""
    at, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<checks>":
            at = trace.tb_lineno
        trace = trace.tb_next
    lines = task.checks.splitlines()
    where = f"line {at}: {lines[at - 1].strip()}: " if at and at <= len(lines) else ""
    try:
        message = str(error)
    except BaseException:  # the message contains a RemoteObject, and the program did not provide its text
        message = "<unprintable>"
    text = f"{where}{type(error).__name__}: {message}".removesuffix(": ")
    hint = _hint(error, message, task.limits) if isinstance(error, ProgramError) else ""
    return text[: _DETAIL_LIMIT - len(hint)] + hint


def _hint(error: BaseException, message: str, limits: dict[str, float]) -> str:
    """What the sandbox does not allow, where an exception of the program looks like the result of that."""
    missing = re.match(r"No module named '(\w+)", message)
    if isinstance(error, ModuleNotFoundError) and missing:
        if missing[1] in sys.stdlib_module_names:
            return " (the sandbox's user cannot read this Python's library)"
        return " (only Python's standard library can be imported in the sandbox)"
    allowed = {
        "can't start new thread": "{processes} processes and threads",
        "[Errno 11]": "{processes} processes and threads",
        "[Errno 24]": "256 open files",
        "[Errno 27]": "{disk_mb} MB of files",
        "[Errno 28]": "{disk_mb} MB of files",
    }
    for words, what in allowed.items():
        if words in message:
            return f" (the sandbox allows {what.format_map(limits)})"
    if isinstance(error, MemoryError):
        return f" (the sandbox allows {limits.get('memory_mb')} MB)"
    if type(error).__name__ == "gaierror":
        return " (the sandbox has no network)"
    if isinstance(error, PermissionError) and "[Errno 1]" in message:
        return " (the sandbox refuses this system call: no other programs, no network)"
    if isinstance(error, PermissionError) and "[Errno 13]" in message:
        return " (the sandbox allows files in the program's own folder only)"
    if isinstance(error, FileNotFoundError) and re.search(r": '/(?!tmp/)", message):
        return " (the sandbox shows Python's library and an empty folder, no other files)"
    return ""


def main(sock: socket.socket, task: CheckerTask, verdict: int, *, lenient: bool) -> bool:
    """Write the verdict to a descriptor. True if the program exited early, so that its exit status matters."""
    reason, detail = judge(sock, task, lenient=lenient)
    os.write(verdict, json.dumps([reason, detail[:_DETAIL_LIMIT]]).encode())
    return reason == "gone"
