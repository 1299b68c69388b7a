"""The program's process: runs the untrusted program, then serves the requests of the checks.

Nothing that this process sends is trusted. A program that rewrites this module while it runs gains only what it had
before: the choice of the values it returns.
"""

import operator
import os
import socket
import sys
import types
from typing import Any

from voidpad.sandbox.peer import Peer
from voidpad.sandbox.wire import Channel, ChannelClosed, ProtocolError


def main(sock: socket.socket, program: str) -> None:
    sys.argv = ["program"]
    os.system = _no_other_programs  # which would only return a number
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module
    verbs = _verbs(vars(module))
    peer = Peer(Channel(sock), verbs, keep=lambda value: True, remote=lambda label: _CallBack(peer))
    try:
        exec(compile(program, "<program>", "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        peer.report(error)
        return
    peer.ready()
    try:
        peer.serve_forever()
    except (ChannelClosed, ProtocolError):
        return
    except BaseException as error:  # sys.exit inside a function
        peer.report(error)


def _no_other_programs(command: object) -> int:
    raise PermissionError(1, "Operation not permitted")


class _CallBack:
    """Stands for a function of the checks; calling it sends the call to the checks' process."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __call__(self, *args: object, **named: object) -> Any:
        return self._peer.ask("call", self, *args, **named)


def _verbs(names: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": lambda name: _name(names, name),
        "call": lambda target, *args, **named: target(*args, **named),
        "getattr": getattr, "setattr": setattr, "getitem": operator.getitem, "setitem": operator.setitem,
        "iter": iter, "next": next, "len": len, "bool": bool, "str": str, "repr": repr, "operate": _operate,
    }  # fmt: skip


def _name(names: dict[str, Any], name: str) -> tuple[str, Any]:
    if name not in names:
        return "missing", None
    value = names[name]
    return ("module", value.__name__) if isinstance(value, types.ModuleType) else ("value", value)


def _operate(target: Any, name: str, *args: Any) -> Any:
    """Apply the operator method `name`; comparisons go through Python's rules for reflected operands."""
    word = name.strip("_")
    if word in ("eq", "ne", "lt", "le", "gt", "ge", "contains"):
        return getattr(operator, word)(target, *args)
    if word == "instancecheck":
        return isinstance(args[0], target)
    result = getattr(target, name)(*args)
    if result is NotImplemented:
        raise TypeError(f"{type(target).__name__} has no {name} for these operands")
    return result
