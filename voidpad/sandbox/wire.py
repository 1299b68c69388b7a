"""What crosses between the program's process and the checks' process: plain data and opaque handles, nothing else.

Values of built-in and of a few standard types are sent by value, as JSON with tags. Any other object, such as an
instance of a class of the program, is sent as a handle: a number that only the process that has the object can
resolve. Decoding creates objects of the standard library and nothing else, so no class, method or comparison of the
sender ever runs on the receiving side.
"""

import builtins
import json
import socket
import struct
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

FRAME_LIMIT = 16 << 20
_RECURSION = 6000  # Python frames; about 2,000 nested containers, and little enough for the C stack
_BIG = 1 << 4096  # larger integers cross in hexadecimal: decimal text of that length is refused by Python
_TEXT_LIMIT = 1000
_TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range,
                 type(None))
}  # fmt: skip
_MUTABLE: dict[str, type] = {
    kind.__name__: kind for kind in (list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict)
}
# Immutable values: by type, the plain arguments that describe one, and how it is made of them again. The first ones
# describe themselves, for pickle, as a call of their class.
_SCALARS: dict[type, tuple[Callable[[Any], Iterable[Any]], Callable[..., Any]]] = {
    **{kind: (lambda value: value.__reduce_ex__(4)[1], kind)
       for kind in (date, datetime, time, timedelta, timezone, Decimal, range)},
    bytes: (lambda value: [value.hex()], bytes.fromhex),
    complex: (lambda value: [value.real, value.imag], complex),
    Fraction: (lambda value: [value.numerator, value.denominator], Fraction),
    ZoneInfo: (lambda value: [str(value)], ZoneInfo),
    array: (lambda value: [value.typecode, value.tobytes()], array),
    memoryview: (lambda value: [value.format, value.tobytes()], lambda form, data: memoryview(data).cast(form)),
    type(...): (lambda value: [], lambda: ...),
    type({}.keys()): (lambda value: [list(value)], lambda items: dict.fromkeys(items).keys()),
    type({}.values()): (lambda value: [list(value)], lambda items: dict(enumerate(items)).values()),
    type({}.items()): (lambda value: [list(value)], lambda items: dict(items).items()),
}  # fmt: skip
_SCALAR_OF = {kind.__name__: make for kind, (_, make) in _SCALARS.items()}
# A check that catches one of these would catch its own failure, so a program cannot supply them.
_NEVER_CAUGHT = frozenset({"AssertionError", "Exception", "BaseException"})


class ProtocolError(Exception):
    """A message that is malformed, or a value that cannot be sent."""


class ChannelClosed(Exception):
    """The other process has closed the connection or exited."""


class ProgramExit(BaseException):
    """The program ended itself (sys.exit, KeyboardInterrupt); a BaseException, which checks do not catch."""


@contextmanager
def _room_for_nesting() -> Iterator[None]:
    """While data is encoded or decoded, allow deeper recursion than the program or the checks may use."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(max(usual, _RECURSION))
    try:
        yield
    except RecursionError:
        raise ProtocolError("a value nested too deeply to be sent") from None
    finally:
        sys.setrecursionlimit(usual)


class Channel:
    """Sends and receives JSON messages over a stream socket, each preceded by its length."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, message: object) -> None:
        try:
            body = json.dumps(message, check_circular=False).encode()
        except (RecursionError, ValueError) as error:
            raise ProtocolError(f"a value nested too deeply or too large to cross ({error})") from None
        if len(body) > FRAME_LIMIT:
            raise ProtocolError(f"a value of {len(body)} bytes; at most {FRAME_LIMIT} cross")
        try:
            self._sock.sendall(struct.pack("!I", len(body)) + body)
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def receive(self) -> Any:
        (length,) = struct.unpack("!I", self._exactly(4))
        if length > FRAME_LIMIT:
            raise ProtocolError(f"a message of {length} bytes; at most {FRAME_LIMIT} are read")
        try:
            return json.loads(self._exactly(length))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a message that is not JSON ({error})") from None

    def _exactly(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._sock.recv(min(count - len(data), 1 << 20))
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not part:
                raise ChannelClosed("the other side closed the channel")
            data += part
        return data


class Encoder:
    """Encodes the values of one message. `shared` lists the mutable containers in the order of encoding, which is
    also the order of decoding, so that a container can be referred to by its number."""

    def __init__(self, handle: Callable[[object], list[Any]], shared: Iterable[Any] = ()) -> None:
        self._handle = handle
        self.shared = list(shared)
        self._number = {id(value): n for n, value in enumerate(self.shared)}

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind is str and len(value) > FRAME_LIMIT:  # before the work of escaping it
            raise ProtocolError(f"a text of {len(value)} characters; at most {FRAME_LIMIT} cross")
        if kind in (bool, str, float, type(None)):
            return value
        if kind is int:
            return value if -_BIG < value < _BIG else ["int", hex(value)]
        if id(value) in self._number:
            return ["@", self._number[id(value)]]
        if _MUTABLE.get(kind.__name__) is kind:
            self._number[id(value)] = len(self.shared)
            self.shared.append(value)
            return [kind.__name__, *self.contents(value)]
        if kind is tuple or kind is frozenset:
            return [kind.__name__, *map(self.encode, value)]
        if kind is type and value in _TYPES.values():
            return ["type", value.__name__]
        if kind is type and issubclass(value, Exception):
            return ["exception", *_names(value)]
        if kind in _SCALARS and (kind is not memoryview or (value.c_contiguous and value.ndim == 1)):
            zone = getattr(value, "tzinfo", None)
            if zone is not None and type(zone) not in (timezone, ZoneInfo):  # a class of the program's own
                value = value.replace(tzinfo=timezone(value.utcoffset()))
            return [kind.__name__, *map(self.encode, _SCALARS[kind][0](value))]
        if _is_named_tuple(kind):
            return ["namedtuple", kind.__name__, list(kind._fields), *map(self.encode, tuple.__iter__(value))]
        return self._handle(value)

    def contents(self, value: Any) -> list[Any]:
        """The encoded contents of a mutable container."""
        kind = type(value)
        if kind is bytearray:
            return [value.hex()]
        items = [x for pair in value.items() for x in pair] if isinstance(value, dict) else value
        head = [value.maxlen] if kind is deque else []
        head += [self.encode(value.default_factory)] if kind is defaultdict else []
        return head + [self.encode(x) for x in items]


def _is_named_tuple(kind: Any) -> bool:
    """Whether a class is a named tuple that adds no method; one that does stays behind a handle."""
    if not issubclass(kind, tuple) or not hasattr(kind, "_fields"):
        return False
    own = [base for base in kind.__mro__ if base not in (tuple, object)]
    return {name for base in own for name in vars(base) if not name.startswith("_")} == set(kind._fields)


class Decoder:
    """Decodes the values of one message; `shared` starts with the containers of the request it answers."""

    def __init__(self, handle: Callable[[list[Any]], object], shared: Iterable[Any] = ()) -> None:
        self._handle = handle
        self.shared = list(shared)

    def decode(self, value: Any) -> Any:
        if type(value) is dict:
            raise ProtocolError(f"a malformed value ({str(value)[:80]})")
        if type(value) is not list:
            return value
        try:
            return self._tagged(value[0], value[1:])
        except ProtocolError:
            raise
        except (TypeError, ValueError, LookupError, ArithmeticError, SyntaxError, RecursionError) as error:
            raise ProtocolError(f"a malformed value ({type(error).__name__}: {error})"[:200]) from None

    def _tagged(self, tag: str, items: list[Any]) -> Any:
        if tag in _MUTABLE:
            value = deque(maxlen=items[0]) if tag == "deque" else _MUTABLE[tag]()
            self.shared.append(value)
            return self.fill(value, items)
        if tag == "@":
            return self.shared[items[0]]
        if tag in ("mine", "yours"):
            return self._handle([tag, *items])
        if tag == "int":
            (text,) = items
            return int(text, 16)
        if tag == "type":
            (name,) = items
            return _TYPES[name]
        if tag == "exception":
            return exception_class(tuple(items), raised=False)
        if tag == "namedtuple":
            name, fields, *rest = items
            return namedtuple(name, fields)(*map(self.decode, rest))
        plain = [self.decode(item) for item in items]
        if tag in ("tuple", "frozenset"):
            return _TYPES[tag](plain)
        if tag in _SCALAR_OF:
            return _SCALAR_OF[tag](*plain)
        raise ProtocolError(f"a value with an unknown tag ({str(tag)[:40]})")

    def fill(self, value: Any, items: list[Any]) -> Any:
        """Replace the contents of a container by the decoded ones."""
        if type(value) is bytearray:
            value[:] = bytes.fromhex(items[0])
            return value
        if type(value) is defaultdict:
            value.default_factory = self.decode(items[0])
        plain = [self.decode(x) for x in items[type(value) in (deque, defaultdict) :]]
        value.clear()
        if isinstance(value, dict):
            for key, item in zip(plain[::2], plain[1::2], strict=True):
                value[key] = item
        elif type(value) is set:
            value.update(plain)
        else:
            value.extend(plain)
        return value


# Exceptions


def describe(error: BaseException) -> tuple[Any, ...]:
    """An exception as plain data: the names of its class and bases, its arguments and its text.

    An argument that is neither a number nor a small container is given as text.
    """

    def is_short(value: object) -> bool:
        number = type(value) in (bool, int, float, type(None))
        return number or (isinstance(value, tuple | list | dict | set) and len(value) <= 100)

    args = tuple(value if is_short(value) else _text(value) for value in error.args[:4])
    return _names(type(error)), args, _text(error)


def _names(kind: type) -> tuple[str, ...]:
    return tuple(base.__name__ for base in kind.__mro__ if base is not object)


def _text(value: object) -> str:
    try:
        return str(value)[:_TEXT_LIMIT]
    except Exception as error:
        return f"<unprintable: {type(error).__name__}>"


_classes: dict[tuple[Any, ...], type[Exception]] = {}


def exception_class(names: tuple[Any, ...], *, raised: bool) -> type[Exception]:
    """The class for an exception of the program, the same one each time: Python's own where the names are those of a
    built-in class, else a new subclass of the nearest one. Of the classes that the checks could catch their own
    failure with, the program can raise instances, but not supply the class."""
    known = [vars(builtins).get(str(name)) for name in names]
    bases = [one for one in known if isinstance(one, type) and issubclass(one, Exception)]
    if not bases or not str(names[0]).isidentifier():
        raise ProtocolError("an exception without a class")
    nearest: type[Exception] = bases[0]
    if _names(nearest) == names and (raised or nearest.__name__ not in _NEVER_CAUGHT):
        return nearest
    return _classes.setdefault(names, type(str(names[0]), (nearest,), {"__str__": _own_text}))


def _own_text(error: BaseException) -> str:
    return str(error.__dict__.get("text") or Exception.__str__(error))


def exception_from(names: tuple[Any, ...], args: tuple[Any, ...], text: str) -> BaseException:
    """An exception like the described one, marked as the program's; a ProgramExit for SystemExit and its like."""
    try:
        kind = exception_class(names, raised=True)
    except ProtocolError:
        return ProgramExit(names[0] if names else "Exception", text)
    try:
        error = kind(*args)
    except Exception:  # UnicodeDecodeError and its like insist on their own arguments
        error = Exception(f"{names[0]}: {text}")
    error.__dict__["text"] = str(text)
    return error


def is_programs(error: BaseException) -> bool:
    """Whether an exception was raised in the program's process."""
    return "text" in error.__dict__


# Requests


def _items(value: Any) -> list[Any] | bytes:
    """The contents of a container, which `_same` compares by identity, so that no __eq__ is called."""
    if type(value) is bytearray:
        return bytes(value)
    if isinstance(value, dict):
        return [x for pair in dict.items(value) for x in pair]
    return list(value)


def _same(value: Any, before: list[Any] | bytes) -> bool:
    now = _items(value)
    if isinstance(now, bytes):
        return now == before
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


class Peer:
    """One end of the connection: remote calls in both directions.

    An object that cannot be sent by value stays in this process, in `kept`, and the other side gets its number as
    a handle. If the other side changes an argument in place during the call, the original is changed as well, and
    a container that is sent back arrives as the same object: a program that sorts its argument and returns it
    behaves as usual. Changes after the call do not cross; `late_changes` has a sentence where one was seen.
    """

    verbs: dict[str, Callable[..., Any]]  # what the other side may ask for

    def __init__(self, sock: socket.socket) -> None:
        self._channel = Channel(sock)
        self.kept: list[object] = []
        self._number: dict[int, int] = {}
        self._remotes: dict[int, object] = {}
        self._handle_of: dict[int, int] = {}
        self._past: deque[tuple[Any, Any]] = deque(maxlen=32)  # containers of earlier requests
        self.late_changes: set[str] = set()

    def may_keep(self, value: object) -> bool:
        """Whether the other side may get a handle for a value of this one."""
        return True

    def make_remote(self, label: str) -> object:
        """The stand-in for an object of the other side, whose class has this name."""
        raise NotImplementedError

    def ask(self, verb: str, *args: object, **named: object) -> Any:
        """Call `verb` on the other side. An exception there is raised here; changes to `args` are made here."""
        sent = Encoder(self._export)
        if self._changed_late():
            self.late_changes.add("the checks change a value after they have passed it to the program")
        with _room_for_nesting():
            plain = [[name, sent.encode(value)] for name, value in named.items()]
            self._channel.send(["do", verb, [sent.encode(value) for value in args], plain])
        while (message := self._message())[0] == "do":
            self._serve(message)
        error, result = self._outcome(message, sent.shared)
        self._remember(sent.shared)
        if error is not None:
            raise error
        return result

    def _outcome(self, message: list[Any], shared: list[Any]) -> tuple[BaseException | None, Any]:
        received = Decoder(self._import, shared)
        outcome, value, changes, late = message
        try:
            with _room_for_nesting():
                result = received.decode(value)
                for n, body in changes:
                    received.fill(shared[n], body)
            if late:
                self.late_changes.add(
                    "the program changes a value after the call, and the checks have a copy"
                )
            return (exception_from(*result), None) if outcome == "raise" else (None, result)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ProtocolError(f"a malformed answer ({type(error).__name__}: {error})"[:200]) from None

    def serve_forever(self) -> None:
        while True:
            self._serve(self._message())

    def report(self, error: BaseException | None) -> None:
        """Tell the other side that the program is ready, or which exception stopped it."""
        value = None if error is None else Encoder(self._export).encode(describe(error))
        self._channel.send(["ok" if error is None else "raise", value, [], False])

    def await_ready(self) -> None:
        message = self._message()
        if message[0] == "do":
            raise ProtocolError("a request before the program was ready")
        error, _ = self._outcome(message, [])
        if error is not None:
            raise error

    def _message(self) -> list[Any]:
        """The next request (`do`, verb, arguments, named ones) or answer (`ok` or `raise`, value, changes, late)."""
        with _room_for_nesting():
            message = self._channel.receive()
        if type(message) is not list or len(message) != 4 or message[0] not in ("do", "ok", "raise"):
            raise ProtocolError("a message of no known form")
        return message

    def _serve(self, message: list[Any]) -> None:
        received = Decoder(self._import)
        verb = self.verbs.get(str(message[1]))
        if message[0] != "do" or verb is None:
            raise ProtocolError(f"a request that is not served ({str(message[1])[:40]})")
        with _room_for_nesting():
            args = [received.decode(value) for value in message[2]]
            named = {str(name): received.decode(value) for name, value in message[3]}
        before = [_items(value) for value in received.shared]
        try:
            outcome, value = "ok", verb(*args, **named)
        except Exception as error:
            outcome, value = "raise", describe(error)
        answer = Encoder(self._export, received.shared)
        try:
            with _room_for_nesting():
                encoded = answer.encode(value)
                changes = [
                    [n, answer.contents(received.shared[n])]
                    for n, old in enumerate(before)
                    if not _same(received.shared[n], old)
                ]
            self._channel.send([outcome, encoded, changes, self._changed_late()])
        except ProtocolError as error:
            refusal = (("Uncrossable",), (), f"the result cannot cross: {error}")
            self._channel.send(["raise", Encoder(self._export).encode(refusal), [], False])
        self._remember(answer.shared)

    def _remember(self, shared: list[Any]) -> None:
        self._past.extend((value, _items(value)) for value in shared[:32] if len(value) <= 1000)

    def _changed_late(self) -> bool:
        """Whether a container of an earlier request was changed since; the other side does not see that."""
        late = any(not _same(value, before) for value, before in self._past)
        if late:
            self._past.clear()
        return late

    def _export(self, value: object) -> list[Any]:
        if id(value) in self._handle_of:
            return ["yours", self._handle_of[id(value)]]
        if not self.may_keep(value):
            raise ProtocolError(f"the checks pass a {type(value).__name__}, which cannot cross as plain data")
        if id(value) not in self._number:
            self._number[id(value)] = len(self.kept)
            self.kept.append(value)
        return ["mine", self._number[id(value)], type(value).__name__]

    def _import(self, tagged: list[Any]) -> object:
        if tagged[0] == "yours":
            return self.kept[tagged[1]]
        handle = int(tagged[1])
        if handle not in self._remotes:
            remote = self._remotes[handle] = self.make_remote(str(tagged[2])[:80])
            self._handle_of[id(remote)] = handle
        return self._remotes[handle]
