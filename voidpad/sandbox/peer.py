"""Remote calls in both directions between the program's process and the checks' process."""

import builtins
from collections.abc import Callable
from typing import Any

from voidpad.sandbox.wire import Channel, Decoder, Encoder, ProtocolError, changed, room_for_nesting, snapshot

_TEXT_LIMIT = 1000
UNCROSSABLE = "Uncrossable"


class Peer:
    """One end of the connection.

    An object that cannot be sent by value stays in this process, in `_kept`, and the other side gets its number as
    a handle. If the other side changes an argument in place, the original is changed as well, and a container that
    is sent back arrives as the same object: a program that sorts its argument and returns it behaves as usual.
    """

    def __init__(self, channel: Channel, verbs: dict[str, Callable[..., Any]], *, keep: Callable[[object], bool],
                 remote: Callable[[str], object]) -> None:  # fmt: skip
        self._channel, self._verbs, self._keep, self._remote = channel, verbs, keep, remote
        self._kept: list[object] = []
        self._number: dict[int, int] = {}
        self._remotes: dict[int, object] = {}
        self._handle_of: dict[int, int] = {}

    def ask(self, verb: str, *args: object, **named: object) -> Any:
        """Call `verb` on the other side. An exception there is raised here; changes to `args` are made here."""
        sent = Encoder(self._export)
        with room_for_nesting():
            self._channel.send(["do", verb, [sent.encode(a) for a in args],
                                [[k, sent.encode(v)] for k, v in named.items()]])  # fmt: skip
        while (message := self._message())[0] == "do":
            self._serve(message)
        error, result = self._outcome(message, sent.shared)
        if error is not None:
            raise error
        return result

    def _outcome(self, message: list[Any], shared: list[Any]) -> tuple[BaseException | None, Any]:
        received = Decoder(self._import, shared)
        outcome, value, changes = message
        try:
            with room_for_nesting():
                result = received.decode(value)
                for n, body in changes:
                    received.fill(shared[n], body)
            return (exception_from(*result), None) if outcome == "raise" else (None, result)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ProtocolError(f"a malformed answer ({type(error).__name__}: {error})"[:200]) from None

    def serve_forever(self) -> None:
        while True:
            self._serve(self._message())

    def report(self, error: BaseException) -> None:
        """Send, instead of the ready message, the exception that stopped the program."""
        self._channel.send(["raise", Encoder(self._export).encode(describe(error)), []])

    def ready(self) -> None:
        self._channel.send(["ok", None, []])

    def await_ready(self) -> None:
        message = self._message()
        if message[0] == "do":
            raise ProtocolError("a request before the program was ready")
        error, _ = self._outcome(message, [])
        if error is not None:
            raise error

    def _message(self) -> list[Any]:
        with room_for_nesting():
            message = self._channel.receive()
        sizes = {"do": 4, "ok": 3, "raise": 3}
        if type(message) is not list or not message or sizes.get(str(message[0])) != len(message):
            raise ProtocolError("a message of no known form")
        return message

    def _serve(self, message: list[Any]) -> None:
        received = Decoder(self._import)
        verb = self._verbs.get(str(message[1]))
        if message[0] != "do" or verb is None:
            raise ProtocolError(f"a request that is not served ({str(message[1])[:40]})")
        with room_for_nesting():
            args = [received.decode(a) for a in message[2]]
            named = {str(k): received.decode(v) for k, v in message[3]}
        before = snapshot(received.shared)
        try:
            outcome, value = "ok", verb(*args, **named)
        except Exception as error:
            outcome, value = "raise", describe(error)
        self._answer(outcome, value, received.shared, before)

    def _answer(self, outcome: str, value: object, shared: list[Any], before: list[Any]) -> None:
        answer = Encoder(self._export, shared)
        try:
            with room_for_nesting():
                encoded = answer.encode(value)
                changes = [[n, answer.body(shared[n])] for n in changed(shared, before)]
                self._channel.send([outcome, encoded, changes])
        except ProtocolError as error:
            refusal = ((UNCROSSABLE,), (), f"the result cannot cross: {error}")
            self._channel.send(["raise", Encoder(self._export).encode(refusal), []])

    def _export(self, value: object) -> list[Any]:
        if id(value) in self._handle_of:
            return ["yours", self._handle_of[id(value)]]
        if not self._keep(value):
            raise ProtocolError(f"the checks pass a {type(value).__name__}, which cannot cross as plain data")
        if id(value) not in self._number:
            self._number[id(value)] = len(self._kept)
            self._kept.append(value)
        return ["mine", self._number[id(value)], type(value).__name__]

    def _import(self, tagged: list[Any]) -> object:
        if tagged[0] == "yours":
            return self._kept[tagged[1]]
        if tagged[0] != "mine":
            raise ProtocolError(f"a value with an unknown tag ({str(tagged[0])[:40]})")
        handle = int(tagged[1])
        if handle not in self._remotes:
            remote = self._remotes[handle] = self._remote(str(tagged[2])[:80])
            self._handle_of[id(remote)] = handle
        return self._remotes[handle]


class ProgramError(Exception):
    """A base of every exception that came from the program's process."""


def describe(error: BaseException) -> tuple[Any, ...]:
    """An exception as plain data: the names of its class and bases, its arguments as text or numbers, its text."""
    names = tuple(kind.__name__ for kind in type(error).__mro__ if kind is not object)
    args = tuple(a if isinstance(a, int | float | bool | None) else _text(a) for a in error.args[:4])
    return names, args, _text(error)


def _text(value: object) -> str:
    try:
        return str(value)[:_TEXT_LIMIT]
    except Exception as error:
        return f"<unprintable: {type(error).__name__}>"


def exception_from(names: tuple[Any, ...], args: tuple[Any, ...], text: str) -> BaseException:
    """The nearest built-in exception that is also a ProgramError; a ProgramExit for SystemExit and its like."""
    own = names[0] if names and str(names[0]).isidentifier() else "Exception"
    for name in names:
        base = vars(builtins).get(str(name))
        if isinstance(base, type) and issubclass(base, Exception):
            return _make(own, base, args, text)
    return ProgramExit(own, text)


def _make(name: str, base: type[Exception], args: tuple[Any, ...], text: str) -> BaseException:
    kind: type[BaseException] = type(name, (ProgramError, base), {"__str__": lambda self: str(text)})
    try:
        return kind(*args)
    except Exception:  # UnicodeDecodeError and its like insist on their own arguments
        plain: type[BaseException] = type(name, (ProgramError, Exception), {})
        return plain(text)


class ProgramExit(BaseException):
    """The program ended itself (sys.exit, KeyboardInterrupt); a BaseException, which checks do not catch."""
