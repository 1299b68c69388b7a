"""From a constraint to its automaton over the tokens of a vocabulary: kept on disk, and made in a process of its own
where clients ask for it, because a small pattern can have a huge automaton.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

from voidpad.constrain.constraint import Constraint
from voidpad.constrain.patterns import ConstraintError
from voidpad.constrain.tokens import TokenAutomaton, Vocabulary, lift
from voidpad.files import atomic_file

_EDITION = 2  # of the compiler; a new one makes stored automata useless
_MOST_FILES = 500  # automata kept on disk


def compile_constraint(
    constraint: Constraint,
    vocabulary: Vocabulary,
    *,
    folder: Path | None = None,
    worker: bool = False,
    seconds: float = 20.0,
    memory: int = 3 << 30,
) -> TokenAutomaton:
    """The automaton of a constraint over a vocabulary, from the cache on disk where it is there.

    `folder` holds the cache, `~/.cache/voidpad/constraints` by default. A constraint whose texts the vocabulary cannot
    write is refused. With `worker`, compiling happens in a process that is killed after `seconds` and may use `memory`
    bytes of addresses; going over a limit is a ConstraintError.
    """
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        folder = Path(home) / "voidpad" / "constraints"
    identity = json.dumps([_EDITION, constraint.kind, constraint.source, vocabulary.digest])
    place = folder / f"{hashlib.sha256(identity.encode()).hexdigest()}.npz"
    with suppress(OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, EOFError):
        automaton = TokenAutomaton.from_bytes(place.read_bytes())
        with suppress(OSError):
            os.utime(place)  # the least recently used file leaves first
        return automaton
    if worker:
        automaton = _in_worker(constraint, vocabulary, seconds, memory)
    else:
        automaton = lift(constraint.automaton(), vocabulary, name=str(constraint))
    with suppress(OSError):  # a folder that cannot be written only costs time at the next call
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(place) as draft:
            draft.write_bytes(automaton.to_bytes())
        files = sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)
        for path in files[:-_MOST_FILES]:
            path.unlink(missing_ok=True)
    return automaton


def _in_worker(constraint: Constraint, vocabulary: Vocabulary, seconds: float, memory: int) -> TokenAutomaton:
    # One thread: each thread of a numerical library reserves addresses of its own.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    code = "from voidpad.constrain.compile import work; work()"
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", code],  # -P: no module of this folder
            input=pickle.dumps((constraint, vocabulary, seconds, memory)),
            capture_output=True,
            timeout=seconds,
            env={**os.environ, **threads},
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise ConstraintError(
            f"{constraint}: compiling took more than {seconds:g} s; use smaller bounds.", "time"
        ) from None
    except subprocess.CalledProcessError:
        raise ConstraintError(
            f"{constraint}: compiling needed more than {memory >> 20} MB or {seconds:g} s; use smaller bounds.",
            "memory",
        ) from None
    answer = pickle.loads(ended.stdout)
    if isinstance(answer, ConstraintError):
        raise answer
    assert isinstance(answer, TokenAutomaton)
    return answer


def work() -> None:
    """The worker: reads a request from standard input, answers with an automaton or a refusal on standard output."""
    constraint, vocabulary, seconds, memory = pickle.load(sys.stdin.buffer)
    with suppress(ImportError):  # Windows has no such limits; the time limit holds there too
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    try:
        answer: object = lift(constraint.automaton(), vocabulary, name=str(constraint))
    except ConstraintError as error:
        answer = error
    except (MemoryError, RecursionError):
        sys.exit(1)
    pickle.dump(answer, sys.stdout.buffer)
