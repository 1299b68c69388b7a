"""The checking process: runs the trusted checks and requests every value they need from the program's process."""

import ast
import builtins
import importlib
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from voidpad.sandbox.wire import Peer, Stopped, exception_from, is_programs

_DETAIL_LIMIT = 1500
_ALLOWED = (  # for a program that seems to have failed for the lack of something
    "a program has only Python's standard library and the memory, threads and files that the sandbox's mode and limits "
    "allow; further processes, other programs and the network are refused"
)
# Modules that programs often import. The checks may use their own copy if the program's text imports one.
MODULES = (
    "array", "bisect", "calendar", "cmath", "collections", "copy", "datetime", "decimal", "fractions",
    "functools", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics",
    "string", "sys", "textwrap", "time", "typing",
)  # fmt: skip


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
        super().__init__(sock, {
            "call": lambda target, *args, **named: self._passed(target)(*args, **named),
            "next": lambda target: next(self._passed(target)),
        })  # fmt: skip
        self.lost: Stopped | None = None
        self.handles: dict[str, None] = {}  # the class names of the objects that crossed as handles

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

    def give_up(self, detail: str) -> Stopped:
        """Mark the program as lost and return the exception to raise, which every later request raises again."""
        self.lost = self.lost or Stopped("opaque", detail)
        return self.lost

    def ask(self, verb: str, *args: object, **named: object) -> Any:
        if self.lost is not None:
            raise self.lost
        try:
            return super().ask(verb, *args, **named)
        except Stopped as stopped:
            self.lost = self.lost or stopped
            raise
        except StopIteration as error:
            if verb == "next":
                raise
            # From a call it would silently end a loop of the checks.
            text = f"the program raised StopIteration: {error}"
            raise exception_from(["builtins.RuntimeError"], (text,), {}, text) from None


class RemoteObject:
    """The checks' side of an object that lives in the program's process and is not plain data.

    It can be called, read, changed and iterated: the answer is plain data or another RemoteObject. It cannot be
    compared: operators that would pass the expected value to the program's own methods (==, <, -, in) end the
    checks, as does everything else that would let the program decide whether a check holds.
    """

    __slots__ = ("__label", "__program")
    __program: ProgramConnection
    __label: str

    def __init__(self, program: ProgramConnection, label: str) -> None:
        object.__setattr__(self, "_RemoteObject__program", program)
        object.__setattr__(self, "_RemoteObject__label", label)

    def __enter__(self) -> Any:
        return self.__program.ask("getattr", self, "__enter__")()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """The program's object learns that the block ends, but never of an exception, which it could suppress."""
        if error is not None and is_programs(error):
            raise self.__refuse("leave it to a {} to suppress an exception")
        self.__program.ask("getattr", self, "__exit__")(None, None, None)

    def __refuse(self, what: str) -> Stopped:
        return self.__program.give_up(
            f"the checks {what.format(self.__label)}, and a {self.__label} is not plain data: the sandbox does not "
            "let a program's own methods decide whether a check holds"
        )


def _asking(verb: str) -> Callable[..., Any]:
    def method(self: Any, *args: object, **named: object) -> Any:
        return self._RemoteObject__program.ask(verb, self, *args, **named)

    return method


def _refusing(what: str) -> Callable[..., Any]:
    def method(self: Any, *args: object) -> Any:
        raise self._RemoteObject__refuse(what)

    return method


for _verb in ("call", "getattr", "setattr", "delattr", "getitem", "setitem", "delitem", "iter", "next", "len",
              "bool", "str", "repr", "hash"):  # fmt: skip
    setattr(RemoteObject, f"__{_verb}__", _asking(_verb))
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
    """The global names of the checks; no answer of the program's process changes what a name means.

    In this order: what the checks define; the entry point, which is the program's; Python's builtins; the helpers
    of the task; harmless modules and their members that the program's text imports, as the checks' own copies;
    and any other name as the program's. So the program supplies the function under test and the classes its
    arguments are made of, but nothing that judges them. It has to define helpers and import modules all the same,
    because in the published harnesses program and checks share one namespace.
    """

    def __init__(self, program: ProgramConnection, test: ProgramTest) -> None:
        super().__init__(__name__="checks", __builtins__=builtins)
        self._program, self._test = program, test

    def __missing__(self, name: str) -> Any:
        if name != self._test.entry:
            if hasattr(builtins, name):
                return getattr(builtins, name)
            if name in self._ours or name in MODULES:
                kind, _ = self._program.ask("name", name)
                if kind == "missing" or name not in self._ours:
                    raise NameError(f"name {name!r} is not defined by the program")
                return self._ours[name]
        kind, value = self._program.ask("name", name)
        if kind == "module":
            raise self._program.give_up(f"the checks need the module {value!r}: import it there")
        if kind == "missing":
            raise NameError(f"name {name!r} is not defined by the program")
        return value

    @cached_property
    def _ours(self) -> dict[str, Any]:
        """What stands for the program's helpers and imports in the checks."""
        names: dict[str, Any] = {}
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # not Python, and did not run
            for node in ast.walk(ast.parse(self._test.program)):
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        if alias.name in MODULES:
                            names[alias.asname or alias.name] = importlib.import_module(alias.name)
                elif isinstance(node, ast.ImportFrom) and node.module in MODULES and not node.level:
                    members = vars(importlib.import_module(node.module))
                    for alias in node.names:
                        if alias.name in members:
                            names[alias.asname or alias.name] = members[alias.name]
        helpers: dict[str, Any] = {"__name__": "helpers", "__builtins__": builtins}
        exec(compile(self._test.helpers, "<helpers>", "exec", dont_inherit=True, optimize=0), helpers)
        return names | {name: value for name, value in helpers.items() if not name.startswith("__")}


def judge(sock: socket.socket, test: ProgramTest) -> tuple[str, str]:
    """Run the checks: the verdict's reason and detail. A pass needs the program to be connected until the end.

    The reason "gone" says that the program exited early, so that its exit status matters.
    """
    program = ProgramConnection(sock)
    try:
        tree = ast.parse(test.checks)
        program.ask("run")
        code = compile(tree, "<checks>", "exec", dont_inherit=True, optimize=0)
        exec(code, CheckNamespace(program, test))
        outcome = ("passed", "")
    except Stopped as stop:
        outcome = stop.args
    except BaseException as error:
        kind = "memory" if isinstance(error, MemoryError) else "error" if is_programs(error) else "failed"
        outcome = (kind, _line(error, program, test.checks))
    reason, detail = program.lost.args if program.lost else outcome
    return reason, detail[:_DETAIL_LIMIT]


def _line(error: BaseException, program: ProgramConnection, checks: str) -> str:
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
    hints = []
    if program.changed_late():
        hints.append("the checks change a value after they have passed it to the program")
    late = False
    with suppress(Stopped, Exception):
        late = program.ask("changed_late") is True
    if late:
        hints.append("the program changes a value after the call, and the checks have a copy")
    if program.handles and re.search(r"\b(isinstance|type|callable|await|asyncio|inspect|__\w+__)\b", check):
        hints.append(f"the checks see a handle of the program's {', '.join(program.handles)}")
    if re.search(r"getvalue|stdout|captured", check):
        hints.append("the checks do not see what a program prints")
    restricted = "can't start new thread" in message or type(error).__name__ == "ZoneInfoNotFoundError"
    if is_programs(error) and (restricted or isinstance(error, OSError | ImportError | MemoryError)):
        hints.append(_ALLOWED)
    hint = f" (in the sandbox {'; '.join(hints)})" if hints else ""
    return text[: _DETAIL_LIMIT - len(hint)] + hint
