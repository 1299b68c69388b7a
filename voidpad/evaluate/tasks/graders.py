"""Graders as lm-eval's filters, which see a whole task at once. No answer stops a run.

A grader is a function of one answer and its item. A grader that raises has met an answer that cannot be read,
which is a wrong answer. Graders whose time or memory depends on what a model wrote (parsers, computer algebra) run
in child processes with hard limits: Python cannot interrupt a library that computes a huge number.
"""

import importlib
import itertools
import json
import os
import queue
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from typing import Any

from voidpad.errors import VoidpadError

Doc = dict[str, Any]
Filter = Callable[[Sequence[Sequence[str]], Sequence[Doc]], list[Any]]
Grader = Callable[[str, Doc], Any]  # gives a text, or a dataclass of JSON values
Wrong = Callable[[str], Any]  # from a reason to what the grader gives for a wrong answer
SECONDS = 20.0  # for one answer; more than the sum of math-verify's own limits
MEMORY = 4 << 30  # bytes for one child process
PROCESSES = 8  # at most, and not more than there are cores
_START_SECONDS = 120.0


def no_program(reason: str) -> str:
    """A program that fails with the reason why the answer could not be made into one."""
    return f"raise ValueError({'the answer is not a program: ' + reason!r})"


def each(grade: Grader, wrong: Wrong) -> Filter:
    """A filter that hands the first (only) answer of every item, with its item, to `grade`, in this process."""

    def apply(answers: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[Any]:
        return [guarded(grade, answer[0], doc, wrong) for answer, doc in zip(answers, docs, strict=True)]

    return apply


def isolated(grade: Grader, wrong: Wrong, *, seconds: float = SECONDS) -> Filter:
    """The same in child processes: an answer that takes longer than `seconds` or too much memory is wrong.

    The child imports `grade` by its module and name, so `grade` must be a function of a module.
    """

    def apply(answers: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[Any]:
        with shared_processes() as started:
            count = max(1, min(len(answers), len(os.sched_getaffinity(0)), PROCESSES))
            processes = started.setdefault(grade.__module__, [])
            processes += [_GraderProcess(grade.__module__) for _ in range(count - len(processes))]
            idle: queue.SimpleQueue[_GraderProcess] = queue.SimpleQueue()
            for process in processes[:count]:
                idle.put(process)

            def judge(answer: Sequence[str], doc: Doc) -> Any:
                process = idle.get()
                try:
                    return process.grade(grade.__name__, answer[0], doc, wrong=wrong, seconds=seconds)
                finally:
                    idle.put(process)

            with ThreadPoolExecutor(count) as pool:
                try:
                    waiting = [pool.submit(judge, *pair) for pair in zip(answers, docs, strict=True)]
                    return [one.result() for one in waiting]
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    for process in processes:
                        process.close()
                    raise

    return apply


_started: dict[str, list["_GraderProcess"]] | None = None


@contextmanager
def shared_processes() -> Iterator[dict[str, list["_GraderProcess"]]]:
    """Within this context, filters of one module use the same processes, so that these import it once.

    Gives the processes by module. They end with the outermost context.
    """
    global _started
    if _started is not None:
        yield _started
        return
    _started = {}
    try:
        yield _started
    finally:
        for process in itertools.chain(*_started.values()):
            process.close()
        _started = None


def guarded(grade: Grader, answer: str, doc: Doc, wrong: Wrong) -> Any:
    """The grade, or that of a wrong answer where the grader raises."""
    try:
        return grade(answer, doc)
    except Exception as error:
        return wrong(reason_of(error))


def reason_of(error: Exception) -> str:
    """An exception in one short printable line."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # an exception whose text cannot be made, such as an integer of too many digits
        text = type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200])


class _GraderProcess:
    """A child process for the graders of one module; started when first used, replaced when it dies."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    def grade(self, name: str, answer: str, doc: Doc, *, wrong: Wrong, seconds: float) -> Any:
        """What the grader `name` gives, or `wrong` of a reason if it raises, dies or takes over `seconds`."""
        channel = self._socket or self._start()
        reply = None
        with suppress(OSError, ValueError):
            channel.settimeout(seconds)
            channel.sendall(json.dumps([name, answer, doc]).encode() + b"\n")
            reply = _read_line(channel)
        if reply is None:
            self._stop()
            return wrong(f"grading was stopped: it takes over {seconds:g} seconds or too much memory")
        outcome, value = json.loads(reply)
        if outcome == "raised":
            return wrong(value)
        return type(wrong(""))(**value) if outcome == "fields" else value

    def _start(self) -> socket.socket:
        if self._closed:
            raise VoidpadError("the grading processes were closed")
        ours, theirs = socket.socketpair()
        # Python's own library comes first, then our modules: a file in the current folder hides neither.
        paths = [os.path.abspath(path) for path in sys.path]
        boot = f"import sys; sys.path += {paths}; from {__name__} import serve; "
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", f"{boot}serve{(theirs.fileno(), self._module)}"],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, cwd="/",
                start_new_session=True,  # an interrupt at the terminal is for the parent, which closes its children
            )  # fmt: skip
        self._socket = ours
        ours.settimeout(_START_SECONDS)
        if _read_line(ours) is None:
            self._stop()
            raise VoidpadError(f"the grading process for {self._module} did not start")
        return ours

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._socket is not None:
            self._socket.close()
        self._process = self._socket = None

    def close(self) -> None:
        self._closed = True
        self._stop()


def _read_line(channel: socket.socket) -> bytes | None:
    """One line, or None when the other side is gone or too late."""
    parts = []
    try:
        while part := channel.recv(1 << 16):
            parts.append(part)
            if part.endswith(b"\n"):
                return b"".join(parts)
    except OSError:
        return None
    return None


def serve(fd: int, module_name: str) -> None:
    """In a child process: grade the answers that come, one line each, until the parent goes away."""
    module = importlib.import_module(module_name)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=fd) as channel:
        channel.sendall(b"ready\n")
        while (line := _read_line(channel)) is not None:
            name, answer, doc = json.loads(line)
            channel.sendall(json.dumps(_outcome(getattr(module, name), answer, doc)).encode() + b"\n")


def _outcome(grade: Grader, answer: str, doc: Doc) -> tuple[str, Any]:
    try:
        value = grade(answer, doc)
    except Exception as error:
        return "raised", reason_of(error)
    return (
        ("fields", asdict(value)) if is_dataclass(value) and not isinstance(value, type) else ("value", value)
    )
