"""Forks processes into jails: new namespaces, another user, resource limits, Landlock and seccomp."""

import fcntl
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from voidpad.sandbox import kernel, root

NAMESPACES = {
    "user namespace": kernel.NEWUSER,
    "pid namespace": kernel.NEWPID,
    "mount namespace": kernel.NEWNS,
    "network namespace": kernel.NEWNET,
    "ipc namespace": kernel.NEWIPC | kernel.NEWUTS,
}
LAYERS = (*NAMESPACES, "other uid", "landlock", "seccomp", "no new privileges")
NOBODY = 65534


@dataclass(frozen=True)
class JailLimits:
    """The resource limits of one jail; memory and disk in bytes."""

    cpu_seconds: int
    memory: int
    disk: int
    processes: int


@dataclass(frozen=True)
class JailProcess:
    """A process to be started in a jail: the function it runs and the descriptors it inherits."""

    main: Callable[[], None]
    fds: tuple[int, ...]  # become its descriptors 1 (and 2), 3, 4, ...
    home: str  # the only folder it may write in
    limits: JailLimits
    killed_first: bool = False  # when memory is short, before the supervisor and the checks


class JailError(Exception):
    """A jail could not be set up; nothing was run in it."""


def flags(layers: frozenset[str]) -> int:
    return sum(bits for name, bits in NAMESPACES.items() if name in layers)


@dataclass(frozen=True)
class Jail:
    """Starts processes with the layers of protection that are available here."""

    layers: frozenset[str]
    paths: tuple[str, ...]  # readable

    def start(self, process: JailProcess) -> int:
        """Fork a process into a jail and return its pid in this process's PID namespace.

        An intermediate process creates the namespaces, because only the children of the process that calls unshare
        enter a new PID namespace. It exits at once, and the jailed process becomes a child of the supervisor, which
        adopts orphans.
        """
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        supervisor, intermediate = os.getpid(), os.fork()
        if intermediate == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the supervisor has its own handler
            here.close()
            self._guarded(there, lambda: self._create(there, supervisor, process))
        there.close()
        try:
            with here:
                messages = self._follow(here, intermediate)
        finally:
            os.waitpid(intermediate, 0)
        if "closed" not in messages:
            if "pid" in messages:
                os.waitpid(int(messages["pid"]), 0)
            raise JailError(messages.get("problem", "a process died while its jail was set up"))
        return int(messages["pid"])

    def _follow(self, here: socket.socket, intermediate: int) -> dict[str, str]:
        """Collect the messages of the intermediate and the jailed process until both have closed the socket."""
        messages: dict[str, str] = {}
        try:
            while message := here.recv(4096).decode(errors="replace"):
                word, _, rest = message.partition(" ")
                messages[word] = rest
                if word == "apart":
                    if "user namespace" in self.layers:
                        _map_user(intermediate)
                    here.send(b"named")
        except OSError as error:
            messages.setdefault("problem", str(error))
        return messages

    def _create(self, there: socket.socket, supervisor: int, process: JailProcess) -> None:
        if process.killed_first:
            with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")
        if flags(self.layers):
            kernel.unshare(flags(self.layers))
        there.send(b"apart")
        if there.recv(64) != b"named":
            return
        if "user namespace" in self.layers:
            become_nobody()
        child = os.fork()
        if child:
            there.send(f"pid {child}".encode())
            os._exit(0)
        if "pid namespace" not in self.layers:
            _await_parent(supervisor)
        kept = _arrange(process.fds, there)
        self._guarded(kept, lambda: self._run(kept, process))

    def _run(self, kept: socket.socket, process: JailProcess) -> None:
        self._close(process.home, process.limits)
        with kept:
            kept.send(b"closed")
        process.main()

    def _guarded(self, there: socket.socket, act: Callable[[], None]) -> None:
        """Run `act` in a forked process and exit; an OSError or ValueError is sent to the parent as text."""
        try:
            act()
            os._exit(0)
        except (OSError, ValueError) as error:
            there.send(f"problem {type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(70)

    def _close(self, home: str, limits: JailLimits) -> None:
        os.setsid()
        if "mount namespace" in self.layers:
            root.cover(limits.disk, self.paths)
        if "ipc namespace" in self.layers:
            kernel.set_hostname("sandbox")
        if "user namespace" not in self.layers and os.geteuid() == 0:
            os.setgroups([])
            become_nobody()
        os.environ.clear()
        os.environ.update(HOME=home, TMPDIR=home, LANG="C.UTF-8", PATH="")
        os.chdir(home)
        os.umask(0o077)
        _set_limits(limits)
        self._give_up(home)

    def _give_up(self, home: str) -> None:
        """Give up capabilities, privileges, files and system calls, in this order."""
        if flags(self.layers):
            kernel.drop_capabilities()
        if "no new privileges" in self.layers:
            kernel.no_new_privileges()
        if "landlock" in self.layers:
            shared = [root.SHARED_MEMORY] if "mount namespace" in self.layers else []
            kernel.landlock(read=[*self.paths, *root.DEVICES], write=[home, "/dev/null", *shared])
        if "seccomp" in self.layers:
            kernel.seccomp(strict=not self.layers.issuperset(NAMESPACES))


def _map_user(pid: int) -> None:
    """Map `nobody` in the new user namespace to the real `nobody`, or to this process's user if it may not."""
    with open("/proc/self/uid_map") as file:
        spans = [tuple(map(int, line.split())) for line in file]
    outer = NOBODY if any(start <= NOBODY < start + count for start, _, count in spans) else 0
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {outer} 1"),
                       ("gid_map", f"{NOBODY} {outer} 1")):  # fmt: skip
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(text)


def become_nobody() -> None:
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _await_parent(supervisor: int) -> None:
    """Wait until the supervisor has adopted this process, then ask to be killed when the supervisor ends."""
    while os.getppid() != supervisor:
        os.sched_yield()
    kernel.die_with_parent()


def _arrange(fds: tuple[int, ...], there: socket.socket) -> socket.socket:
    """Number the descriptors: fds[0] becomes 1 and 2, the others follow from 3, then `there`; close all others."""
    wanted = (fds[0], fds[0], *fds[1:], there.fileno())
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 32) for fd in wanted]
    for target, fd in enumerate(high, start=1):
        os.dup2(fd, target)
    os.closerange(len(wanted) + 1, 1 << 16)
    there.detach()
    return socket.socket(fileno=len(wanted))


def _set_limits(limits: JailLimits) -> None:
    wanted = {
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_AS: limits.memory,
        resource.RLIMIT_FSIZE: limits.disk,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for what, limit in wanted.items():
        _, hard = resource.getrlimit(what)
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (value, value))
