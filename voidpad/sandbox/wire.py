"""What crosses between the program's process and the checks' process: plain data and opaque handles, nothing else.

A message is one line of JSON, `[word, values, containers]`. Text, numbers and None stand for themselves. Every other
value is a list that begins with a tag:

    ["tuple", 1, 2], ["Decimal", "1.10"]    an immutable value, by the arguments that it is made of
    ["@", 0]                                a mutable container: where its contents are in `containers`
    ["type", "int"], ["error", ...]         a class of plain data; an exception (see below)
    ["mine", 3, "Node"], ["yours", 3]       a handle: the number of an object that stays with its owner

`containers` has [class, option, items...] for each, so that data nested deeply is a flat message; an answer has null
for a container of the request that was not changed.

Decoding creates objects of the standard library only, so no class, method or comparison of the sender ever runs on the
receiving side.
"""

import json
import operator
import os
import socket
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

MESSAGE_LIMIT = 16 << 20
_BIG = 1 << 4096  # larger integers cross in hexadecimal: decimal text of that length is refused by Python
_TEXT_LIMIT = 1000
_ENDED = "the program ended before its checks did"


def _by_name(*kinds: Any) -> dict[str, Any]:
    return {kind.__name__: kind for kind in kinds}


_CONTAINERS = _by_name(list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict)
# Immutable types: the arguments that describe a value, and how it is made of them again. The first ones describe
# themselves, for pickle, as a call of their class.
_ROWS: list[tuple[Any, Callable[[Any], Iterable[Any]], Callable[..., Any]]] = [
    *((kind, lambda value: value.__reduce_ex__(4)[1], kind)
      for kind in (date, datetime, time, timedelta, timezone, Decimal, Fraction, range, slice)),
    (tuple, lambda value: value, lambda *items: items),
    (frozenset, lambda value: value, lambda *items: frozenset(items)),
    (bytes, lambda value: [value.hex()], bytes.fromhex),
    (complex, lambda value: [value.real, value.imag], complex),
    (ZoneInfo, lambda value: [value.key], ZoneInfo),
    (array, lambda value: [value.typecode, value.tobytes()], array),
    (type({}.keys()), lambda value: value, lambda *items: dict.fromkeys(items).keys()),
    (type({}.values()), lambda value: value, lambda *items: dict(enumerate(items)).values()),
    (type({}.items()), lambda value: value, lambda *items: dict(items).items()),
]  # fmt: skip
_IMMUTABLE = {row[0].__name__: row for row in _ROWS}
_TYPES = _by_name(bool, int, float, str, type(None), *(row[0] for row in _ROWS)) | _CONTAINERS


class Stopped(BaseException):
    """Nothing more can be asked; carries the verdict's reason and detail. Checks seldom catch a BaseException."""


def _opaque(detail: str) -> Stopped:
    return Stopped("opaque", detail)


@contextmanager
def _well_formed() -> Iterator[None]:
    """Inside, whatever a message makes Python stumble over is an error of the message."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise _opaque(f"a malformed message ({type(error).__name__}: {error})"[:200]) from None


class Exchange:
    """The values of one request and of its answer, which may refer to the containers of the request.

    So a container that the other side changed during the call is changed on this side too, and one that comes back
    is the same object: a program that sorts its argument and returns it behaves as usual.
    """

    def __init__(self, peer: "Peer") -> None:
        self._peer = peer
        self._containers: list[Any] = []
        self._number: dict[int, int] = {}  # by the id of a container, its place among them
        self._seen: list[list[Any]] = []  # what each held when it crossed last

    def pack(self, values: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        """The values and the contents of all containers as JSON; null for what the other side has already."""
        plain = [self._encode(value) for value in values]
        contents: list[Any] = []
        for number, container in enumerate(self._containers):  # encoding one may add others
            items = _items(container)
            if number < len(self._seen) and _same(items, self._seen[number]):
                contents.append(None)
            else:
                head = [type(container).__name__, self._encode(_option(container))]
                contents.append(head + [self._encode(item) for item in items])
        self._seen = [_items(container) for container in self._containers]
        return plain, contents

    def unpack(self, values: list[Any], contents: list[Any]) -> list[Any]:
        for kind, option, *_ in contents[len(self._containers) :]:
            self._add(_empty_container(kind, self._decode(option)))
        for container, content in zip(self._containers, contents, strict=True):
            if content is not None:
                _refill(container, [self._decode(item) for item in content[2:]])
        self._seen = [_items(container) for container in self._containers]
        return [self._decode(value) for value in values]

    def crossed(self) -> Iterable[tuple[Any, list[Any]]]:
        """Each container, and what it held when it crossed last."""
        return zip(self._containers, self._seen, strict=True)

    def _add(self, container: Any) -> None:
        self._number[id(container)] = len(self._containers)
        self._containers.append(container)

    def _encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in (bool, str, float, type(None)):
            return value
        if kind is int:
            return value if -_BIG < value < _BIG else ["int", hex(value)]
        name = kind.__name__
        if _CONTAINERS.get(name) is kind:
            if id(value) not in self._number:
                self._add(value)
            return ["@", self._number[id(value)]]
        if name in _IMMUTABLE and _IMMUTABLE[name][0] is kind:
            zone = getattr(value, "tzinfo", None)
            if type(zone) not in (timezone, ZoneInfo, type(None)):  # a class of the program's own
                value = value.replace(tzinfo=timezone(value.utcoffset()))
            return [name, *map(self._encode, _IMMUTABLE[name][1](value))]
        if kind is type and value in _TYPES.values():
            return ["type", value.__name__]
        if kind is type and issubclass(value, Exception):
            return ["exception", *_class_names(value)]
        if issubclass(kind, Exception):
            return ["error", *map(self._encode, _described(value))]
        if _is_named_tuple(kind):
            return ["namedtuple", name, list(kind._fields), *map(self._encode, tuple.__iter__(value))]
        return self._peer.handle_for(value)

    def _decode(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        tag, *items = value
        if tag == "int":
            return int(items[0], 16)
        if tag == "@":
            return self._containers[items[0]]
        if tag in ("mine", "yours"):
            return self._peer.object_behind(*value)
        if tag == "type":
            return _TYPES[items[0]]
        if tag == "exception":
            return exception_class(items, raised=False)
        if tag == "error":
            return exception_from(*map(self._decode, items))
        if tag == "namedtuple":
            name, fields, *items = items
            return namedtuple(name, fields)(*map(self._decode, items))
        return _IMMUTABLE[tag][2](*map(self._decode, items))


def _items(container: Any) -> list[Any]:
    """The contents of a container; of a dictionary, its keys and values by turns."""
    if isinstance(container, dict):
        return [x for pair in container.items() for x in pair]
    return list(container)


def _same(items: list[Any], before: list[Any]) -> bool:
    """By identity, so that no __eq__ is called."""
    return len(items) == len(before) and all(map(operator.is_, items, before))


def _option(container: Any) -> Any:
    """What a container is made with, besides its contents."""
    if type(container) is deque:
        return container.maxlen
    return container.default_factory if type(container) is defaultdict else None


def _empty_container(kind: str, option: Any) -> Any:
    if kind == "deque":
        return deque(maxlen=option)
    return defaultdict(option) if kind == "defaultdict" else _CONTAINERS[kind]()


def _refill(container: Any, items: list[Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        for key, value in zip(items[::2], items[1::2], strict=True):
            container[key] = value
    elif isinstance(container, set):
        container.update(items)
    else:
        container.extend(items)


def _is_named_tuple(kind: Any) -> bool:
    """Whether a class is a named tuple that adds no method; one that does stays behind a handle."""
    if not issubclass(kind, tuple) or not hasattr(kind, "_fields"):
        return False
    own = [base for base in kind.__mro__ if base not in (tuple, object)]
    return {name for base in own for name in vars(base) if not name.startswith("_")} == set(kind._fields)


# Exceptions cross as the names of their class and its bases, their arguments, attributes and text.


def _described(error: BaseException) -> tuple[Any, ...]:
    try:
        text = str(error)[:_TEXT_LIMIT]
    except Exception as unprintable:
        text = f"<unprintable: {type(unprintable).__name__}>"
    return _class_names(type(error)), error.__reduce__()[1], vars(error), text


def _class_names(kind: type) -> tuple[str, ...]:
    return tuple(f"{base.__module__}.{base.__name__}" for base in kind.__mro__)


_own_classes: dict[tuple[str, ...], type[Exception]] = {}


def exception_class(names: Iterable[str], *, raised: bool) -> type[Exception]:
    """The class for an exception of the program, the same one each time: Python's own if it is one of the standard
    library, else a new subclass of the nearest of these. Of the classes that the checks could catch their own
    failure with, the program can raise instances, but not supply the class."""
    names = tuple(map(str, names))
    known = [kind for kind in map(_standard_exception, names) if kind is not None]
    if not known:
        raise TypeError("an exception without a class")
    if known[0] is _standard_exception(names[0]) and (raised or known[0] not in (Exception, AssertionError)):
        return known[0]
    methods = {"__str__": lambda error: error.__dict__.get("text") or Exception.__str__(error)}
    return _own_classes.setdefault(names, type(names[0].rpartition(".")[2], (known[0],), methods))


def _standard_exception(name: str) -> type[Exception] | None:
    module, _, own_name = name.rpartition(".")
    if module.partition(".")[0] not in sys.stdlib_module_names or module not in sys.modules:
        return None
    kind = vars(sys.modules[module]).get(own_name)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


def exception_from(names: Iterable[str], args: Any, attributes: Any, text: str) -> Exception:
    """An exception like the described one."""
    kind = exception_class(names, raised=True)
    try:
        error = kind(*args)
    except Exception:  # some classes insist on arguments that did not cross as they were
        error = Exception(f"{kind.__name__}: {text}")
    error.__dict__.update(attributes, text=str(text))
    return error


def is_programs(error: BaseException) -> bool:
    """Whether an exception was raised in the program's process."""
    return "text" in error.__dict__


class Peer:
    """One end of the connection: remote calls in both directions.

    An object that cannot be sent by value stays in this process, in `kept`, and the other side gets its number as
    a handle. Changes of a container after the call it was passed in do not cross.
    """

    def __init__(self, sock: socket.socket, verbs: dict[str, Callable[..., Any]]) -> None:
        self._sock = sock
        self._incoming = os.fdopen(sock.fileno(), "rb", closefd=False)
        self.verbs = verbs  # what the other side may ask for
        self.kept: list[object] = []
        self._remotes: dict[int, object] = {}  # by number, what stands for an object of the other side
        self._handles: dict[int, list[Any]] = {}  # by the id of one of either
        self._past: dict[int, tuple[Any, list[Any]]] = {}  # containers that crossed, and what they held then

    def may_keep(self, value: object) -> bool:
        """Whether the other side may get a handle for a value of this one."""
        return True

    def make_remote(self, label: str) -> object:
        """The stand-in for an object of the other side, whose class has this name."""
        return Callback(self)

    def ask(self, verb: str, *args: object, **named: object) -> Any:
        """Have the other side do `verb`. An exception there is raised here."""
        exchange = Exchange(self)
        self.send(exchange, "do", verb, args, tuple(named.items()))
        while (message := self._receive())[0] == "do":
            self._answer(message)
        word, values, contents = message
        with _well_formed():
            (value,) = exchange.unpack(values, contents)
        self._remember(exchange)
        if word == "ok":
            return value
        raise value if word == "raise" else Stopped(word, str(value))

    def serve_forever(self) -> None:
        while True:
            self._answer(self._receive())

    def changed_late(self) -> bool:
        """Whether a container of a recent call was changed on this side after the call."""
        return any(not _same(_items(container), items) for container, items in self._past.values())

    def send(self, exchange: Exchange, word: str, *values: object) -> None:
        try:
            line = json.dumps([word, *exchange.pack(values)]).encode() + b"\n"
        except RecursionError:
            raise _opaque("a value nested too deeply to be sent") from None
        if len(line) > MESSAGE_LIMIT:
            raise _opaque(f"a value of {len(line)} bytes; at most {MESSAGE_LIMIT} cross")
        try:
            self._sock.sendall(line)
        except OSError:
            raise Stopped("gone", _ENDED) from None

    def _receive(self) -> tuple[str, list[Any], list[Any]]:
        """The next request (`do`) or answer (`ok`, `raise`, or the reason for which there are no more)."""
        try:
            line = self._incoming.readline(MESSAGE_LIMIT)
        except OSError:
            raise Stopped("gone", _ENDED) from None
        if not line.endswith(b"\n"):
            if len(line) == MESSAGE_LIMIT:
                raise _opaque(f"a message of more than {MESSAGE_LIMIT} bytes")
            raise Stopped("gone", _ENDED)
        with _well_formed():
            word, values, contents = json.loads(line)
        if word not in ("do", "ok", "raise", "opaque", "exited", "memory"):
            raise _opaque("a message of no known form")
        return word, values, contents

    def _answer(self, message: tuple[str, list[Any], list[Any]]) -> None:
        word, values, contents = message
        exchange = Exchange(self)
        with _well_formed():
            verb, args, named = exchange.unpack(values, contents)
            act = self.verbs[verb]
        if word != "do" or type(args) is not tuple or type(named) is not tuple:
            raise _opaque("an answer to nothing that was asked")
        try:
            answer = ("ok", act(*args, **dict(named)))
        except Exception as error:
            answer = ("raise", error)
        self.send(exchange, *answer)
        self._remember(exchange)

    def _remember(self, exchange: Exchange) -> None:
        """Keep the last containers that crossed, for `changed_late`."""
        for container, items in exchange.crossed():
            if len(items) <= 1000:
                self._past[id(container)] = container, items
        while len(self._past) > 32:
            del self._past[next(iter(self._past))]

    def handle_for(self, value: object) -> list[Any]:
        if id(value) not in self._handles:
            if not self.may_keep(value):
                raise _opaque(f"the checks pass a {type(value).__name__}, which cannot cross as plain data")
            self._handles[id(value)] = ["mine", len(self.kept), type(value).__name__]
            self.kept.append(value)
        return self._handles[id(value)]

    def object_behind(self, whose: str, number: int, label: str = "") -> object:
        if whose == "yours":
            return self.kept[number]
        if number not in self._remotes:
            remote = self._remotes[number] = self.make_remote(str(label)[:80])
            self._handles[id(remote)] = ["yours", number]
        return self._remotes[number]


class Callback:
    """Stands, in the program's process, for a function or an iterator of the checks; using it asks them."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __call__(self, *args: object, **named: object) -> Any:
        return self._peer.ask("call", self, *args, **named)

    def __iter__(self) -> "Callback":
        return self

    def __next__(self) -> Any:
        return self._peer.ask("next", self)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name}: in the sandbox a program can call functions of the checks, and no more"
        )
