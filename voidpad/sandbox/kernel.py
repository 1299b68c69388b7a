"""Linux system calls through ctypes: namespaces, mounts, capabilities and the seccomp filter.

Every function raises OSError when the kernel refuses.
"""

import ctypes
import os
import platform
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH, _AT_FDCWD, _AT_RECURSIVE = 2, -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38

# System calls with their numbers on x86-64 and arm64. First those that the sandbox itself makes by number.
_OWN_CALLS = "capset 126 91, pivot_root 155 41, seccomp 317 277, mount_setattr 442 442"
# What Python programs need; the filter refuses all others. The most frequent come first.
_CALLS = """
    read 0 63, write 1 64, close 3 57, fstat 5 80, poll 7 -, lseek 8 62, mmap 9 222, mprotect 10 226,
    munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
    ioctl 16 29, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, pipe 22 -, select 23 -,
    sched_yield 24 124, mremap 25 216, msync 26 227, mincore 27 232, madvise 28 233, dup 32 23, dup2 33 -,
    pause 34 -, nanosleep 35 101, getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172,
    sendto 44 206, recvfrom 45 207, recvmsg 47 212, shutdown 48 210, getsockname 51 204,
    getpeername 52 205, socketpair 53 199, getsockopt 55 209, clone 56 220, exit 60 93, wait4 61 260,
    kill 62 129, uname 63 160, fcntl 72 25, flock 73 32, fsync 74 82, fdatasync 75 83, ftruncate 77 46,
    getcwd 79 17, umask 95 166, gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179,
    times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, setpgid 109 154,
    getppid 110 173, getpgrp 111 -, setsid 112 157, getgroups 115 158, getresuid 118 148,
    getresgid 120 150, getpgid 121 155, getsid 124 156, rt_sigpending 127 136, rt_sigtimedwait 128 137,
    rt_sigsuspend 130 133, sigaltstack 131 132, fstatfs 138 44, getpriority 140 141,
    sched_getparam 143 121, sched_getscheduler 145 120, sched_get_priority_max 146 125,
    sched_get_priority_min 147 126, prctl 157 167, arch_prctl 158 -, setrlimit 160 164, gettid 186 178,
    time 201 -, futex 202 98, sched_getaffinity 204 123, epoll_create 213 -, set_tid_address 218 96,
    restart_syscall 219 128, fadvise64 221 223, clock_gettime 228 113, clock_getres 229 114,
    clock_nanosleep 230 115, exit_group 231 94, epoll_wait 232 -, epoll_ctl 233 21, tgkill 234 131,
    waitid 247 95, pselect6 270 72, ppoll 271 73, set_robust_list 273 99, epoll_pwait 281 22,
    timerfd_create 283 85, eventfd 284 -, timerfd_settime 286 86, timerfd_gettime 287 87, eventfd2 290 19,
    epoll_create1 291 20, dup3 292 24, pipe2 293 59, preadv 295 69, pwritev 296 70, prlimit64 302 261,
    getcpu 309 168, getrandom 318 278, membarrier 324 283, preadv2 327 286, pwritev2 328 287, rseq 334 293,
    sendfile 40 71, fallocate 285 47, copy_file_range 326 285, close_range 436 436
"""
# What opens, looks at or changes files by name.
_FILE_CALLS = """
    open 2 -, stat 4 -, lstat 6 -, access 21 -, truncate 76 45, getdents 78 -, chdir 80 49, fchdir 81 50,
    rename 82 -, mkdir 83 -, rmdir 84 -, creat 85 -, link 86 -, unlink 87 -, symlink 88 -, readlink 89 -,
    chmod 90 -, fchmod 91 52, chown 92 -, fchown 93 55, lchown 94 -, utime 132 -, mknod 133 -,
    statfs 137 43, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12,
    flistxattr 196 13, getdents64 217 61, utimes 235 -, openat 257 56, mkdirat 258 34, mknodat 259 33,
    fchownat 260 54, newfstatat 262 79, unlinkat 263 35, renameat 264 38, linkat 265 37, symlinkat 266 36,
    readlinkat 267 78, fchmodat 268 53, faccessat 269 48, utimensat 280 88, renameat2 316 276,
    statx 332 291, faccessat2 439 439
"""
# Of these calls only some are allowed: which argument decides, and the values it may have.
_CONDITIONS = {
    # Threads, as glibc and musl start them; no further processes.
    "clone": (0, (0x3D0F00, 0x7D0F00)),
    # A pair of datagram sockets could send to any path, which a filter cannot see. Streams and packets, with flags.
    "socketpair": (1, (0x1, 0x801, 0x80001, 0x80801, 0x5, 0x805, 0x80005, 0x80805)),
    # Locks, flags and copies of descriptors; not the size of a pipe, and not whom the kernel signals.
    "fcntl": (1, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)),
    # Whether it is a terminal, how much there is to read, flags.
    "ioctl": (1, (0x5401, 0x5411, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # Names of threads and memory, and questions.
    "prctl": (0, (3, 15, 16, 21, 23, 39, 0x53564D41)),
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _ABSENT, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000
_NEWER = 424  # the C library tries calls from here on and has an older one where they are absent


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _numbers(table: str) -> dict[str, int]:
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        raise OSError(38, f"no system call numbers are known for {machine}")
    column = 1 if machine == "x86_64" else 2
    rows = [row.split() for row in table.split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _syscall(name: str, *args: object) -> int:
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _checked(_libc.syscall(ctypes.c_long(_numbers(_OWN_CALLS)[name]), *wide), name)


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(*map(ctypes.c_ulong, (option, value, 0, 0, 0))), "prctl")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def set_hostname(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), len(name)), "sethostname")


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, data: str = "") -> None:
    names = [os.fsencode(text) for text in (source, target, kind)]
    _checked(_libc.mount(*names, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def read_only(path: str, *, below: bool) -> None:
    """What is mounted at `path`, and with `below` also what is mounted below it, becomes read-only, without devices
    and setuid."""
    attributes = struct.pack("=QQQQ", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    flags = _AT_RECURSIVE if below else 0
    _syscall("mount_setattr", _AT_FDCWD, os.fsencode(path), flags, attributes, len(attributes))


def pivot(root: str) -> None:
    """Make `root` the root folder and unmount the old one."""
    os.chdir(root)
    _syscall("pivot_root", b".", b".")
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end now if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(70)


def drop_capabilities() -> None:
    """Give up every capability of this process; `restrict_calls` sees to it that no exec gives one back."""
    _syscall("capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *(0,) * 6))


def allowed_calls(*, files: bool) -> dict[str, int]:
    """The system calls that Python programs need, by name. Without `files` no file can be opened or looked at."""
    return _numbers(_CALLS) | (_numbers(_FILE_CALLS) if files else {})


def seccomp_filter(*, files: bool) -> bytes:
    """A BPF filter for this process (its pid is in it): the allowed calls, no others.

    There are threads but no further processes, and signals and limits of this process alone.
    """
    machine, number, own = platform.machine(), allowed_calls(files=files), os.getpid()
    conditions = _CONDITIONS | {"prlimit64": (0, (0, own)), "kill": (0, (own,)), "tgkill": (0, (own,))}
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":  # the x32 calls have other numbers for the same things
        steps += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for name in number:
        if name not in conditions:
            steps += [(_EQUAL, 0, 1, number[name]), (_RETURN, 0, 0, _ALLOW)]
    for name, (argument, values) in conditions.items():
        steps += [(_EQUAL, 0, 2 * len(values) + 2, number[name]), (_LOAD, 0, 0, 16 + 8 * argument)]
        for value in values:
            steps += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
        steps.append((_RETURN, 0, 0, _REFUSE))
    steps += [(_AT_LEAST, 0, 1, _NEWER), (_RETURN, 0, 0, _ABSENT), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def restrict_calls(*, files: bool) -> None:
    """Give up privileges that an exec could restore, and install the filter, for good."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    code = seccomp_filter(files=files)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(code) // 8, ctypes.addressof(buffer))
    _syscall("seccomp", 1, 0, ctypes.byref(program))
