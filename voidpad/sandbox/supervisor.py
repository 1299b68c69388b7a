"""The supervisor process: started once per worker, it forks two jails for each request and watches them.

A supervisor lives in namespaces of its own and has the usual modules loaded, so that a fork is all a jail costs. It
never reads a program, a check or a verdict: these are passed on as descriptors to the one process that needs them,
so that no program inherits memory that holds a check.
"""

import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from voidpad.sandbox import cgroup, checker, jail, kernel, root, subject
from voidpad.sandbox.cleanup import kill, kill_descendants, remove_tree
from voidpad.sandbox.usage import MAX_FILES, descendants, disk_use, memory_exceeds

# Modules that programs often import; loaded here once, and inherited by every jail.
_PRELOADED = ("array", "bisect", "calendar", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal",
         "enum", "fractions", "functools", "heapq", "itertools", "json", "math", "numbers", "operator",
         "random", "re", "statistics", "string", "textwrap", "time", "typing")  # fmt: skip
# Modules that programs use now and then; loaded here only where the user nobody cannot read Python's library.
_UNREADABLE = (
    "argparse", "ast", "asyncio", "base64", "binascii", "bz2", "concurrent.futures.process",
    "concurrent.futures.thread", "contextvars", "csv", "ctypes", "difflib", "dis", "errno", "fcntl", "fnmatch",
    "glob", "graphlib", "gzip", "hashlib", "hmac", "html", "inspect", "ipaddress", "locale", "logging", "lzma",
    "mmap", "multiprocessing", "multiprocessing.pool", "multiprocessing.queues", "multiprocessing.sharedctypes",
    "multiprocessing.synchronize", "multiprocessing.popen_fork", "pathlib", "pickle", "platform", "pprint", "queue",
    "resource", "secrets", "selectors", "shutil", "sqlite3", "subprocess", "sysconfig", "tempfile", "threading",
    "timeit", "tokenize", "traceback", "tracemalloc", "unicodedata", "unittest.mock", "urllib.parse", "uuid",
    "xml.etree.ElementTree", "zipfile", "zlib", "zoneinfo", "_strptime", "encodings.idna", "encodings.utf_16",
    "encodings.latin_1", "encodings.ascii", "encodings.cp1252",
)  # fmt: skip
_MEMORY_INTERVAL = 0.02  # seconds between two measurements of the memory in use
_OVERHEAD = 64 << 20  # bytes that two idle interpreters use
_DISK_INTERVAL = 0.1  # seconds between two measurements of the files, where no tmpfs bounds them
_LOST = 3  # exit status of checks whose program went away
_FULL_NAMESPACES = frozenset({"pid namespace", "mount namespace"})


@dataclass(frozen=True)
class SandboxRequest:
    """What the library sends for one program; the texts come with it as descriptors."""

    seconds: float
    memory_mb: int
    disk_mb: int
    processes: int
    output_kb: int
    lenient: bool

    @property
    def jail_limits(self) -> jail.JailLimits:
        return jail.JailLimits(
            int(self.seconds) + 2, self.memory_mb << 20, self.disk_mb << 20, self.processes
        )


class Supervisor:
    """Runs the requests that come over the control socket, one at a time."""

    def __init__(
        self,
        control: socket.socket,
        jail_factory: jail.Jail,
        homes: str | None,
        group: cgroup.MemoryGroup | None,
    ) -> None:
        self._control, self._jail, self._homes, self._group = control, jail_factory, homes, group
        self._own_proc = jail_factory.layers >= _FULL_NAMESPACES

    def serve(self) -> None:
        """Handle requests one after another until the library closes its socket."""
        while True:
            message, fds, _, _ = socket.recv_fds(self._control, 4096, 3)
            if not message:
                return
            reply = self.run(SandboxRequest(**json.loads(message)), fds)
            for fd in fds:
                os.close(fd)
            self._control.send(json.dumps(reply).encode())

    def run(self, request: SandboxRequest, fds: list[int]) -> tuple[str, float, int | str | None]:
        """Run one program: how it ended, the seconds it took, and its exit status if it exited by itself."""
        start, home = time.monotonic(), self._home()
        try:
            ended, status = self._run(request, fds, home, start + request.seconds)
            return ended, time.monotonic() - start, status
        except jail.JailError as error:
            return "broken", time.monotonic() - start, str(error)
        finally:
            self._sweep(home)

    def _run(
        self, request: SandboxRequest, fds: list[int], home: str, deadline: float
    ) -> tuple[str, int | None]:
        program, checks, verdict = fds
        if self._group is not None:
            self._group.set_limit(request.jail_limits.memory + request.jail_limits.disk + _OVERHEAD)
        asking, answering = socket.socketpair()
        output, program_output = (
            os.fdopen(fd, mode, 0) for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
        )
        pids: list[int] = []
        try:
            # The program is started last, so that the time limit is watched from its first instruction on.
            with asking, answering, program_output, open(os.devnull, "wb") as null:
                judging = (null.fileno(), asking.fileno(), checks, verdict)
                judged = (program_output.fileno(), answering.fileno(), program)
                run_checks = partial(_run_checks, lenient=request.lenient)
                pids.append(
                    self._jail.start(jail.JailProcess(run_checks, judging, home, request.jail_limits))
                )
                pids.append(
                    self._jail.start(jail.JailProcess(_run_program, judged, home, request.jail_limits, True))
                )
            ended, lost = self._watch(request, pids[0], output.fileno(), home, deadline)
            if lost:
                # The program closed its channel. When it has exited, its status says whether by a signal.
                ended, _ = self._watch(request, pids[1], output.fileno(), home, deadline)
            return ended, _status(pids[1])
        finally:
            output.close()
            for pid in pids:
                kill(pid)

    def _watch(
        self, request: SandboxRequest, pid: int, output: int, home: str, deadline: float
    ) -> tuple[str, bool]:
        """Wait for a process to end or for a limit to be reached: which, and whether it was checks that lost their
        program."""
        done, room, look_at_disk = os.pidfd_open(pid), request.output_kb << 10, time.monotonic()
        kills = self._group.kills() if self._group else 0
        poll = select.poll()
        for fd in (done, output, self._control.fileno()):
            poll.register(fd, select.POLLIN)
        try:
            while (left := deadline - time.monotonic()) > 0:
                ready = {fd for fd, _ in poll.poll(1000 * min(left, _MEMORY_INTERVAL))}
                if self._control.fileno() in ready:
                    raise EOFError("the library closed its socket")
                if output in ready:
                    size = len(os.read(output, 1 << 16))
                    room -= size
                    if not size:
                        poll.unregister(output)
                if room < 0:
                    return "output", False
                if self._group is not None and self._group.kills() > kills:
                    return "memory", False
                if done in ready:
                    return "done", _status(pid) == _LOST
                if done not in ready and memory_exceeds(
                    self._below(), request.jail_limits.memory + _OVERHEAD
                ):
                    return "memory", False
                if done not in ready and self._homes is not None and time.monotonic() > look_at_disk:
                    size, files = disk_use(home, self._below())
                    if size > request.jail_limits.disk or files > MAX_FILES:
                        return "disk", False
                    look_at_disk = time.monotonic() + _DISK_INTERVAL
            return "timeout", False
        finally:
            os.close(done)

    def _below(self) -> list[int]:
        if self._own_proc:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
        return descendants()

    def _home(self) -> str:
        if self._homes is None:
            return "/tmp"
        home = tempfile.mkdtemp(dir=self._homes)
        if os.geteuid() == 0:
            os.chown(home, jail.NOBODY, jail.NOBODY)
        return home

    def _sweep(self, home: str) -> None:
        """Remove what no namespace removes: orphaned processes and the program's folder."""
        if "pid namespace" not in self._jail.layers:
            kill_descendants()
        if self._homes is not None:
            remove_tree(home)


def _run_program() -> None:
    random.seed(0)
    with open(4, encoding="utf-8", errors="surrogatepass") as file:
        program = file.read()
    subject.main(socket.socket(fileno=3), program)


def _run_checks(*, lenient: bool) -> None:
    random.seed(0)
    kernel.hide_memory()
    with open(4, encoding="utf-8", errors="surrogatepass") as file:
        task = checker.CheckerTask(**json.load(file))
    if checker.main(socket.socket(fileno=3), task, 5, lenient=lenient):
        os._exit(_LOST)


def _status(pid: int) -> int | None:
    """The exit status of a process, which stays a zombie, or None if it has not exited."""
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def main(control: socket.socket, without: frozenset[str]) -> None:
    """Enter the namespaces, report the available layers, and handle requests.

    The first process only waits for its child, which enters the PID namespace and does the work. Where namespaces
    are missing, it also kills what that child leaves behind and removes its folder.
    """
    for name in _PRELOADED:
        importlib.import_module(name)
    kernel.warm_up()
    available, paths = _probe() - without, root.library_paths()
    if "mount namespace" not in available and not _works(_read_library):
        for name in _UNREADABLE:
            with suppress(ImportError):  # an extension that this Python was built without
                importlib.import_module(name)
    group = cgroup.create()
    problem = _attempt(partial(_enter, available))
    homes = None if "mount namespace" in available else tempfile.mkdtemp(prefix="voidpad-sandbox-")
    if homes is not None:
        os.chmod(homes, 0o711)  # the user nobody may enter its own folder in it, but not list the others
    child = os.fork()
    if child:
        control.close()
        kernel.adopt_orphans()
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        _leave(homes, group, status)
    kernel.adopt_orphans()
    if group is not None:
        group.join()  # once, because joining waits for all processors; the jails inherit it
    if "pid namespace" in available:
        kernel.die_with_parent()
    else:
        signal.signal(signal.SIGTERM, lambda *_: _leave(homes, None, 0))
        kernel.die_with_parent(signal.SIGTERM)
    jail_factory = jail.Jail(available, paths)
    problem = problem or _attempt(partial(_try_out, jail_factory))
    gc.freeze()
    control.send(
        json.dumps({"layers": sorted(available), "problem": problem, "group": group and group.path}).encode()
    )
    try:
        Supervisor(control, jail_factory, homes, group).serve()
    finally:
        os._exit(0)


def _leave(homes: str | None, group: cgroup.MemoryGroup | None, status: int) -> NoReturn:
    """Exit after killing every descendant and removing the programs' folder and control group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_descendants()
    if homes is not None:
        remove_tree(homes)
    if group is not None:
        group.remove()
    os._exit(status & 0xFF)


def _attempt(act: Callable[[], None]) -> str:
    try:
        act()
    except (OSError, jail.JailError) as error:
        return str(error)
    return ""


def _try_out(jail_factory: jail.Jail) -> None:
    """Build the file tree and start one empty jail, to learn now whether that works."""
    if "mount namespace" in jail_factory.layers:
        root.build(jail_factory.paths)
    null = os.open(os.devnull, os.O_WRONLY)
    kill(
        jail_factory.start(
            jail.JailProcess(lambda: None, (null,), "/tmp", jail.JailLimits(2, 1 << 30, 1 << 20, 4))
        )
    )
    os.close(null)


def _probe() -> frozenset[str]:
    """The layers that this kernel lets this user have; each is tried in a process of its own."""
    base = 0 if _privileged() else kernel.NEWUSER
    trials: dict[str, Callable[[], None]] = {
        name: partial(kernel.unshare, base | bits) for name, bits in jail.NAMESPACES.items()
    }
    trials["landlock"] = partial(_sealed, partial(kernel.landlock, read=["/"], write=[]))
    trials["seccomp"] = partial(_sealed, partial(kernel.seccomp, strict=True))
    trials["no new privileges"] = kernel.no_new_privileges
    trials["other uid"] = jail.become_nobody
    available = frozenset(name for name, act in trials.items() if _works(act))
    return available | {"other uid"} if "user namespace" in available else available


def _read_library() -> None:
    if os.geteuid() == 0:
        jail.become_nobody()
    os.listdir(os.path.dirname(os.__file__))


def _privileged() -> bool:
    """Whether this process may create namespaces without a user namespace, as root outside of containers may."""
    return os.geteuid() == 0 and _works(partial(kernel.unshare, kernel.NEWNS | kernel.NEWPID))


def _sealed(act: Callable[[], None]) -> None:
    kernel.no_new_privileges()
    act()


def _works(act: Callable[[], None]) -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(1 if _attempt(act) else 0)
    return os.waitpid(pid, 0)[1] == 0


def _enter(layers: frozenset[str]) -> None:
    """Create the supervisor's own namespaces.

    Root needs no user namespace for that, and so keeps the right to read a Python installation that only root may
    read until the new file tree is built.
    """
    wanted, uid, gid = jail.flags(layers - {"user namespace"}), os.geteuid(), os.getegid()
    if wanted and _privileged():
        os.setgroups([])
        kernel.unshare(wanted)
    elif "user namespace" in layers:
        kernel.unshare(wanted | kernel.NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
