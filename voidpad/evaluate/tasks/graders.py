"""Graders as filters of lm-eval, which hand over all answers of a task at once. No answer stops a run.

A grader is a function of one answer and its item that gives a JSON value. Graders whose time or memory depends on what
a model wrote (parsers, computer algebra) run in child processes with hard limits, because Python cannot interrupt a
library that computes a huge number. A grader that raises has met an answer that cannot be read, which is a wrong one.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from voidpad.errors import VoidpadError
from voidpad.evaluate.tasks import Doc

Filter = Callable[[Sequence[Sequence[str]], Sequence[Doc]], list[Any]]
Grader = Callable[[str, Doc], Any]
Wrong = Callable[[str], Any]  # from a reason to what the grader gives for a wrong answer
SECONDS = 20  # of CPU time for one answer; more than the sum of math-verify's own limits
MEMORY = 4 << 30  # bytes for one child process
PROCESSES = 8  # at most, and not more than there are cores


def no_program(reason: str) -> str:
    """A program that fails with the reason why the answer could not be made into one."""
    return f"raise ValueError({'the answer is not a program: ' + reason!r})"


def isolated(grade: Grader, wrong: Wrong, *, seconds: int = SECONDS) -> Filter:
    """A filter that hands the first (only) answer of every item, with its item, to `grade`, in child processes.

    An answer that takes more than `seconds` of CPU time or too much memory is wrong. The child imports `grade` by its
    module and name, so `grade` must be a function of a module.
    """

    def apply(answers: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[Any]:
        thread = threading.local()
        children: list[_Child] = []

        def add_child() -> None:
            thread.child = _Child(grade, wrong, seconds)
            children.append(thread.child)

        def judge(answer: Sequence[str], doc: Doc) -> Any:
            return thread.child.grade(answer[0], doc)

        count = max(1, min(len(answers), len(os.sched_getaffinity(0)), PROCESSES))
        with ThreadPoolExecutor(count, initializer=add_child) as pool:
            try:
                return list(pool.map(judge, answers, docs))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in children:
                    child.stop()

    return apply


class _Child:
    """A child process that grades; started when first used, and again after it died."""

    def __init__(self, grade: Grader, wrong: Wrong, seconds: int) -> None:
        self._serves = (grade.__module__, grade.__name__, seconds)
        self._wrong = wrong
        self._process: Any = None

    def grade(self, answer: str, doc: Doc) -> Any:
        if self._process is None:
            self._start()
        reply = ""
        with suppress(OSError):  # it is dying
            self._process.stdin.write(json.dumps([answer, doc]) + "\n")
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
        if not reply:
            self.stop()
            seconds = self._serves[-1]
            return self._wrong(f"grading was stopped: it takes over {seconds} seconds or too much memory")
        outcome, value = json.loads(reply)
        return self._wrong(value) if outcome == "raised" else value

    def _start(self) -> None:
        # Python's own library comes first, then what this process imports from: the child grades with the same
        # modules, and a file in the current folder hides none of the library's.
        paths = [os.path.abspath(path) for path in sys.path]
        code = f"import sys; sys.path += {paths}; from {__name__} import serve; serve{self._serves}"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
            start_new_session=True,  # an interrupt at the terminal is for the parent, which stops its children
        )
        if not self._process.stdout.readline():
            self.stop()
            raise VoidpadError(f"the grading process for {self._serves[0]} did not start")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError), process:  # closes the pipes and waits
                pass


def serve(module: str, name: str, seconds: int) -> None:
    """In a child process: say that it is ready, then reply to each line with a line, until the parent goes away."""
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)  # what a library prints is no reply
        grade = getattr(importlib.import_module(module), name)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        print("ready", file=replies, flush=True)
        for line in sys.stdin:
            # The system ends the process there: no library can hold it up.
            last, hard = int(time.process_time()) + seconds + 1, resource.getrlimit(resource.RLIMIT_CPU)[1]
            resource.setrlimit(resource.RLIMIT_CPU, (last, hard))
            try:
                reply = "value", grade(*json.loads(line))
            except Exception as error:
                reply = "raised", type(error).__name__  # its text may be huge, or impossible to make
            print(json.dumps(reply), file=replies, flush=True)
