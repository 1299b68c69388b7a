"""The supervisor process: started once per worker, it forks two jailed processes for each request and watches them.

A supervisor has the usual modules loaded, so that a fork is all that a jail costs. In full mode it is the first
process of its own namespaces: when it ends, the kernel kills what it started. It never reads a program, a check or a
verdict: these are passed on as descriptors to the one process that needs them, so that no program inherits memory
that holds a check.
"""

import fcntl
import gc
import importlib
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from voidpad.sandbox import checker, kernel, program

# Loaded here once, and inherited by every jail.
_PRELOADED = (*checker.MODULES, "dataclasses", "enum")
# Modules that programs use now and then; loaded here only in weak mode, where programs cannot open files.
_FOR_WEAK_MODE = (
    "argparse", "ast", "asyncio", "base64", "binascii", "bz2", "concurrent.futures.process",
    "concurrent.futures.thread", "contextvars", "csv", "ctypes", "difflib", "dis", "errno", "fcntl", "fnmatch",
    "glob", "graphlib", "gzip", "hashlib", "hmac", "html", "html.parser", "inspect", "io", "ipaddress", "locale",
    "logging", "lzma", "mmap", "multiprocessing", "multiprocessing.pool", "multiprocessing.queues",
    "multiprocessing.synchronize", "multiprocessing.popen_fork", "pathlib", "pickle", "platform", "pprint", "queue",
    "resource", "secrets", "selectors", "shelve", "shutil", "sqlite3", "struct", "subprocess", "sysconfig",
    "tempfile", "termios", "threading", "timeit", "tokenize", "traceback", "tracemalloc", "unicodedata", "unittest",
    "unittest.mock", "urllib.parse", "uuid", "weakref", "xml.etree.ElementTree", "zipfile", "zlib", "_strptime",
    "encodings.idna", "encodings.utf_16", "encodings.utf_32", "encodings.latin_1", "encodings.ascii",
    "encodings.cp1252", "encodings.raw_unicode_escape", "encodings.unicode_escape", "ssl",
)  # fmt: skip
_NAMESPACES = kernel.NEWUSER | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS
_NOBODY = 65534
_HOME = "/tmp"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache")
_LOST = 3  # exit status of checks whose program went away

Limits = dict[str, Any]  # the fields of `SandboxLimits`


def main(control: socket.socket, *, weak: bool) -> None:
    """Enter the mode that was asked for, say whether that worked, and handle requests until the socket closes."""
    for name in (*_PRELOADED, *(_FOR_WEAK_MODE if weak else ())):
        with suppress(ImportError):  # an extension that this Python was built without
            importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a program may not interrupt its supervisor
    os.umask(0o022)
    try:
        if not weak:
            _enter_namespaces(control)
        gc.freeze()
        supervisor = Supervisor(control, weak=weak)
        with open(os.devnull, "wb") as null:  # one empty jail, to learn now whether that works
            limits = {"seconds": 2, "memory_mb": 1024, "disk_mb": 1, "processes": 64}
            _kill([supervisor.start_jail(lambda: None, (null.fileno(),), limits)])
        control.send(json.dumps({"problem": ""}).encode())
        supervisor.serve()
    except OSError as error:
        control.send(json.dumps({"problem": str(error)}).encode())
    finally:
        os._exit(0)


def _enter_namespaces(control: socket.socket) -> None:
    """Continue as the first process of new namespaces: its own users, process numbers, network and names.

    The process that was here before waits for it. When either ends, both do, and all that they started.
    Root keeps all user ids that it has here, so that it can still read Python's library and become nobody. Another
    user can have one id, and is nobody with it.
    """
    with open("/proc/self/uid_map") as file:
        known = [tuple(map(int, line.split())) for line in file]
    all_ids = os.geteuid() == 0 and any(first <= _NOBODY < first + count for first, _, count in known)
    if all_ids:
        ids = "\n".join(f"{first} {first} {count}" for first, _, count in known)
        settings = {"uid_map": ids, "gid_map": ids}
    else:
        settings = {
            "setgroups": "deny",
            "uid_map": f"{_NOBODY} {os.geteuid()} 1",
            "gid_map": f"{_NOBODY} {os.getegid()} 1",
        }
    here, there = socket.socketpair()
    parent, helper = os.getpid(), os.fork()
    if helper == 0:  # outside of the new namespaces, where root may write every id
        here.close()  # so that the wait ends when the parent is killed
        with suppress(OSError):
            if there.recv(1):
                for name, text in settings.items():
                    with open(f"/proc/{parent}/{name}", "w") as file:
                        file.write(text)
                os._exit(0)
        os._exit(1)
    kernel.unshare(_NAMESPACES)
    here.send(b"x")
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError(1, "the user ids of the new namespace could not be set")
    if all_ids:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    if (child := os.fork()) != 0:
        control.close()
        os.waitpid(child, 0)
        os._exit(0)
    kernel.die_with(0)  # the number of what is outside the PID namespace
    kernel.set_hostname("sandbox")


class Supervisor:
    """Runs the requests that come over the control socket, one at a time."""

    def __init__(self, control: socket.socket, *, weak: bool) -> None:
        self._control, self._weak = control, weak

    def serve(self) -> None:
        """Handle requests one after another until the library closes its socket."""
        while True:
            message, fds, _, _ = socket.recv_fds(self._control, 4096, 3)
            if not message:
                return
            start = time.monotonic()
            try:
                ended, status = self.run(json.loads(message), fds, start)
                reply = (ended, time.monotonic() - start, status)
            except OSError as error:
                reply = ("broken", 0.0, str(error))
            for fd in fds:
                os.close(fd)
            self._control.send(json.dumps(reply).encode())

    def run(self, limits: Limits, fds: list[int], start: float) -> tuple[str, int | str | None]:
        """Run one program: how it ended ("done" or "timeout"), and its exit status if it exited by itself."""
        text, checks, verdict = fds
        asking, answering = socket.socketpair()
        pids: list[int] = []
        try:
            # The program runs when the checks ask for it, so that the clock is watched from its first instruction on.
            with asking, answering, open(os.devnull, "wb") as null:
                for_program = (null.fileno(), answering.fileno(), text)
                pids.append(self.start_jail(_run_program, for_program, limits))
                for_checks = (null.fileno(), asking.fileno(), checks, verdict)
                pids.append(self.start_jail(_run_checks, for_checks, limits))
            ended = self._watch(pids[1], start + limits["seconds"])
            if ended == "done" and _status(pids[1]) == _LOST:
                # The program closed its channel. When it has exited, its status says whether by a signal.
                ended = self._watch(pids[0], start + limits["seconds"])
            return ended, _status(pids[0])
        finally:
            _kill(pids)

    def _watch(self, pid: int, deadline: float) -> str:
        """Wait until a process ends ("done") or the time is over ("timeout"), and say which."""
        done, control = os.pidfd_open(pid), self._control.fileno()
        try:
            ready, _, _ = select.select([done, control], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(done)
        if control in ready:
            os._exit(0)  # the library is gone, and with this process all others end
        return "done" if ready else "timeout"

    def start_jail(self, act: Callable[[], None], fds: tuple[int, ...], limits: Limits) -> int:
        """Fork a process into a jail, where it calls `act`; `fds` become its descriptors 1 (and 2), 3, 4, ..."""
        reading, writing = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            problem = ""
            try:
                try:
                    writing = _arrange(fds, writing)
                    if not self._weak:
                        _show_only_the_library(limits["disk_mb"])
                    _close_jail(limits, parent, weak=self._weak)
                except (OSError, ValueError) as error:
                    problem = f"{type(error).__name__}: {error}"
                os.write(writing, problem.encode())
                os.close(writing)
                if not problem:
                    act()
                    os._exit(0)
            finally:
                os._exit(70)
        os.close(writing)
        with open(reading, errors="replace") as messages:
            problem = messages.read()
        if problem:
            os.waitpid(pid, 0)
            raise OSError(problem)  # nothing was run in it
        return pid


def _status(pid: int) -> int | None:
    """The exit status of a process, which stays a zombie, or None if it has not exited."""
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _kill(pids: list[int]) -> None:
    """Kill the jails with all their threads; none of them can start a further process."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _arrange(fds: tuple[int, ...], last: int) -> int:
    """Number the descriptors: fds[0] becomes 1 and 2, the others follow from 3, then `last`; close all others."""
    wanted = (fds[0], fds[0], *fds[1:], last)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 32) for fd in wanted]
    for target, fd in enumerate(high, start=1):
        os.dup2(fd, target)
    os.closerange(len(wanted) + 1, 1 << 16)
    return len(wanted)


def _show_only_the_library(disk_mb: int) -> None:
    """Replace the machine's files by Python's library, a few devices and an empty /tmp, which goes with the process.

    The new root is mounted over /proc, of which nothing is shown. Python's multiprocessing needs /dev/shm for locks.
    """
    root = "/proc"
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", flags=kernel.MS_NOSUID | kernel.MS_NODEV, data="size=1m,mode=755")
    sealed = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    for folder, size in ((_HOME, f"{disk_mb}m,nr_inodes=4096"), ("/dev/shm", "1m,nr_inodes=256")):
        os.makedirs(root + folder)
        kernel.mount("tmpfs", root + folder, "tmpfs", flags=sealed, data=f"mode=1777,size={size}")
    python = [os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")]
    for path in filter(os.path.exists, dict.fromkeys((*_SYSTEM, *python, *sys.path, *_DEVICES))):
        target = root + path  # the library may lie below /tmp, and is then shown in the new one
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            open(target, "a").close()
        kernel.mount(path, target, flags=kernel.MS_BIND | kernel.MS_REC)
        if path not in _DEVICES:
            kernel.read_only(target, below=True)
    kernel.pivot(root)
    kernel.read_only("/", below=False)


def _close_jail(limits: Limits, parent: int, *, weak: bool) -> None:
    """In the forked process: give up rights, resources and system calls, in this order."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        except OSError:  # a container's root may lack that right
            if not weak:
                raise
    os.environ.clear()
    os.environ.update(HOME=_HOME, TMPDIR=_HOME, LANG="C.UTF-8", PATH="")
    os.chdir("/" if weak else _HOME)
    os.umask(0o077)
    for what, limit in {
        resource.RLIMIT_CPU: int(limits["seconds"]) + 2,
        resource.RLIMIT_AS: limits["memory_mb"] << 20,
        resource.RLIMIT_FSIZE: limits["disk_mb"] << 20,
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_SIGPENDING: 1024,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }.items():
        _, hard = resource.getrlimit(what)
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (value, value))
    if not weak:
        kernel.drop_capabilities()
    kernel.die_with(parent)  # not before: the kernel forgets it when a process changes its user
    kernel.restrict_calls(files=not weak)


def _run_program() -> None:
    random.seed(0)
    with open(4, encoding="utf-8", errors="surrogatepass") as file:
        text = file.read()
    program.main(socket.socket(fileno=3), text)


def _run_checks() -> None:
    random.seed(0)
    with open(4, encoding="utf-8", errors="surrogatepass") as file:
        test = checker.ProgramTest(*json.load(file))
    reason, detail = checker.judge(socket.socket(fileno=3), test)
    os.write(5, json.dumps([reason, detail]).encode())
    if reason == "gone":
        os._exit(_LOST)
