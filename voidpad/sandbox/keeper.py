"""The process between the library and the jobs: warm, in namespaces of its own, forking two jails per job.

It never reads a program, a check or a verdict: those travel by descriptor, straight to the one process that
may see them, so that nothing about a check is ever in memory that a program inherits.
"""

import gc
import importlib
import json
import os
import random
import re
import select
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from voidpad.sandbox import checker, jail, kernel, root, subject

# Loaded once here, so that a program's own import of them costs nothing.
_WARM = ("array", "bisect", "calendar", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal",
         "enum", "fractions", "functools", "heapq", "itertools", "json", "math", "numbers", "operator",
         "random", "re", "statistics", "string", "textwrap", "time", "typing")  # fmt: skip
_GLANCE = 0.02  # seconds between looks at the memory in use
_OVERHEAD = 64 << 20  # bytes that two idle interpreters hold
_LAST_BREATH = 0.1  # seconds a program that closed its channel has to be seen ending
_BLINK = 0.001  # seconds that killed processes are given to be gone
# A shared mapping without a file: "7f..-7f.. rw-s 00000000 00:01 1234 /dev/zero (deleted)".
_SHARED = re.compile(r"^(\w+)-(\w+) ...s (\w+) (\S+) (\d+) +/dev/zero \(deleted\)", re.MULTILINE)
_DISK_GLANCE = 0.1  # seconds between looks at the files, where no file system of its own bounds them
_FILES = 4096
_LOST = 3  # exit status of checks whose program went away
_FULL_NAMESPACES = frozenset({"pid namespace", "mount namespace"})


@dataclass(frozen=True)
class Job:
    """One line from the library; the texts come beside it as descriptors."""

    seconds: float
    memory_mb: int
    disk_mb: int
    processes: int
    output_kb: int
    lenient: bool

    @property
    def bounds(self) -> jail.Bounds:
        return jail.Bounds(int(self.seconds) + 2, self.memory_mb << 20, self.disk_mb << 20, self.processes)


class Keeper:
    def __init__(self, control: socket.socket, prison: jail.Jail, homes: str | None) -> None:
        self._control, self._jail, self._homes = control, prison, homes
        self._own_proc = prison.layers >= _FULL_NAMESPACES

    def serve(self) -> None:
        """Jobs, one after another, until the library goes away."""
        while True:
            message, fds, _, _ = socket.recv_fds(self._control, 4096, 3)
            if not message:
                return
            reply = self.run(Job(**json.loads(message)), fds)
            for fd in fds:
                os.close(fd)
            self._control.send(json.dumps(reply).encode())

    def run(self, job: Job, fds: list[int]) -> tuple[str, float, int | str | None]:
        """How the job ended, how long it took, and the program's own exit status if it had one."""
        start, home = time.monotonic(), self._home()
        try:
            ended, status = self._run(job, fds, home, start + job.seconds)
            return ended, time.monotonic() - start, status
        except jail.JailError as error:
            return "broken", time.monotonic() - start, str(error)
        finally:
            self._sweep(home)

    def _run(self, job: Job, fds: list[int], home: str, deadline: float) -> tuple[str, int | None]:
        program, checks, verdict = fds
        asking, answering = socket.socketpair()
        ear, mouth = (os.fdopen(fd, mode, 0) for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        pids: list[int] = []
        try:
            # The program last: from its first instruction on, someone watches the clock.
            with asking, answering, mouth, open(os.devnull, "wb") as null:
                judging = (null.fileno(), asking.fileno(), checks, verdict)
                judged = (mouth.fileno(), answering.fileno(), program)
                run_checks = partial(_run_checks, lenient=job.lenient)
                pids.append(self._jail.start(jail.Cell(run_checks, judging, home, job.bounds)))
                pids.append(self._jail.start(jail.Cell(_run_program, judged, home, job.bounds)))
            ended, lost = self._watch(job, pids[0], ear.fileno(), home, deadline)
            return ended, _status(pids[1], _LAST_BREATH if lost else 0)
        finally:
            ear.close()
            for pid in pids:
                _end(pid)

    def _watch(self, job: Job, checks: int, heard: int, home: str, deadline: float) -> tuple[str, bool]:
        """Until the checks end or something has to be stopped: which, and whether the program left."""
        done, room, look_at_disk = os.pidfd_open(checks), job.output_kb << 10, time.monotonic()
        poll = select.poll()
        for fd in (done, heard, self._control.fileno()):
            poll.register(fd, select.POLLIN)
        try:
            while (left := deadline - time.monotonic()) > 0:
                ready = {fd for fd, _ in poll.poll(1000 * min(left, _GLANCE))}
                if self._control.fileno() in ready:
                    raise EOFError("the library left, or broke its word")
                if heard in ready:
                    size = len(os.read(heard, 1 << 16))
                    room -= size
                    if not size:
                        poll.unregister(heard)
                if room < 0:
                    return "output", False
                if done in ready:
                    return "done", _status(checks, 0) == _LOST
                if done not in ready and self._exceeds(job.bounds.memory + _OVERHEAD):
                    return "memory", False
                if done not in ready and self._homes is not None and time.monotonic() > look_at_disk:
                    size, files = _disk_use(home, self._below())
                    if size > job.bounds.disk or files > _FILES:
                        return "disk", False
                    look_at_disk = time.monotonic() + _DISK_GLANCE
            return "timeout", False
        finally:
            os.close(done)

    def _exceeds(self, limit: int) -> bool:
        """Whether the processes below this one use more memory together than a limit per process would allow.

        Resident pages are cheap to count, but count twice what two processes share and omit shared memory that no
        process has touched since another one filled it. So the whole of each shared mapping is added, and before a
        program is stopped the resident pages are counted again, each divided among the processes that share it.
        """
        pids = self._below()
        shared = _shared_mappings(pids)
        return _resident(pids) + shared > limit and _proportional(pids) + shared > limit

    def _below(self) -> list[int]:
        if self._own_proc:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
        return _descendants()

    def _home(self) -> str:
        if self._homes is None:
            return "/tmp"
        home = tempfile.mkdtemp(dir=self._homes)
        if os.geteuid() == 0:
            os.chown(home, jail.NOBODY, jail.NOBODY)
        return home

    def _sweep(self, home: str) -> None:
        """Without a PID namespace, end the orphans that came here; without a mount one, drop the folder."""
        if "pid namespace" not in self._jail.layers:
            _end_below()
        if self._homes is not None:
            remove_tree(home)


def _proc_texts(pids: Iterable[int], name: str) -> Iterator[str]:
    """The file `name` of each process that still exists."""
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/{name}", errors="replace") as file:
            yield file.read()


def _resident(pids: Iterable[int]) -> int:
    pages = sum(int(text.split()[1]) for text in _proc_texts(pids, "statm") if text)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _proportional(pids: Iterable[int]) -> int:
    """Private memory and each process's part of what it shares by fork; shared mappings are counted apart."""
    sizes = re.findall(
        r"^Pss_(?:Anon|File): +(\d+) kB", "".join(_proc_texts(pids, "smaps_rollup")), re.MULTILINE
    )
    return 1024 * sum(map(int, sizes))


def _shared_mappings(pids: Iterable[int]) -> int:
    """Bytes of anonymous memory that is mapped as shared, each piece of it counted once for all processes."""
    ends: dict[tuple[str, str], int] = {}
    for text in _proc_texts(pids, "maps"):
        for first, last, offset, device, inode in _SHARED.findall(text):
            key, end = (device, inode), int(offset, 16) + int(last, 16) - int(first, 16)
            ends[key] = max(ends.get(key, 0), end)
    return sum(ends.values())


def _disk_use(home: str, pids: Iterable[int]) -> tuple[int, int]:
    """Bytes and number of the files below `home`, and of deleted ones that a process still has open."""
    sizes: dict[int, int] = {}
    waiting = [home]
    while waiting and len(sizes) <= _FILES:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    sizes[info.st_ino] = 512 * info.st_blocks
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append(entry.path)
    for pid in pids:
        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with suppress(OSError):
                    info = entry.stat()
                    if stat.S_ISREG(info.st_mode) and not info.st_nlink:
                        sizes[info.st_ino] = 512 * info.st_blocks
    return sum(sizes.values()), len(sizes)


def remove_tree(top: str) -> None:
    """Remove a folder that a program filled: with any rights, any names, and nested to any depth.

    The walk goes down and up by one descriptor, so that no path gets long and no folder is searched twice. The
    processes of the program have ended, so nothing changes meanwhile.
    """
    with suppress(OSError):
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        path: list[bytes] = []
        waiting = [_remove_files(fd)]  # the folders that are left at each level
        while waiting:
            if waiting[-1]:
                name = waiting[-1].pop()
                path.append(name)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = inner
                waiting.append(_remove_files(fd))
            else:
                waiting.pop()
                if path:
                    outer = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
                    os.close(fd)
                    fd = outer
                    os.rmdir(path.pop(), dir_fd=fd)
        os.close(fd)
        os.rmdir(top)


def _remove_files(folder: int) -> list[bytes]:
    """Remove what is not a folder; the names of the folders, which may now be entered and changed."""
    folders = []
    for name in map(os.fsencode, os.listdir(folder)):
        entry = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
        if stat.S_ISDIR(os.fstat(entry).st_mode):
            os.chmod(f"/proc/self/fd/{entry}", 0o700)
            folders.append(name)
        else:
            os.unlink(name, dir_fd=folder)
        os.close(entry)
    return folders


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


def _status(pid: int, seconds: float) -> int | None:
    """The exit status of a process that ended by itself, waiting at most `seconds` for it; not reaped."""
    fd = os.pidfd_open(pid)
    try:
        if not select.select([fd], [], [], seconds)[0]:
            return None
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    finally:
        os.close(fd)


def _end(pid: int) -> None:
    """Kill and reap; the first process of a PID namespace takes everyone in it along."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _end_below() -> None:
    """Kill every descendant of this process: all are stopped first, because one that runs can fork faster than
    it is killed; and again, because one can be born between two looks."""
    with suppress(ChildProcessError):  # no child left, and so nobody below: orphans come to this process
        while True:
            stopped: set[int] = set()
            while new := set(_descendants()) - stopped:
                _signal(new, signal.SIGSTOP)
                stopped |= new
            _signal(stopped, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_BLINK)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # a process may call itself anything
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            continue
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def main(control: socket.socket, without: frozenset[str]) -> None:
    """Enter the namespaces, say what they are, serve. The first process waits for the one inside, and ends
    what that one leaves where no namespace does."""
    for name in _WARM:
        importlib.import_module(name)
    kernel.warm_up()
    available, paths = _probe() - without, root.library_paths()
    problem = _attempt(partial(_enter, available))
    homes = None if "mount namespace" in available else tempfile.mkdtemp(prefix="voidpad-sandbox-")
    if homes is not None:
        os.chmod(homes, 0o711)  # nobody may pass, and see nobody else's
    child = os.fork()
    if child:
        control.close()
        kernel.adopt_orphans()
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        _leave(homes, status)
    kernel.adopt_orphans()
    if "pid namespace" in available:
        kernel.die_with_parent()
    else:
        signal.signal(signal.SIGTERM, lambda *_: _leave(homes, 0))
        kernel.die_with_parent(signal.SIGTERM)
    prison = jail.Jail(available, paths)
    problem = problem or _attempt(partial(_settle, prison))
    gc.freeze()
    control.send(json.dumps({"layers": sorted(available), "problem": problem}).encode())
    try:
        Keeper(control, prison, homes).serve()
    finally:
        os._exit(0)


def _leave(homes: str | None, status: int) -> NoReturn:
    """Go, and take along everything that no namespace would."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_below()
    if homes is not None:
        remove_tree(homes)
    os._exit(status & 0xFF)


def _attempt(act: Callable[[], None]) -> str:
    try:
        act()
    except (OSError, jail.JailError) as error:
        return str(error)
    return ""


def _settle(prison: jail.Jail) -> None:
    """Build the root, and close one empty jail to see that it can be done."""
    if "mount namespace" in prison.layers:
        root.build(prison.paths)
    null = os.open(os.devnull, os.O_WRONLY)
    _end(prison.start(jail.Cell(lambda: None, (null,), "/tmp", jail.Bounds(2, 1 << 30, 1 << 20, 4))))
    os.close(null)


def _probe() -> frozenset[str]:
    """The layers this kernel gives this user, each tried in a process of its own."""
    base = 0 if _privileged() else kernel.NEWUSER
    trials: dict[str, Callable[[], None]] = {
        name: partial(kernel.unshare, base | bits) for name, bits in jail.NAMESPACES.items()
    }
    trials["landlock"] = partial(_sealed, partial(kernel.landlock, read=["/"], write=[]))
    trials["seccomp"] = partial(_sealed, partial(kernel.seccomp, strict=True))
    trials["no new privileges"] = kernel.no_new_privileges
    trials["other uid"] = jail.become_nobody
    found = frozenset(name for name, act in trials.items() if _works(act))
    return found | {"other uid"} if "user namespace" in found else found


def _privileged() -> bool:
    """Whether namespaces can be had without a user namespace: real root, not root in a container."""
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
    """The keeper's own namespaces. Root needs no user namespace to make the others, and keeps its rights to
    read a Python that only root may read until the new root is built."""
    wanted, uid, gid = jail.flags(layers - {"user namespace"}), os.geteuid(), os.getegid()
    if wanted and _privileged():
        os.setgroups([])
        kernel.unshare(wanted)
    elif "user namespace" in layers:
        kernel.unshare(wanted | kernel.NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
