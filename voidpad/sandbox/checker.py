"""The trusted side of a job: runs the checks, asks the program's process for every value they need."""

import ast
import builtins
import importlib
import json
import os
import socket
import types
from collections.abc import Callable
from typing import Any

from voidpad.sandbox.peer import UNCROSSABLE, Fault, Left, Peer, fault
from voidpad.sandbox.remote import Abort, Remote
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


class Witness:
    """The program, as the checks see it: it answers, and once it is lost or breaks the form it stays lost."""

    def __init__(self, sock: socket.socket, *, lenient: bool) -> None:
        self.lost: Abort | None = None
        self.lenient = lenient
        self._lent: list[object] = []
        self._peer = Peer(
            Channel(sock),
            {"call": self._call_back},
            keep=self._lend,
            remote=lambda label: Remote(self, label),
        )

    def give_up(self, reason: str, detail: str) -> Abort:
        """What to raise, now and at every later question, so that no check can catch it away."""
        self.lost = self.lost or Abort(reason, detail)
        return self.lost

    def ask(self, verb: str, *args: object, **named: object) -> Any:
        try:
            return self._guard(lambda: self._peer.ask(verb, *args, **named))
        except StopIteration as error:
            if verb == "next":
                raise
            # Raised by a call it would quietly end a loop of the checks, as Python's generators know too.
            raise fault(("RuntimeError",), (), f"the program raised StopIteration: {error}") from None

    def await_ready(self) -> None:
        self._guard(self._peer.await_ready)

    def _guard(self, act: Callable[[], Any]) -> Any:
        if self.lost is None:
            try:
                return act()
            except Gone:
                self.give_up("gone", "the program ended before its checks did")
            except Left as left:
                name, text = left.args
                self.give_up("opaque" if name == UNCROSSABLE else "exited", f"{name}: {text}")
            except BrokenWire as error:
                self.give_up("opaque", str(error))
        raise self.lost or AssertionError("unreachable")

    def _lend(self, value: object) -> bool:
        """Functions of the checks may be called by the program; nothing else of theirs is in its reach."""
        if isinstance(value, _FUNCTIONS):
            self._lent.append(value)
        return isinstance(value, _FUNCTIONS)

    def _call_back(self, target: Any, *args: object, **named: object) -> Any:
        if not any(target is lent for lent in self._lent):
            raise PermissionError("the checks never passed this to the program")
        return target(*args, **named)


class Names(dict):
    """The checks' global names: their own, then Python's, then whatever the program defines."""

    def __init__(self, witness: Witness, shadowed: frozenset[str]) -> None:
        super().__init__(__name__="checks", __builtins__=builtins)
        self._witness, self._shadowed = witness, shadowed

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) and name not in self._shadowed:
            return getattr(builtins, name)
        kind, value = self._witness.ask("name", name)
        if kind == "module" and value in _MODULES:
            return importlib.import_module(value)
        if kind == "module":
            raise self._witness.give_up("opaque", f"the checks need the module {value!r}: import it there")
        if kind == "missing":
            raise NameError(f"name {name!r} is not defined by the program")
        return value


def _shadowed_names(tree: ast.Module, witness: Witness) -> frozenset[str]:
    """The one built-in name that the checks take from the program, if any.

    A program that defines its own `abs` must not judge itself with it, yet one benchmark task asks for a
    function called `sum`. So a built-in name is the program's only when it is the sole name the checks use
    that the program defines.
    """
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    defined = {str(name) for name in witness.ask("defines", sorted(used))} & used
    return frozenset(defined) if len(defined) == 1 and hasattr(builtins, *defined) else frozenset()


def judge(sock: socket.socket, checks: str, *, lenient: bool) -> tuple[str, str]:
    """Reason and detail; "passed" only when the checks ran to their end with the program there throughout."""
    witness = Witness(sock, lenient=lenient)
    try:
        tree = ast.parse(checks)
        witness.await_ready()
        names = Names(witness, _shadowed_names(tree, witness))
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
    try:
        message = str(error)
    except BaseException:  # the message holds a Remote, whose text is the program's to refuse
        message = "<unprintable>"
    return f"{where}{type(error).__name__}: {message}".removesuffix(": ")[:_DETAIL_LIMIT]


def main(sock: socket.socket, checks: str, verdict: int, *, lenient: bool) -> bool:
    """Write the verdict; True when the program went away, so that its end is worth looking at."""
    reason, detail = judge(sock, checks, lenient=lenient)
    os.write(verdict, json.dumps([reason, detail[:_DETAIL_LIMIT]]).encode())
    return reason == "gone"
