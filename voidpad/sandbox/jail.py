"""What a process gives up before it may run anything: its root, its identity, its rights, its limits."""

import fcntl
import os
import resource
import signal
import socket
from collections.abc import Callable
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
class Bounds:
    """The limits of one jail; memory and disk in bytes."""

    cpu_seconds: int
    memory: int
    disk: int
    processes: int


@dataclass(frozen=True)
class Cell:
    """One process to jail: what it runs, and all that it holds while it does."""

    role: Callable[[], None]
    fds: tuple[int, ...]  # become its descriptors 1 (and 2), 3, 4, ...
    home: str  # the only folder it may write in
    bounds: Bounds


class JailError(Exception):
    """A jail that could not be closed; nothing was run in it."""


def flags(layers: frozenset[str]) -> int:
    return sum(bits for name, bits in NAMESPACES.items() if name in layers)


@dataclass(frozen=True)
class Jail:
    """Forks processes that hold nothing but the descriptors they are given."""

    layers: frozenset[str]
    paths: tuple[str, ...]  # readable

    def start(self, cell: Cell) -> int:
        """Fork a process into a jail; its pid, as seen from here.

        A go-between makes the namespaces, because only its children enter a new PID namespace, and leaves at
        once; the jailed process, first in its namespace, becomes the keeper's own child.
        """
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keeper, between = os.getpid(), os.fork()
        if between == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the keeper's
            here.close()
            self._guarded(there, lambda: self._pass(there, keeper, cell))
        there.close()
        try:
            with here:
                said = self._follow(here, between)
        finally:
            os.waitpid(between, 0)
        if "closed" not in said:
            if "pid" in said:
                os.waitpid(int(said["pid"]), 0)
            raise JailError(said.get("problem", "a process died while its jail was set up"))
        return int(said["pid"])

    def _follow(self, here: socket.socket, between: int) -> dict[str, str]:
        """What the go-between and the jailed process say until both have let go of the socket."""
        said: dict[str, str] = {}
        try:
            while message := here.recv(4096).decode(errors="replace"):
                word, _, rest = message.partition(" ")
                said[word] = rest
                if word == "apart":
                    if "user namespace" in self.layers:
                        _identify(between)
                    here.send(b"named")
        except OSError as error:
            said.setdefault("problem", str(error))
        return said

    def _pass(self, there: socket.socket, keeper: int, cell: Cell) -> None:
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
            _await_parent(keeper)
        kept = _arrange(cell.fds, there)
        self._guarded(kept, lambda: self._run(kept, cell))

    def _run(self, kept: socket.socket, cell: Cell) -> None:
        self._close(cell.home, cell.bounds)
        with kept:
            kept.send(b"closed")
        cell.role()

    def _guarded(self, there: socket.socket, act: Callable[[], None]) -> None:
        """Run `act` in a forked process, which ends here whatever happens."""
        try:
            act()
            os._exit(0)
        except (OSError, ValueError) as error:
            there.send(f"problem {type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(70)

    def _close(self, home: str, bounds: Bounds) -> None:
        os.setsid()
        if "mount namespace" in self.layers:
            root.cover(bounds.disk, self.paths)
        if "ipc namespace" in self.layers:
            kernel.set_hostname("sandbox")
        if "user namespace" not in self.layers and os.geteuid() == 0:
            os.setgroups([])
            become_nobody()
        os.environ.clear()
        os.environ.update(HOME=home, TMPDIR=home, LANG="C.UTF-8", PATH="")
        os.chdir(home)
        os.umask(0o077)
        _limit(bounds)
        self._give_up(home)

    def _give_up(self, home: str) -> None:
        """The last steps, after which there is no way back: capabilities, privileges, files, system calls."""
        if flags(self.layers):
            kernel.drop_capabilities()
        if "no new privileges" in self.layers:
            kernel.no_new_privileges()
        if "landlock" in self.layers:
            shared = [root.SHARED_MEMORY] if "mount namespace" in self.layers else []
            kernel.landlock(read=[*self.paths, *root.DEVICES], write=[home, "/dev/null", *shared])
        if "seccomp" in self.layers:
            kernel.seccomp(strict=not self.layers.issuperset(NAMESPACES))


def _identify(pid: int) -> None:
    """Name one uid in the new user namespace: nobody's, where this process may give that, else its own."""
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


def _await_parent(keeper: int) -> None:
    """Without a PID namespace to end it, a jail dies with the keeper, once the go-between is gone."""
    while os.getppid() != keeper:
        os.sched_yield()
    kernel.die_with_parent()


def _arrange(fds: tuple[int, ...], there: socket.socket) -> socket.socket:
    """Descriptors: 0 stays empty, fds[0] is 1 and 2, the others follow from 3, then `there`; no more."""
    wanted = (fds[0], fds[0], *fds[1:], there.fileno())
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 32) for fd in wanted]
    for target, fd in enumerate(high, start=1):
        os.dup2(fd, target)
    os.closerange(len(wanted) + 1, 1 << 16)
    there.detach()
    return socket.socket(fileno=len(wanted))


def _limit(bounds: Bounds) -> None:
    wanted = {
        resource.RLIMIT_CPU: bounds.cpu_seconds,
        resource.RLIMIT_AS: bounds.memory,
        resource.RLIMIT_FSIZE: bounds.disk,
        resource.RLIMIT_NPROC: bounds.processes,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for what, bound in wanted.items():
        _, hard = resource.getrlimit(what)
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(what, (value, value))
