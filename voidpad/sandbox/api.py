"""The library's side of the sandbox: settings, verdicts, and keepers that run the jobs."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from voidpad.errors import ConfigError, SandboxError
from voidpad.sandbox.jail import LAYERS, NAMESPACES

_LOG = logging.getLogger("voidpad.sandbox")
_PACKAGE = Path(__file__).parents[1]
# The keeper must not import voidpad itself (and with it torch): a bare package takes its place.
_BOOT = """
import socket, sys, types
package = types.ModuleType("voidpad")
package.__path__ = [sys.argv[1]]
sys.modules["voidpad"] = package
inner = types.ModuleType("voidpad.sandbox")
inner.__path__ = [sys.argv[1] + "/sandbox"]
sys.modules["voidpad.sandbox"] = package.sandbox = inner
from voidpad.sandbox import keeper
keeper.main(socket.socket(fileno=int(sys.argv[2])), frozenset(sys.argv[3:]))
"""
_PATIENCE = 10.0  # seconds a keeper may be late with a verdict before it is taken for dead
_START_PATIENCE = 60.0
_FAREWELL = (2.0, 10.0)  # seconds a keeper has to leave by itself, and after it was told to


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

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
    """Whether the checks passed, and if not why.

    reason: passed; failed (a check was false); error (the program raised); exited, killed (it ended by itself
    or by a signal); timeout, memory, output, disk (a limit); opaque (a value that is not plain data met a check).
    """

    passed: bool
    reason: str
    detail: str
    seconds: float


def _verdict(ended: str, seconds: float, status: int | None, *, told: bytes, limits: Limits) -> Verdict:
    if ended != "done":
        allowed = {"timeout": f"{limits.seconds:g} seconds", "memory": f"{limits.memory_mb} MB",
                   "output": f"{limits.output_kb} KB",
                   "disk": f"{limits.disk_mb} MB and 4,096 files"}[ended]  # fmt: skip
        return Verdict(False, ended, f"stopped at the {ended} limit: the sandbox allows {allowed}", seconds)
    try:
        reason, detail = json.loads(told)
    except ValueError:
        return Verdict(False, "error", "the checks ended without a verdict", seconds)
    if reason == "gone":
        reason = "killed" if status is not None and status < 0 else "exited"
        how = {"killed": f"signal {-(status or 0)}", "exited": f"status {status}"}[reason]
        detail = f"{detail} ({how})" if status is not None else detail
    return Verdict(reason == "passed", reason, _printable(str(detail)), seconds)


def _printable(text: str) -> str:
    """One line without control characters, which a terminal or a report could take for commands."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


@cache
def layers() -> dict[str, bool]:
    """What this kernel offers this user; a sandbox that is not weak needs all of it."""
    keeper = _Keeper()
    keeper.close()
    return {name: name in keeper.layers for name in LAYERS}


class _Keeper:
    """One warm keeper process and the socket to it."""

    def __init__(self, without: Iterable[str] = ()) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            boot = [sys.executable, "-S", "-s", "-P", "-B", "-c", _BOOT, str(_PACKAGE), str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*boot, *without],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, cwd="/", env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
                start_new_session=True,  # an interrupt at the terminal is for the caller
            )  # fmt: skip
        self._control.settimeout(_START_PATIENCE)
        hello = self._receive()
        if hello is None:
            self.close()
            raise SandboxError("the sandbox's keeper process did not start; it needs Linux 5.13 or later")
        self.layers, self.problem = frozenset(hello["layers"]), str(hello["problem"])

    def run(self, test: ProgramTest, limits: Limits, *, lenient: bool) -> Verdict | None:
        """The verdict, or None when the keeper itself was lost."""
        heard, told = os.pipe()
        texts = [
            _memory_file(text)
            for text in (test.program, json.dumps(test._asdict() | {"limits": asdict(limits)}))
        ]
        job = json.dumps(asdict(limits) | {"lenient": lenient}).encode()
        try:
            self._control.settimeout(limits.seconds + _PATIENCE)
            with suppress(OSError):
                socket.send_fds(self._control, [job], [*texts, told])
            for fd in (*texts, told):
                os.close(fd)
            reply = self._receive()
            if reply is None:
                return None
            if reply[0] == "broken":
                raise SandboxError(f"the sandbox could not be closed around a program: {reply[2]}")
            ended, seconds, status = reply
            return _verdict(ended, seconds, status, told=os.read(heard, 1 << 16), limits=limits)
        finally:
            os.close(heard)

    def _receive(self) -> Any:
        try:
            return json.loads(self._control.recv(1 << 16))
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """The keeper leaves when its socket closes, and every jail with it."""
        self._control.close()
        for stop, seconds in zip((self._process.terminate, self._process.kill), _FAREWELL, strict=True):
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
    """Runs untrusted programs against trusted checks, each job in jails of its own.

    Programs and checks live in two processes: the checks see the program's values as plain data, and objects
    that are not plain data cannot be compared unless `trust_objects` lets the program's own methods answer.
    """

    def __init__(self, *, limits: Limits | None = None, weak: bool = False, workers: int = 1,
                 trust_objects: bool = False) -> None:  # fmt: skip
        if workers < 1:
            raise ConfigError(f"workers={workers}: a sandbox needs at least one worker")
        self._limits, self._weak = limits or Limits(), weak
        self._workers, self._lenient = workers, trust_objects
        self._idle: list[_Keeper] = []
        self._turns = threading.Semaphore(workers)
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _close_all, self._idle, self._owner)

    def run(self, program: str, checks: str, entry: str | None = None, helpers: str = "") -> Verdict:
        """Run one program, then its checks; see `ProgramTest` for the arguments."""
        test = ProgramTest(program, checks, entry, helpers)
        with self._turns:
            keeper = self._take()
            verdict = None
            try:
                verdict = keeper.run(test, self._limits, lenient=self._lenient)
            finally:
                self._idle.append(keeper) if verdict else keeper.close()
        return verdict or Verdict(False, "killed", "the sandbox's keeper was lost with this program", 0.0)

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

    def _take(self) -> _Keeper:
        if self._owner != os.getpid():  # after a fork the keepers are still the parent's
            self._idle, self._owner = [], os.getpid()
            self._finalizer = weakref.finalize(self, _close_all, self._idle, self._owner)
        with suppress(IndexError):
            return self._idle.pop()
        return _start(weak=self._weak)


def _start(*, weak: bool) -> _Keeper:
    keeper = _Keeper()
    missing = [name for name in LAYERS if name not in keeper.layers]
    if not missing and not keeper.problem:
        return keeper
    if not weak:
        keeper.close()
        what = f"no {', '.join(missing)}" if missing else keeper.problem
        raise SandboxError(f"sandbox: {what} here; weak=True (--weak-sandbox) runs with what there is")
    if keeper.problem:
        keeper.close()
        keeper = _Keeper(without=NAMESPACES)
        missing = [name for name in LAYERS if name not in keeper.layers]
    _LOG.warning("weak sandbox: generated programs run without %s", ", ".join(missing))
    return keeper


def _close_all(keepers: list[_Keeper], owner: int) -> None:
    while keepers and owner == os.getpid():
        keepers.pop().close()
