"""Compile a constraint in a process of its own, with limits of time and memory.

A server must not trust what clients send: a small pattern can have a huge automaton. `compile_in_worker` starts
`python -m voidpad.constrain.compile_worker`, hands it the request and kills it when it takes too long.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

from voidpad.constrain.constraint import (
    Constraint,
    TokenAutomaton,
    cache_folder,
    cache_key,
    compile_constraint,
)
from voidpad.constrain.patterns import ConstraintError
from voidpad.constrain.vocabulary import Vocabulary

_REFUSED = b"refused "  # what the worker writes before a reason


def compile_in_worker(
    constraint: Constraint,
    vocabulary: Vocabulary,
    *,
    seconds: float = 20.0,
    memory: int = 3 << 30,
    folder: Path | None = None,
) -> TokenAutomaton:
    """`compile_constraint` in a process that is killed after `seconds` and may use `memory` bytes of addresses.

    An automaton that is in the cache already is read without a process. Going over a limit is a ConstraintError.
    """
    place = (folder or cache_folder()) / f"{cache_key(constraint, vocabulary)}.npz"
    with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
        return TokenAutomaton.from_bytes(place.read_bytes())
    request = pickle.dumps((constraint, vocabulary, folder, seconds, memory))
    # One thread: each thread of a numerical library reserves addresses of its own.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-P", "-m", "voidpad.constrain.compile_worker"]  # -P: no module of this folder
    try:
        ended = subprocess.run(
            command,
            input=request,
            capture_output=True,
            timeout=seconds,
            env={**os.environ, **threads},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConstraintError(
            f"{constraint}: compiling took more than {seconds:g} s; use smaller bounds.", "time"
        ) from None
    if ended.returncode == 0 and ended.stdout.startswith(_REFUSED):
        keyword, message = pickle.loads(ended.stdout[len(_REFUSED) :])
        raise ConstraintError(message, keyword)
    if ended.returncode:
        raise ConstraintError(
            f"{constraint}: compiling needed more than {memory >> 20} MB or {seconds:g} s; use smaller bounds.",
            "memory",
        )
    return TokenAutomaton.from_bytes(ended.stdout)


def _serve() -> None:
    """Read a request from standard input, answer on standard output."""
    constraint, vocabulary, folder, seconds, memory = pickle.load(sys.stdin.buffer)
    with suppress(ImportError):  # Windows has no such limits; the time limit holds there too
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    try:
        answer = compile_constraint(constraint, vocabulary, folder=folder).to_bytes()
    except ConstraintError as error:
        answer = _REFUSED + pickle.dumps((error.keyword, str(error)))
    except (MemoryError, RecursionError):
        sys.exit(1)
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    _serve()
