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

from voidpad.sandbox.wire import Exchange, Peer, Stopped


def main(sock: socket.socket, program: str) -> None:
    """Answer the checks, whose first request is to `run` the program, until they close the connection."""
    sys.argv = ["program"]
    os.system = _no_other_programs  # which would only return a number
    module = sys.modules["candidate"] = types.ModuleType("candidate")
    names = vars(module)
    peer = Peer(sock, {
        "run": lambda: exec(compile(program, "<program>", "exec", dont_inherit=True), names),
        "name": lambda name: _look_up(names, name),
        "call": lambda target, *args, **named: target(*args, **named),
        "getattr": getattr, "setattr": setattr, "delattr": delattr, "getitem": operator.getitem,
        "setitem": operator.setitem, "delitem": operator.delitem, "iter": iter, "next": next, "len": len,
        "bool": bool, "str": str, "repr": repr, "hash": hash, "changed_late": lambda: peer.changed_late(),
    })  # fmt: skip
    try:
        peer.serve_forever()
    except Stopped as stopped:
        reason, detail = stopped.args
        if reason == "opaque":
            peer.send(Exchange(peer), reason, f"the result cannot cross: {detail}")
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
