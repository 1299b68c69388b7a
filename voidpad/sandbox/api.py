"""What callers use: the `Sandbox`, its limits and verdicts. The programs run under supervisor processes."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError, SandboxError, printable
from voidpad.sandbox.checker import ProgramTest

_LOG = logging.getLogger("voidpad.sandbox")
_PACKAGE = Path(__file__).parents[1]
# A supervisor imports only the sandbox's own modules: empty packages stand in for the real ones, so that neither its
# start-up time nor its memory, which every jail inherits, depends on what voidpad imports.
_BOOT = """
import socket, sys, types
for name, folder in {"voidpad": sys.argv[1], "voidpad.sandbox": sys.argv[1] + "/sandbox"}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from voidpad.sandbox import supervisor
supervisor.main(socket.socket(fileno=int(sys.argv[2])), weak=sys.argv[3] == "weak")
"""
_REPLY_SECONDS = 10.0  # beyond a program's time limit; a supervisor that is later counts as dead
_START_SECONDS = 60.0


@dataclass(frozen=True)
class SandboxLimits:
    """The resources that one program and its checks may use together."""

    seconds: float = 3.0  # wall clock, program and checks together
    memory_mb: int = 1024  # of the program's process, and of the checks'
    disk_mb: int = 16
    processes: int = 64  # the program's threads; it cannot start processes


@dataclass(frozen=True)
class Verdict:
    """Whether the checks passed, and if not, why.

    reason: passed; failed (a check was false); error (the program raised); exited, killed (it ended by itself
    or by a signal); timeout, memory (a limit); opaque (a value that is not plain data met a check).
    """

    passed: bool
    reason: str
    detail: str
    seconds: float


class Sandbox:
    """Runs untrusted programs against trusted checks, `workers` of them at a time.

    A program and its checks run in two processes, each in a jail. The checks see the program's values as plain
    data; other objects are handles, which cannot be compared. The full mode needs namespaces, and `run` raises
    SandboxError where the kernel does not give them. `weak` does without: resource limits and a seccomp filter that
    lets a program open no file, start no process and reach nothing outside; a warning says so.
    """

    def __init__(self, *, limits: SandboxLimits | None = None, weak: bool = False, workers: int = 1) -> None:
        if workers < 1:
            raise ConfigError(f"workers={workers}: a sandbox needs at least one worker")
        self._limits, self._weak, self._workers = limits or SandboxLimits(), weak, workers
        self._idle: list[SupervisorHandle] = []
        self._free_workers = threading.Semaphore(workers)

    def run(self, program: str, checks: str, entry: str | None = None, helpers: str = "") -> Verdict:
        """Run one program, then its checks; see `ProgramTest` for the arguments."""
        test = ProgramTest(program, checks, entry, helpers)
        with self._free_workers:
            supervisor = self._idle.pop() if self._idle else self._new_supervisor()
            verdict = None
            try:
                verdict = supervisor.run(test, self._limits)
            finally:
                self._idle.append(supervisor) if verdict else supervisor.close()
        return verdict or Verdict(
            False, "killed", "the supervisor process died while it ran this program", 0.0
        )

    def map(self, jobs: Iterable[tuple[str, str] | ProgramTest]) -> list[Verdict]:
        """Verdicts in the order of the jobs, `workers` of them at a time."""
        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(lambda job: self.run(*job), jobs))

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_supervisor(self) -> "SupervisorHandle":
        supervisor = SupervisorHandle(weak=self._weak)
        if supervisor.problem:
            supervisor.close()
            instead = "" if self._weak else "; weak=True (--weak-sandbox) does without namespaces"
            raise SandboxError(f"sandbox: {supervisor.problem}; it needs Linux 5.14 or later{instead}")
        if self._weak:
            _warn_of_weakness()
        return supervisor


@cache
def _warn_of_weakness() -> None:
    """Warn once in the life of this process, however many workers there are."""
    _LOG.warning(
        "WEAK SANDBOX: generated programs run without namespaces, as a process of this machine that a seccomp "
        "filter and resource limits hold; programs that open files or start processes fail."
    )


@cache
def layers() -> dict[str, bool]:
    """Whether this kernel lets this user have the namespaces of the full mode."""
    supervisor = SupervisorHandle(weak=False)
    supervisor.close()
    return {"namespaces": not supervisor.problem}


class SupervisorHandle:
    """Starts one supervisor process, which runs one program after another, and talks to it over a socket."""

    def __init__(self, *, weak: bool) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = [str(_PACKAGE), str(theirs.fileno()), "weak" if weak else "full"]
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-s", "-P", "-B", "-c", _BOOT, *arguments],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, cwd="/", env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
                start_new_session=True,  # an interrupt at the terminal is for the caller
            )  # fmt: skip
        self._control.settimeout(_START_SECONDS)
        hello = self._receive()
        self.problem = hello["problem"] if hello else "the supervisor process did not start"

    def run(self, test: ProgramTest, limits: SandboxLimits) -> Verdict | None:
        """The verdict, or None when the supervisor process died."""
        texts = (test.program, json.dumps(test), "")  # the last is for the verdict
        fds = [_memory_file(text) for text in texts]
        try:
            self._control.settimeout(limits.seconds + _REPLY_SECONDS)
            with suppress(OSError):
                socket.send_fds(self._control, [json.dumps(asdict(limits)).encode()], fds)
            reply = self._receive()
            said = os.pread(fds[2], 1 << 16, 0)
        finally:
            for fd in fds:
                os.close(fd)
        if reply is None:
            return None
        ended, seconds, status = reply
        if ended == "broken":
            raise SandboxError(f"the sandbox could not be closed around a program: {status}")
        if ended == "timeout":
            return Verdict(False, ended, f"the sandbox allows {limits.seconds:g} seconds", seconds)
        reason, detail = json.loads(said) if said else ("killed", "the checks ended without a verdict")
        if reason == "gone":
            by_signal = status is not None and status < 0
            reason = "killed" if by_signal else "exited"
            if status is not None:
                detail += f" (signal {-status})" if by_signal else f" (status {status})"
        return Verdict(reason == "passed", reason, printable(detail), seconds)

    def close(self) -> None:
        """Close the socket, upon which the supervisor ends together with every process it started."""
        self._control.close()
        try:
            self._process.wait(_REPLY_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self) -> Any:
        try:
            return json.loads(self._control.recv(1 << 16))
        except (OSError, ValueError):
            return None


def _memory_file(text: str) -> int:
    fd = os.memfd_create("text")
    with open(fd, "w", encoding="utf-8", errors="surrogatepass", closefd=False, newline="") as file:
        file.write(text)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
