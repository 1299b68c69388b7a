"""Serialization between two processes that do not trust each other.

Values of built-in types are sent by value, as JSON with tags. Any other object is sent as a handle: a number that
only the process that has the object can resolve. Decoding creates objects of built-in types and nothing else, so
no class, method or comparison of the sender ever runs on the receiving side.
"""

import importlib
import json
import socket
import struct
import sys
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any

FRAME_LIMIT = 16 << 20
_RECURSION = 6000  # Python frames; about 2,000 nested containers, and little enough for the C stack
_BIG = 1 << 4096  # larger integers cross in hexadecimal: decimal text of that length is refused by Python
_TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range,
                 type(None))
}  # fmt: skip
_DIRECT = frozenset({bool, str, float, type(None)})
_MUTABLE: dict[str, type] = {
    "list": list, "dict": dict, "set": set, "bytearray": bytearray, "deque": deque, "Counter": Counter,
    "OrderedDict": OrderedDict,
}  # fmt: skip
_TAG = {kind: tag for tag, kind in _MUTABLE.items()}
_PAIRS = ("dict", "Counter", "OrderedDict")
_VIEWS: dict[type, tuple[str, Callable[[list[Any]], Any]]] = {
    type({}.keys()): ("keys", lambda items: dict.fromkeys(items).keys()),
    type({}.values()): ("values", lambda items: dict(enumerate(items)).values()),
    type({}.items()): ("items", lambda items: dict(items).items()),
}
_VIEW_OF = dict(_VIEWS.values())


@contextmanager
def room_for_nesting() -> Iterator[None]:
    """While data is encoded or decoded, allow deeper recursion than the program or the checks may use."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(max(usual, _RECURSION))
    try:
        yield
    except RecursionError:
        raise ProtocolError("a value nested too deeply to be sent") from None
    finally:
        sys.setrecursionlimit(usual)


class ProtocolError(Exception):
    """A message that is malformed, or a value that cannot be sent."""


class ChannelClosed(Exception):
    """The other process has closed the connection or exited."""


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

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            try:
                part = self._sock.recv(min(count, 1 << 20))
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not part:
                raise ChannelClosed("the other side closed the channel")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class Encoder:
    """Encodes the values of one message. `shared` lists the mutable containers in the order of encoding, which is
    also the order of decoding, so that a container can be referred to by its number."""

    def __init__(self, handle: Callable[[object], list[Any]], shared: list[Any] | None = None) -> None:
        self._handle = handle
        self.shared = list(shared or ())
        self._number = {id(value): n for n, value in enumerate(self.shared)}

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind is str and len(value) > FRAME_LIMIT:  # before the work of escaping it
            raise ProtocolError(f"a text of {len(value)} characters; at most {FRAME_LIMIT} cross")
        if kind in _DIRECT:
            return value
        if kind is int:
            return value if -_BIG < value < _BIG else ["int", hex(value)]
        if id(value) in self._number:
            return ["@", self._number[id(value)]]
        if kind in _TAG:
            self._number[id(value)] = len(self.shared)
            self.shared.append(value)
            return [_TAG[kind], *self.body(value)]
        if kind is tuple or kind is frozenset:
            return [kind.__name__, *map(self.encode, value)]
        return self._scalar(value, kind)

    def body(self, value: Any) -> list[Any]:
        """The encoded contents of a mutable container."""
        kind = type(value)
        if kind is bytearray:
            return [value.hex()]
        if _TAG[kind] in _PAIRS:
            return [self.encode(x) for pair in value.items() for x in pair]
        head = [value.maxlen] if kind is deque else []
        return head + [self.encode(x) for x in value]

    def _scalar(self, value: Any, kind: type) -> list[Any]:
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind is memoryview and value.c_contiguous and value.ndim == 1:
            return ["memoryview", value.format, value.tobytes().hex()]
        if kind is array:
            return ["array", value.typecode, value.tobytes().hex()]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind is range:
            return ["range", *map(self.encode, (value.start, value.stop, value.step))]
        if kind is Decimal:
            return ["Decimal", str(value)]
        if kind is Fraction:
            return ["Fraction", hex(value.numerator), hex(value.denominator)]
        if value is Ellipsis:
            return ["..."]
        if kind is type and value in _TYPES.values():
            return ["type", value.__name__]
        if kind in _VIEWS:
            return [_VIEWS[kind][0], *map(self.encode, value)]
        return self._time(value, kind) or self._subclass(value, kind)

    def _time(self, value: Any, kind: type) -> list[Any] | None:
        if kind is timedelta:
            return ["timedelta", value.days, value.seconds, value.microseconds]
        if kind is date:
            return ["date", value.year, value.month, value.day]
        if kind in (datetime, time):
            zone = self._zone(value)
            return [kind.__name__, value.replace(tzinfo=None).isoformat(), value.fold, zone]
        return self._zone_itself(value) if isinstance(value, tzinfo) else None

    def _zone(self, value: Any) -> list[Any] | None:
        """The time zone of a value; a class that the program defines is sent as the offset at that time."""
        if value.tzinfo is None:
            return None
        offset = value.utcoffset()
        own = self._zone_itself(value.tzinfo)
        return own or (None if offset is None else self._zone_itself(timezone(offset)))

    def _zone_itself(self, zone: tzinfo) -> list[Any] | None:
        if type(zone) is timezone:
            name = zone.tzname(None)
            offset = zone.utcoffset(None)
            plain = name == timezone(offset).tzname(None)
            return ["timezone", offset.days, offset.seconds, offset.microseconds, None if plain else name]
        if type(zone).__module__ == "zoneinfo" and type(zone).__name__ == "ZoneInfo":
            return ["ZoneInfo", str(zone)]
        return None

    def _subclass(self, value: Any, kind: type) -> Any:
        """Subclasses of built-in types (named tuples, defaultdict, IntEnum) are sent as the type they extend."""
        if isinstance(value, int):
            return self.encode(int.__index__(value))
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, float):
            return float.__float__(value)
        base: Any
        for base in (tuple, frozenset):
            if isinstance(value, base):
                return [base.__name__, *map(self.encode, base.__iter__(value))]
        for base in (OrderedDict, Counter, dict):
            if isinstance(value, base):
                return self._pairs(base(), value)
        for base in (list, set, deque):
            if isinstance(value, base):
                return self.encode(base(base.__iter__(value)))
        return self._handle(value)

    def _pairs(self, plain: dict[Any, Any], value: dict[Any, Any]) -> Any:
        for key, item in dict.items(value):
            plain[key] = item
        return self.encode(plain)


class Decoder:
    """Decodes the values of one message; `shared` starts with the containers of the request it answers."""

    def __init__(self, handle: Callable[[list[Any]], object], shared: list[Any] | None = None) -> None:
        self._handle = handle
        self.shared = list(shared or ())

    def decode(self, value: Any) -> Any:
        if type(value) is not list:
            return value if type(value) is not dict else self._refuse(value)
        try:
            return self._tagged(value[0], value[1:])
        except ProtocolError:
            raise
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise ProtocolError(f"a malformed value ({type(error).__name__}: {error})"[:200]) from None

    def _tagged(self, tag: str, items: list[Any]) -> Any:
        if tag in _MUTABLE:
            value = deque(maxlen=items[0]) if tag == "deque" else _MUTABLE[tag]()
            self.shared.append(value)
            return self.fill(value, items)
        if tag == "@":
            return self.shared[items[0]]
        if tag in ("tuple", "frozenset", "range"):
            return _TYPES[tag](*([map(self.decode, items)] if tag != "range" else map(self.decode, items)))
        if tag in _VIEW_OF:
            return _VIEW_OF[tag](list(map(self.decode, items)))
        if tag in _SCALARS:
            return _SCALARS[tag](*items)
        return self._handle([tag, *items])

    def fill(self, value: Any, items: list[Any]) -> Any:
        """Replace the contents of a container by the decoded ones."""
        if type(value) is bytearray:
            value[:] = bytes.fromhex(items[0])
            return value
        start = 1 if type(value) is deque else 0
        plain = [self.decode(x) for x in items[start:]]
        value.clear()
        if _TAG[type(value)] in _PAIRS:
            for key, item in zip(plain[::2], plain[1::2], strict=True):
                value[key] = item
        elif type(value) is set:
            value.update(plain)
        else:
            value.extend(plain)
        return value

    def _refuse(self, value: object) -> Any:
        raise ProtocolError(f"a malformed value ({str(value)[:80]})")


def _zone(parts: list[Any] | None) -> tzinfo | None:
    if parts is None:
        return None
    kind, *rest = parts
    if kind == "ZoneInfo":
        zone: tzinfo = importlib.import_module("zoneinfo").ZoneInfo(*rest)
        return zone
    *offset, name = rest
    if name is None:
        return timezone(timedelta(*offset)) if any(offset) else UTC
    return timezone(timedelta(*offset), name)


_SCALARS: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "complex": complex,
    "Decimal": Decimal,
    "Fraction": lambda top, bottom: Fraction(int(top, 16), int(bottom, 16)),
    "...": lambda: Ellipsis,
    "type": _TYPES.__getitem__,
    "timedelta": timedelta,
    "date": date,
    "datetime": lambda text, fold, zone: datetime.fromisoformat(text).replace(fold=fold, tzinfo=_zone(zone)),
    "time": lambda text, fold, zone: time.fromisoformat(text).replace(fold=fold, tzinfo=_zone(zone)),
    "timezone": lambda *parts: _zone(["timezone", *parts]),
    "ZoneInfo": lambda name: _zone(["ZoneInfo", name]),
    "memoryview": lambda form, text: memoryview(bytes.fromhex(text)).cast(form),
    "array": lambda form, text: array(form, bytes.fromhex(text)),
}


def snapshot(shared: list[Any]) -> list[list[Any] | bytes]:
    """The current contents of each container; `changed` compares them by identity, so no __eq__ is called."""
    return [_contents(value) for value in shared]


def changed(shared: list[Any], before: list[Any]) -> list[int]:
    """The numbers of the containers whose contents are no longer the same objects."""
    return [n for n, old in enumerate(before) if not _same(_contents(shared[n]), old)]


def _contents(value: Any) -> list[Any] | bytes:
    if type(value) is bytearray:
        return bytes(value)
    if isinstance(value, dict):
        return [x for pair in dict.items(value) for x in pair]
    return list(value)


def _same(now: Any, old: Any) -> bool:
    if type(now) is bytes:
        return bool(now == old)
    return len(now) == len(old) and all(a is b for a, b in zip(now, old, strict=True))
