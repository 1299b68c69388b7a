"""Linux system calls through ctypes: namespaces, mounts, capabilities, Landlock, seccomp.

Every function raises OSError when the kernel refuses; the caller decides whether that matters.
"""

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Iterable
from functools import cache

_libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWCGROUP = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x02000000,
)  # fmt: skip
_ANY_NAMESPACE = NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | NEWCGROUP | 0x80
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
MNT_DETACH = 2
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47

# System calls numbered above 423 have the same number on every architecture.
_COMMON = {
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "clone3": 435, "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
    "memfd_secret": 447, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "pidfd_send_signal": 424, "process_madvise": 440, "process_mrelease": 448, "fchmodat2": 452,
    "setxattrat": 463, "removexattrat": 466,
}  # fmt: skip
_BY_MACHINE = {
    "x86_64": {
        "socket": 41, "clone": 56, "execve": 59, "kill": 62, "shmget": 29, "semget": 64, "msgget": 68,
        "ptrace": 101, "syslog": 103, "capset": 126, "rt_sigqueueinfo": 129, "uselib": 134,
        "personality": 135, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159,
        "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
        "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
        "init_module": 175, "delete_module": 176, "quotactl": 179, "tkill": 200, "lookup_dcookie": 212,
        "clock_settime": 227, "tgkill": 234, "mq_open": 240, "kexec_load": 246, "add_key": 248,
        "request_key": 249, "keyctl": 250, "unshare": 272, "rt_tgsigqueueinfo": 297, "perf_event_open": 298,
        "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305,
        "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
        "seccomp": 317, "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "execveat": 322,
        "userfaultfd": 323, "socketpair": 53, "prlimit64": 302, "fcntl": 72, "ioctl": 16, "setpriority": 141,
        "ioprio_set": 251, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203,
        "sched_setattr": 314, "connect": 42, "bind": 49, "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92,
        "fchown": 93, "lchown": 94, "fchownat": 260, "utime": 132, "utimes": 235, "futimesat": 261,
        "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197,
        "lremovexattr": 198, "fremovexattr": 199, "truncate": 76, "migrate_pages": 256, "move_pages": 279,
        "sync": 162, "syncfs": 306,
    },
    "aarch64": {
        "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58,
        "quotactl": 60, "acct": 89, "capset": 91, "personality": 92, "unshare": 97, "kexec_load": 104,
        "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117,
        "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "reboot": 142, "sethostname": 161,
        "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "msgget": 186,
        "semget": 190, "shmget": 194, "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219,
        "clone": 220, "execve": 221, "swapon": 224, "swapoff": 225, "rt_tgsigqueueinfo": 240,
        "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "finit_module": 273, "seccomp": 277, "memfd_create": 279, "bpf": 280, "execveat": 281,
        "userfaultfd": 282, "kexec_file_load": 294, "socketpair": 199, "prlimit64": 261, "fcntl": 25, "ioctl": 29,
        "setpriority": 140, "ioprio_set": 30, "sched_setparam": 118, "sched_setscheduler": 119,
        "sched_setaffinity": 122, "sched_setattr": 274, "connect": 203, "bind": 200, "fchmod": 52, "fchmodat": 53,
        "fchownat": 54, "fchown": 55, "utimensat": 88, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
        "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "truncate": 45, "migrate_pages": 238,
        "move_pages": 239, "sync": 81, "syncfs": 267,
    },
}  # fmt: skip
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEEDED = ("socketpair", "prlimit64", "fcntl", "ioctl", "clone", "clone3", "capset", "seccomp",
           "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")  # fmt: skip
# Harmless where a process has processes, files and sockets of its own only.
_WITHIN_NAMESPACES = (
    "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal", "setpriority",
    "ioprio_set", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr", "socket", "connect",
    "bind", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes",
    "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr",
    "fremovexattr", "removexattrat", "truncate",
)  # fmt: skip


def _numbers() -> dict[str, int]:
    return _COMMON | _BY_MACHINE.get(platform.machine(), {})


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(name: str, *args: object) -> int:
    number = _numbers().get(name)
    if number is None:
        raise OSError(38, f"{name}: unknown on {platform.machine()}")
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _checked(_libc.syscall(ctypes.c_long(number), *wide), name)


def _prctl(*args: int) -> None:
    _checked(_libc.prctl(*(ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0)[:5])), "prctl")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, data: str = "") -> None:
    _checked(_libc.mount(*(os.fsencode(t) for t in (source, target, kind)), ctypes.c_ulong(flags),
                         data.encode()), f"mount {target}")  # fmt: skip


def read_only(path: str) -> None:
    """Everything mounted at and below `path` becomes read-only, without devices and setuid."""
    attributes = struct.pack("=QQQQ", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    _syscall("mount_setattr", _AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, attributes, len(attributes))


def pivot(root: str) -> None:
    """Make `root` the root folder and unmount the old one."""
    os.chdir(root)
    _syscall("pivot_root", b".", b".")
    _checked(_libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    _prctl(_PR_SET_PDEATHSIG, int(number))


def adopt_orphans(do: bool = True) -> None:
    """Whether descendants that lose their parent become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(do))


def hide_memory() -> None:
    _prctl(_PR_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_hostname(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), len(name)), "sethostname")


def drop_capabilities() -> None:
    """Give up every capability of this process, and where allowed also those that an exec could restore."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
    _libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(4), 0, 0, 0)
    _syscall("capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *(0,) * 6))


# Landlock rights are bits; how many of them exist depends on the version that the kernel supports.
_EXECUTE, _WRITE, _READ, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE = 1 << 14
_CHANGE = sum(1 << bit for bit in (4, 5, 7, 8, 9, 10, 12, 13))  # remove, make, link, move
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_RULE_PATH_BENEATH = 1


def landlock_version() -> int:
    try:
        return _syscall("landlock_create_ruleset", ctypes.c_void_p(), 0, 1)
    except OSError:
        return 0


def landlock(*, read: Iterable[str], write: Iterable[str]) -> None:
    """Restrict this process for good: read below `read`, read and write below `write`, no exec, no connections."""
    version = landlock_version()
    if not version:
        raise OSError(38, "landlock: not in this kernel")
    handled = (1 << _FS_BITS.get(version, 16)) - 1
    attributes = struct.pack("=QQQ", handled, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _syscall("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        _beneath(ruleset, read, _READ | _READ_DIR)
        _beneath(ruleset, write, (_READ | _READ_DIR | _WRITE | _TRUNCATE | _CHANGE) & handled)
        _syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _beneath(ruleset: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        if not os.path.exists(path):
            continue
        fits = rights if os.path.isdir(path) else rights & (_READ | _WRITE | _TRUNCATE)
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            _syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", fits, fd), 0)
        finally:
            os.close(fd)


_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _REFUSE, _ABSENT, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000
_ARGUMENT = (16, 24, 32)  # where the low halves of the first arguments are
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET = 1, 1, 5
# Ways to have the kernel signal another process when a descriptor becomes ready.
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 10, 15, 0x8901, 0x8902
_Step = tuple[int, int, int, int]


def seccomp_filter(*, refuse: Iterable[str]) -> bytes:
    """A BPF filter that refuses the named calls, new namespaces, sockets other than Unix ones, changes of other
    processes' limits, and signals that are sent through descriptors."""
    number, machine = _numbers(), platform.machine()
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":  # the x32 calls have other numbers for the same things
        steps += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for name in refuse:
        if name in number:
            steps += [(_EQUAL, 0, 1, number[name]), (_RETURN, 0, 0, _REFUSE)]
    # clone3 hides its flags behind a pointer; "absent" makes the C library fall back to clone.
    steps += [(_EQUAL, 0, 1, number["clone3"]), (_RETURN, 0, 0, _ABSENT)]
    steps += [(_EQUAL, 0, 4, number["clone"]), (_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, _ANY_NAMESPACE)]
    steps += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    # Network namespaces do not cover every family (vsock), so the family is checked too.
    steps += _if_call(number["socket"], _only(_AF_UNIX, argument=0))
    # A pair of datagram sockets can send to any path, which a filter cannot see.
    pair = [(_LOAD, 0, 0, _ARGUMENT[1]), (_AND, 0, 0, 0xF), (_EQUAL, 1, 0, _SOCK_STREAM)]
    pair += [(_EQUAL, 0, 1, _SOCK_SEQPACKET), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    steps += _if_call(number["socketpair"], pair)
    steps += _if_call(number["prlimit64"], _only(0, argument=0))
    steps += _if_call(number["fcntl"], _none_of((_F_SETOWN, _F_SETSIG, _F_SETOWN_EX), argument=1))
    steps += _if_call(number["ioctl"], _none_of((_FIOSETOWN, _SIOCSPGRP), argument=1))
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _if_call(number: int, then: list[_Step]) -> list[_Step]:
    """Steps that apply to one call; `then` must end with a decision."""
    return [(_EQUAL, 0, len(then), number), *then]


def _only(value: int, *, argument: int) -> list[_Step]:
    return [(_LOAD, 0, 0, _ARGUMENT[argument]), (_EQUAL, 1, 0, value), (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW)]  # fmt: skip


def _none_of(values: Iterable[int], *, argument: int) -> list[_Step]:
    steps = [(_LOAD, 0, 0, _ARGUMENT[argument])]
    for value in values:
        steps += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _REFUSE)]
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def seccomp(*, strict: bool) -> None:
    """Refuse the calls no checked program needs.

    `strict`, for jails without namespaces of their own, also refuses what would reach other processes and the
    files of the machine: signals, priorities, sockets with names, and changes of a file's rights, times and owner.
    """
    install(_usual_filter(strict=strict))


@cache
def _usual_filter(*, strict: bool) -> bytes:
    if platform.machine() not in _BY_MACHINE:
        raise OSError(38, f"seccomp: no call numbers for {platform.machine()}")
    allowed = _NEEDED if strict else (*_NEEDED, *_WITHIN_NAMESPACES)
    return seccomp_filter(refuse=[name for name in _numbers() if name not in allowed])


def warm_up() -> None:
    """Build the filters before the forks that install them, so that this is done once."""
    if platform.machine() in _BY_MACHINE:
        for strict in (True, False):
            _usual_filter(strict=strict)


def install(code: bytes) -> None:
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(code) // 8, ctypes.addressof(buffer))
    _syscall("seccomp", 1, 0, ctypes.byref(program))
