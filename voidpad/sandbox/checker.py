"""The trusted side of a job: runs the checks, asks the program's process for every value they need."""

import ast
import builtins
import json
import os
import socket
import types
from collections.abc import Callable
from typing import Any

from voidpad.sandbox.peer import UNCROSSABLE, Fault, Left, Peer
from voidpad.sandbox.wire import BrokenWire, Channel, Gone

_DETAIL_LIMIT = 1500
# The program may hand over a module it imported by name only: the checks then use their own copy of these.
_MODULES = frozenset({
    "array", "bisect", "calendar", "cmath", "collections", "copy", "datetime", "decimal", "fractions",
    "functools", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics",
    "string", "sys", "textwrap", "time", "typing",
})  # fmt: skip
_FUNCTIONS = (types.FunctionType, types.LambdaType, types.BuiltinFunctionType, types.MethodType,
              types.MethodDescriptorType)  # fmt: skip


class Abort(BaseException):
    """Ends the checks whatever they catch."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)


class Remote:
    """An object of the program that is not plain data: it can be called, read and walked, but not compared.

    What carries no expected value (a call, an attribute, an item, a length) is asked of the program, because
    the answer is plain data or another Remote. What would let the object meet the expected value in the
    program's own code (==, <, -, in) is refused unless the caller opted in.
    """

    __slots__ = ("__ask", "__label", "__lenient")

    def __init__(self, ask: Callable[..., Any], label: str, *, lenient: bool) -> None:
        object.__setattr__(self, "_Remote__ask", ask)
        object.__setattr__(self, "_Remote__label", label)
        object.__setattr__(self, "_Remote__lenient", lenient)

    def __call__(self, *args: object, **named: object) -> Any:
        return self.__ask("call", *args, **named)

    def __getattr__(self, name: str) -> Any:
        return self.__ask("getattr", name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__ask("setattr", name, value)

    def __getitem__(self, key: object) -> Any:
        return self.__ask("getitem", key)

    def __setitem__(self, key: object, value: object) -> None:
        self.__ask("setitem", key, value)

    def __iter__(self) -> Any:
        walked = self.__ask("iter")
        return walked if type(walked) is Remote else iter(walked)

    def __next__(self) -> Any:
        return self.__ask("next")

    def __len__(self) -> int:
        return self.__plain("len", int)

    def __bool__(self) -> bool:
        return self.__plain("bool", bool)

    def __str__(self) -> str:
        return self.__plain("str", str)

    def __repr__(self) -> str:
        return self.__plain("repr", str)

    def __plain(self, verb: str, kind: type) -> Any:
        value = self.__ask(verb)
        if type(value) is not kind:
            raise TypeError(f"{verb}() of the program's {self.__label} gave a {type(value).__name__}")
        return value

    def __hash__(self) -> int:
        return id(self)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise Abort("opaque", f"the checks copy a {self.__label}, which is not plain data")

    def __meet(self, name: str, *args: object) -> Any:
        if not self.__lenient:
            raise Abort("opaque", f"the checks compare a {self.__label}, which is not plain data; "
                        "Sandbox(trust_objects=True) lets the program's own methods answer")  # fmt: skip
        return self.__ask("operate", name, *args)


def _meeting(name: str) -> Callable[..., Any]:
    def method(self: Remote, *args: object) -> Any:
        return self._Remote__meet(name, *args)  # type: ignore[attr-defined]

    return method


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or",
               "xor", "lshift", "rshift")  # fmt: skip
_OTHERS = ("eq", "ne", "lt", "le", "gt", "ge", "contains", "neg", "abs", "round", "int", "float", "index",
           "instancecheck", "subclasscheck")  # fmt: skip
for _name in (*_OTHERS, *_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC)):
    setattr(Remote, f"__{_name}__", _meeting(f"__{_name}__"))


class Names(dict):
    """The checks' global names: their own, then Python's, then whatever the program defines."""

    def __init__(self, ask: Callable[..., Any], shadowed: frozenset[str]) -> None:
        super().__init__(__name__="checks", __builtins__=builtins)
        self._ask, self._shadowed = ask, shadowed

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) and name not in self._shadowed:
            return getattr(builtins, name)
        kind, value = self._ask("name", name)
        if kind == "module":
            if value not in _MODULES:
                raise Abort("opaque", f"the checks need the module {value!r}: import it in the checks")
            return __import__(value)
        if kind == "missing":
            raise NameError(f"name {name!r} is not defined by the program")
        return value


def shadowed_names(tree: ast.Module, ask: Callable[..., Any]) -> frozenset[str]:
    """The one built-in name that the checks take from the program, if any.

    A program that defines its own `abs` must not judge itself with it, yet one benchmark task asks for a
    function called `sum`. So a built-in name is the program's only when it is the sole name the checks use
    that the program defines.
    """
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    defined = {str(name) for name in ask("defines", sorted(used))} & used
    return frozenset(defined) if len(defined) == 1 and hasattr(builtins, *defined) else frozenset()


class Witness:
    """The program, as the checks see it: it answers, and once it is lost or breaks the form it stays lost."""

    def __init__(self, sock: socket.socket, *, lenient: bool) -> None:
        self.lost: Abort | None = None
        self._lenient = lenient
        self._lent: list[object] = []
        self._peer = Peer(Channel(sock), {"call": self._call_back}, keep=self._lend, remote=self._remote)

    def ask(self, verb: str, *args: object, **named: object) -> Any:
        return self._guard(lambda: self._peer.ask(verb, *args, **named))

    def await_ready(self) -> None:
        self._guard(self._peer.await_ready)

    def _guard(self, act: Callable[[], Any]) -> Any:
        if self.lost is None:
            try:
                return act()
            except Gone:
                self.lost = Abort("gone", "the program ended before its checks did")
            except Left as left:
                name, text = left.args
                self.lost = Abort("opaque" if name == UNCROSSABLE else "exited", f"{name}: {text}")
            except BrokenWire as error:
                self.lost = Abort("opaque", str(error))
        raise self.lost

    def _remote(self, handle: int, label: str) -> Remote:
        def ask(verb: str, *args: object, **named: object) -> Any:
            return self.ask(verb, remote, *args, **named)

        remote = Remote(ask, label, lenient=self._lenient)
        return remote

    def _lend(self, value: object) -> bool:
        """Functions of the checks may be called by the program; nothing else of theirs is in its reach."""
        if isinstance(value, _FUNCTIONS):
            self._lent.append(value)
        return isinstance(value, _FUNCTIONS)

    def _call_back(self, target: Any, *args: object, **named: object) -> Any:
        if not any(target is lent for lent in self._lent):
            raise PermissionError("the checks never passed this to the program")
        return target(*args, **named)


def judge(sock: socket.socket, checks: str, *, lenient: bool) -> tuple[str, str]:
    """Reason and detail; "passed" only when the checks ran to their end with the program there throughout."""
    witness = Witness(sock, lenient=lenient)
    try:
        tree = ast.parse(checks)
        witness.await_ready()
        names = Names(witness.ask, shadowed_names(tree, witness.ask))
        exec(compile(tree, "<checks>", "exec", dont_inherit=True, optimize=0), names)
        outcome = ("passed", "")
    except Abort as abort:
        outcome = abort.args
    except MemoryError as error:
        outcome = ("memory", _line(error, checks))
    except BaseException as error:
        outcome = ("error" if isinstance(error, Fault) else "failed", _line(error, checks))
    return witness.lost.args if witness.lost else outcome


def _line(error: BaseException, checks: str) -> str:
    """The failing check's text and the exception, for a person to read."""
    at, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<checks>":
            at = trace.tb_lineno
        trace = trace.tb_next
    lines = checks.splitlines()
    where = f"line {at}: {lines[at - 1].strip()}: " if at and at <= len(lines) else ""
    return f"{where}{type(error).__name__}: {error}"[:_DETAIL_LIMIT]


def main(sock: socket.socket, checks: str, verdict: int, *, lenient: bool) -> bool:
    """Write the verdict; True when the program went away, so that its end is worth looking at."""
    reason, detail = judge(sock, checks, lenient=lenient)
    os.write(verdict, json.dumps([reason, detail[:_DETAIL_LIMIT]]).encode())
    return reason == "gone"
