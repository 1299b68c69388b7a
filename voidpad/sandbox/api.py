"""What callers use: the `Sandbox`, its limits and verdicts, and the handles of its supervisor processes."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from voidpad.errors import ConfigError, SandboxError, printable
from voidpad.sandbox.jail import LAYERS, NAMESPACES

_LOG = logging.getLogger("voidpad.sandbox")
_PACKAGE = Path(__file__).parents[1]
# A supervisor imports only the sandbox's own modules: an empty package stands in for voidpad, so that neither its
# start-up time nor its memory, which every jail inherits, depends on what voidpad imports.
_BOOT = """
import socket, sys, types
package = types.ModuleType("voidpad")
package.__path__ = [sys.argv[1]]
sys.modules["voidpad"] = package
inner = types.ModuleType("voidpad.sandbox")
inner.__path__ = [sys.argv[1] + "/sandbox"]
sys.modules["voidpad.sandbox"] = package.sandbox = inner
from voidpad.sandbox import supervisor
supervisor.main(socket.socket(fileno=int(sys.argv[2])), frozenset(sys.argv[3:]))
"""
_REPLY_SECONDS = 10.0  # beyond a program's time limit; a supervisor that is later counts as dead
_START_SECONDS = 60.0
_STOP_SECONDS = (2.0, 10.0)  # for a supervisor to end after its socket closed, and after SIGTERM


@dataclass(frozen=True)
class SandboxLimits:
    """The resources that one program and its checks may use together."""

    seconds: float = 3.0  # wall clock, program and checks together
    memory_mb: int = 1024  # per process, and for all of its processes together
    disk_mb: int = 16
    processes: int = 64  # threads count as well
    output_kb: int = 64

    def __post_init__(self) -> None:
        bad = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if not getattr(self, f.name) > 0]
        if bad:
            raise ConfigError(f"sandbox limits must be positive: {', '.join(bad)}")


class ProgramTest(NamedTuple):
    """An untrusted program and the trusted texts that test it.

    `entry` names the function under test. The checks take it from the program even where Python has a builtin
    of that name; every other builtin and every standard module in the checks is Python's own. `helpers` are
    definitions of the task that the checks use: the program must define those names as well, but the checks
    never use the program's versions.
    """

    program: str
    checks: str
    entry: str | None = None
    helpers: str = ""


@dataclass(frozen=True)
class Verdict:
    """Whether the checks passed, and if not, why.

    reason: passed; failed (a check was false); error (the program raised); exited, killed (it ended by itself
    or by a signal); timeout, memory, output, disk (a limit); opaque (a value that is not plain data met a check).
    """

    passed: bool
    reason: str
    detail: str
    seconds: float


def _verdict(
    ended: str, seconds: float, status: int | None, *, output: bytes, limits: SandboxLimits
) -> Verdict:
    if ended != "done":
        allowed = {"timeout": f"{limits.seconds:g} seconds", "memory": f"{limits.memory_mb} MB",
                   "output": f"{limits.output_kb} KB",
                   "disk": f"{limits.disk_mb} MB and 4,096 files"}[ended]  # fmt: skip
        return Verdict(False, ended, f"stopped at the {ended} limit: the sandbox allows {allowed}", seconds)
    try:
        reason, detail = json.loads(output)
    except ValueError:
        return Verdict(False, "error", "the checks ended without a verdict", seconds)
    if reason == "gone":
        reason = "killed" if status is not None and status < 0 else "exited"
        how = {"killed": f"signal {-(status or 0)}", "exited": f"status {status}"}[reason]
        detail = f"{detail} ({how})" if status is not None else detail
    return Verdict(reason == "passed", reason, printable(str(detail)), seconds)


@cache
def layers() -> dict[str, bool]:
    """By name, whether this kernel lets this user have each layer of protection. `Sandbox()` needs all of them."""
    supervisor = _SupervisorHandle()
    supervisor.close()
    return {name: name in supervisor.layers for name in LAYERS}


class _SupervisorHandle:
    """Starts one supervisor process, which runs one program after another, and talks to it over a socket."""

    def __init__(self, without: Iterable[str] = ()) -> None:
        self._group: str | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            boot = [sys.executable, "-S", "-s", "-P", "-B", "-c", _BOOT, str(_PACKAGE), str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*boot, *without],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, cwd="/", env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
                start_new_session=True,  # an interrupt at the terminal is for the caller
            )  # fmt: skip
        self._control.settimeout(_START_SECONDS)
        hello = self._receive()
        if hello is None:
            self.close()
            raise SandboxError("the sandbox's supervisor process did not start; it needs Linux 5.13 or later")
        self.layers, self.problem = frozenset(hello["layers"]), str(hello["problem"])
        self._group = hello["group"]

    def run(self, test: ProgramTest, limits: SandboxLimits, *, lenient: bool) -> Verdict | None:
        """The verdict, or None when the supervisor process died."""
        reading, writing = os.pipe()
        texts = [
            _memory_file(text)
            for text in (test.program, json.dumps(test._asdict() | {"limits": asdict(limits)}))
        ]
        request = json.dumps(asdict(limits) | {"lenient": lenient}).encode()
        try:
            self._control.settimeout(limits.seconds + _REPLY_SECONDS)
            with suppress(OSError):
                socket.send_fds(self._control, [request], [*texts, writing])
            for fd in (*texts, writing):
                os.close(fd)
            reply = self._receive()
            if reply is None:
                return None
            if reply[0] == "broken":
                raise SandboxError(f"the sandbox could not be closed around a program: {reply[2]}")
            ended, seconds, status = reply
            return _verdict(ended, seconds, status, output=os.read(reading, 1 << 16), limits=limits)
        finally:
            os.close(reading)

    def _receive(self) -> Any:
        try:
            return json.loads(self._control.recv(1 << 16))
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close the socket, upon which the supervisor ends together with every process it started."""
        self._control.close()
        self._stop()
        # The supervisor removes its control group, unless it was killed; what it ran then needs a moment to die.
        end = time.monotonic() + _STOP_SECONDS[0]
        while self._group and os.path.isdir(self._group) and time.monotonic() < end:
            with suppress(OSError):
                os.rmdir(self._group)
            time.sleep(0.01)

    def _stop(self) -> None:
        for stop, seconds in zip((self._process.terminate, self._process.kill), _STOP_SECONDS, strict=True):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
                return
            stop()
        self._process.wait()


def _memory_file(text: str) -> int:
    fd = os.memfd_create("text")
    with open(fd, "w", encoding="utf-8", errors="surrogatepass", closefd=False, newline="") as file:
        file.write(text)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class Sandbox:
    """Runs untrusted programs against trusted checks, `workers` of them at a time.

    A program and its checks run in two processes, each in a jail. The checks see the program's values as plain
    data; other objects cannot be compared, unless `trust_objects` lets the program's own methods decide. `weak`
    accepts a kernel that does not offer every layer of protection and logs which are missing.
    """

    def __init__(self, *, limits: SandboxLimits | None = None, weak: bool = False, workers: int = 1,
                 trust_objects: bool = False) -> None:  # fmt: skip
        if workers < 1:
            raise ConfigError(f"workers={workers}: a sandbox needs at least one worker")
        self._limits, self._weak = limits or SandboxLimits(), weak
        self._workers, self._lenient = workers, trust_objects
        self._idle: list[_SupervisorHandle] = []
        self._free_workers = threading.Semaphore(workers)
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _close_all, self._idle, self._owner)

    def run(self, program: str, checks: str, entry: str | None = None, helpers: str = "") -> Verdict:
        """Run one program, then its checks; see `ProgramTest` for the arguments."""
        test = ProgramTest(program, checks, entry, helpers)
        with self._free_workers:
            supervisor = self._take()
            verdict = None
            try:
                verdict = supervisor.run(test, self._limits, lenient=self._lenient)
            finally:
                self._idle.append(supervisor) if verdict else supervisor.close()
        return verdict or Verdict(
            False, "killed", "the supervisor process died while it ran this program", 0.0
        )

    def map(self, jobs: Iterable[tuple[str, str] | ProgramTest]) -> list[Verdict]:
        """Verdicts in the order of the jobs, `workers` of them at a time."""
        with ThreadPoolExecutor(self._workers) as pool:
            waiting = [pool.submit(self.run, *job) for job in jobs]
            try:
                return [job.result() for job in waiting]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def close(self) -> None:
        _close_all(self._idle, self._owner)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> _SupervisorHandle:
        if self._owner != os.getpid():  # after a fork the supervisors still belong to the parent
            self._idle, self._owner = [], os.getpid()
            self._finalizer = weakref.finalize(self, _close_all, self._idle, self._owner)
        with suppress(IndexError):
            return self._idle.pop()
        return _start(weak=self._weak)


def _start(*, weak: bool) -> _SupervisorHandle:
    supervisor = _SupervisorHandle()
    missing = [name for name in LAYERS if name not in supervisor.layers]
    if not missing and not supervisor.problem:
        return supervisor
    if not weak:
        supervisor.close()
        what = f"no {', '.join(missing)}" if missing else supervisor.problem
        raise SandboxError(f"sandbox: {what} here; weak=True (--weak-sandbox) runs with what there is")
    if supervisor.problem:
        supervisor.close()
        supervisor = _SupervisorHandle(without=NAMESPACES)
        missing = [name for name in LAYERS if name not in supervisor.layers]
    _warn_of(tuple(missing))
    return supervisor


@cache
def _warn_of(missing: tuple[str, ...]) -> None:
    """Warn once in the life of this process, however many workers there are."""
    _LOG.warning("weak sandbox: generated programs run without %s", ", ".join(missing))


def _close_all(supervisors: list[_SupervisorHandle], owner: int) -> None:
    while supervisors and owner == os.getpid():
        supervisors.pop().close()
