"""Damage at random, and the bounds within which whatever reads a damaged file must end."""

import copy
import json
import os
import random
import resource
import signal
import struct
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from voidpad.errors import VoidpadError

SECONDS = 120  # for one file, on a busy machine
MEMORY = 2 << 30  # bytes of address space beyond what the process has
ODD = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 1e308, -0.5, "", "x", "\u0000", "<|mask|>", "../..", [], {},
    [None], [[]], {"": {}}, ["q_proj"], "a" * 5000, [1, 2, 3], {"a": 1}, float("nan"),
]  # fmt: skip


class TooSlow(BaseException):
    """Not an Exception, so that no reader takes it for a damaged file."""


@contextmanager
def bounded() -> Iterator[None]:
    """Within this context time and memory are limited; beyond them TooSlow or MemoryError is raised."""

    def late(*_: object) -> None:
        raise TooSlow(f"over {SECONDS} seconds")

    pages = int(Path("/proc/self/statm").read_text().split()[0]) if os.path.exists("/proc/self/statm") else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def reads_or_says_why(read: Callable[[], object], what: str) -> bool:
    """Whether `read` succeeds. An error must be one of ours, in one line."""
    try:
        with bounded():
            read()
        return True
    except VoidpadError as error:
        message = str(error)
        if "\n" in message or len(message) > 2000:
            pytest.fail(f"{what}: not one line: {message[:300]}")
        return False
    except (Exception, GeneratorExit, TooSlow) as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {str(error)[:300]}") from error


def paths_of(value, path=()):
    """The place of every value inside a JSON value."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield (*path, key)
        yield from paths_of(child, (*path, key))


def mutated_json(draw, text):
    """The JSON text with one to three values replaced, removed or added; sometimes with broken bytes."""
    if draw.random() < 0.15:
        data = bytearray(text.encode())
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data[: draw.choice([len(data), draw.randrange(len(data))])])
    values = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        places = list(paths_of(values))
        if not places:
            break
        # Top-level fields are few beside the entries of a vocabulary: choose the depth first.
        depth = draw.choice(sorted({len(place) for place in places}))
        *parents, last = draw.choice([place for place in places if len(place) == depth])
        owner = values
        for key in parents:
            owner = owner[key]
        kind = draw.random()
        if kind < 0.2:
            del owner[last]
        elif kind < 0.3 and isinstance(owner, dict):
            owner[draw.choice(["x", "", "dtype", "quantization_config", "rope_scaling", "auto_map"])] = (
                draw.choice(ODD)
            )
        else:
            owner[last] = copy.deepcopy(draw.choice(ODD))
    return json.dumps(values).encode()


def mutated_tensors(draw, data):
    """The file with bytes of its header changed, its header rewritten, or its end cut."""
    data = bytearray(data)
    (size,) = struct.unpack("<Q", data[:8])
    kind = draw.random()
    if kind < 0.3:
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(8 + size)] = draw.randrange(256)
    elif kind < 0.5:
        del data[draw.randrange(len(data)) :]
    else:
        header = mutated_json(draw, data[8 : 8 + size].decode())
        data = bytearray(struct.pack("<Q", len(header)) + header) + data[8 + size :]
    return bytes(data)


def mutated_bytes(draw: random.Random, data: bytes) -> bytes:
    """A few bytes changed, the end cut, or something foreign put in."""
    damaged = bytearray(data)
    kind = draw.random()
    if kind < 0.1:
        foreign = (
            b"[" * 100_000,
            b"9" * 10_000,
            b"\xff\xfe",
            b"\x00",
            b"",
            b"{",
            b"\xef\xbb\xbf",
            b'{"a": 1}\n',
        )
        return draw.choice(foreign) + (data if draw.random() < 0.3 else b"")
    for _ in range(draw.randint(1, 4)):
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
    return bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])


def mutated_lines(draw: random.Random, data: bytes) -> bytes:
    """JSON lines with one of them mutated, dropped, doubled or moved."""
    if draw.random() < 0.15:
        return mutated_bytes(draw, data)
    lines = data.splitlines()
    at = draw.randrange(len(lines))
    kind = draw.random()
    if kind < 0.7:
        lines[at] = mutated_json(draw, lines[at].decode())
    elif kind < 0.8:
        del lines[at]
    elif kind < 0.9:
        lines.insert(draw.randrange(len(lines)), lines[at])
    else:
        draw.shuffle(lines)
    return b"\n".join(lines) + b"\n"


def mutated_toml(draw: random.Random, data: bytes) -> bytes:
    """A TOML text with some values replaced, removed or added, or with broken bytes."""
    if draw.random() < 0.15:
        return mutated_bytes(draw, data)
    mutated = mutated_json(draw, json.dumps(tomllib.loads(data.decode())))
    try:
        values = json.loads(mutated)
    except ValueError:
        return mutated
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in values.items()).encode()


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if value is None:
        return '"none"'  # TOML has no null
    if isinstance(value, float):
        return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.get(json.dumps(value), repr(value))
    return json.dumps(value)
