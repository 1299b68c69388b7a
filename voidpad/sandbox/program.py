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

from voidpad.sandbox.wire import ChannelClosed, Peer, ProtocolError


def main(sock: socket.socket, program: str) -> None:
    sys.argv = ["program"]
    os.system = _no_other_programs  # which would only return a number
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module
    peer = _ChecksConnection(sock, vars(module))
    try:
        exec(compile(program, "<program>", "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        peer.report(error)
        return
    peer.report(None)
    try:
        peer.serve_forever()
    except (ChannelClosed, ProtocolError):
        return
    except BaseException as error:  # sys.exit inside a function
        peer.report(error)


def _no_other_programs(command: object) -> int:
    raise PermissionError(1, "Operation not permitted")


class _ChecksConnection(Peer):
    """The program's end of the connection; every object of the program may cross as a handle."""

    def __init__(self, sock: socket.socket, names: dict[str, Any]) -> None:
        super().__init__(sock)
        self.verbs = {
            "name": lambda name: _name(names, name),
            "call": lambda target, *args, **named: target(*args, **named),
            "getattr": getattr, "setattr": setattr, "delattr": delattr, "getitem": operator.getitem,
            "setitem": operator.setitem, "delitem": operator.delitem, "iter": iter, "next": next, "len": len,
            "bool": bool, "str": str, "repr": repr,
        }  # fmt: skip

    def make_remote(self, label: str) -> object:
        return _Callback(self)


class _Callback:
    """Stands for a function or an iterator of the checks; using it sends a request to the checks' process."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __call__(self, *args: object, **named: object) -> Any:
        return self._peer.ask("call", self, *args, **named)

    def __iter__(self) -> "_Callback":
        return self

    def __next__(self) -> Any:
        return self._peer.ask("next", self)


def _name(names: dict[str, Any], name: str) -> tuple[str, Any]:
    if name not in names:
        return "missing", None
    value = names[name]
    return ("module", value.__name__) if isinstance(value, types.ModuleType) else ("value", value)
