"""The program's process: runs the untrusted program, then does what the checks ask for.

Nothing that this process sends is trusted. A program that rewrites this module while it runs gains only what it had
before: the choice of the values it returns.
"""

import operator
import os
import socket
import sys
import types
from typing import Any

from voidpad.sandbox.wire import ChannelClosed, Exchange, Peer, ProtocolError


def main(sock: socket.socket, program: str) -> None:
    """Answer the checks, whose first request is to `run` the program, until they close the connection."""
    sys.argv = ["program"]
    os.system = _no_other_programs  # which would only return a number
    module = sys.modules["candidate"] = types.ModuleType("candidate")
    names = vars(module)
    peer = ChecksConnection(sock, {
        "run": lambda: exec(compile(program, "<program>", "exec", dont_inherit=True), names),
        "name": lambda name: _look_up(names, name),
        "call": lambda target, *args, **named: target(*args, **named),
        "getattr": getattr, "setattr": setattr, "delattr": delattr, "getitem": operator.getitem,
        "setitem": operator.setitem, "delitem": operator.delitem, "iter": iter, "next": next, "len": len,
        "bool": bool, "str": str, "repr": repr, "changed_late": lambda: peer.changed_late(),
    })  # fmt: skip
    try:
        peer.serve_forever()
    except ChannelClosed:
        return
    except ProtocolError as error:
        peer.send(Exchange(peer), "opaque", f"the result cannot cross: {error}")
    except BaseException as error:  # such as sys.exit in a function
        reason = "memory" if isinstance(error, MemoryError) else "exited"
        peer.send(Exchange(peer), reason, f"{type(error).__name__}: {error}")


def _no_other_programs(command: object) -> int:
    raise PermissionError(1, "Operation not permitted")


def _look_up(names: dict[str, Any], name: str) -> tuple[str, Any]:
    """What kind of thing a global name of the program is, and its value; a module's name stands for the module."""
    if name not in names:
        return "missing", None
    value = names[name]
    return ("module", value.__name__) if isinstance(value, types.ModuleType) else ("value", value)


class ChecksConnection(Peer):
    """The program's end of the connection; every object of the program may cross as a handle."""

    def make_remote(self, label: str) -> object:
        return Callback(self)


class Callback:
    """Stands for a function or an iterator of the checks; using it sends a request to the checks' process."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __call__(self, *args: object, **named: object) -> Any:
        return self._peer.ask("call", self, *args, **named)

    def __iter__(self) -> "Callback":
        return self

    def __next__(self) -> Any:
        return self._peer.ask("next", self)
