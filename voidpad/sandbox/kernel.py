"""Linux system calls through ctypes: namespaces, mounts, capabilities and the seccomp filter.

Every function raises OSError when the kernel refuses.
"""

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWCGROUP = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x02000000,
)  # fmt: skip
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18
_MNT_DETACH, _AT_FDCWD, _AT_RECURSIVE, _AT_EMPTY_PATH = 2, -100, 0x8000, 0x1000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 38, 47

# The calls that the sandbox itself makes by number; above 423 the numbers are the same on every machine.
_OWN_CALLS = {
    "x86_64": {"capset": 126, "pivot_root": 155, "seccomp": 317},
    "aarch64": {"capset": 91, "pivot_root": 41, "seccomp": 277},
}
_OWN_COMMON = {"open_tree": 428, "move_mount": 429, "mount_setattr": 442}


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(name: str, *args: object) -> int:
    machine = platform.machine()
    if machine not in _OWN_CALLS:
        raise OSError(38, f"{name}: unknown on {machine}")
    number = (_OWN_CALLS[machine] | _OWN_COMMON)[name]
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _checked(_libc.syscall(ctypes.c_long(number), *wide), name)


def _prctl(*args: int) -> None:
    _checked(_libc.prctl(*(ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0)[:5])), "prctl")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def set_hostname(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), len(name)), "sethostname")


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, data: str = "") -> None:
    _checked(_libc.mount(*(os.fsencode(t) for t in (source, target, kind)), ctypes.c_ulong(flags),
                         data.encode()), f"mount {target}")  # fmt: skip


def bind(fd: int, target: str) -> None:
    """Mount what the descriptor `fd` is open for at `target` as well."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | _AT_EMPTY_PATH
    tree = _syscall("open_tree", fd, b"", flags)
    try:
        _syscall("move_mount", tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)


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
    """Give up every capability of this process, for good."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
    _libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(4), 0, 0, 0)
    none = (struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *(0,) * 6))
    _syscall("capset", *none)


# The seccomp filter: what is not named here is refused. By machine, each call's number.
_CALLS = {
    "x86_64": """read 0 write 1 close 3 fstat 5 poll 7 lseek 8 mmap 9 mprotect 10 munmap 11 brk 12
        rt_sigaction 13 rt_sigprocmask 14 rt_sigreturn 15 ioctl 16 pread64 17 pwrite64 18 readv 19 writev 20
        pipe 22 select 23 sched_yield 24 mremap 25 msync 26 mincore 27 madvise 28 dup 32 dup2 33 pause 34
        nanosleep 35 getitimer 36 alarm 37 setitimer 38 getpid 39 sendto 44 recvfrom 45 recvmsg 47 shutdown 48
        getsockname 51 getpeername 52 socketpair 53 getsockopt 55 clone 56 exit 60 wait4 61
        kill 62 uname 63 fcntl 72 flock 73 fsync 74 fdatasync 75 ftruncate 77 getcwd 79 umask 95
        gettimeofday 96 getrlimit 97 getrusage 98 sysinfo 99 times 100 getuid 102 getgid 104 geteuid 107
        getegid 108 setpgid 109 getppid 110 getpgrp 111 setsid 112 getgroups 115 getresuid 118 getresgid 120
        getpgid 121 getsid 124 capget 125 rt_sigpending 127 rt_sigtimedwait 128 rt_sigsuspend 130
        sigaltstack 131 fstatfs 138 getpriority 140 sched_getparam 143 sched_getscheduler 145
        sched_get_priority_max 146 sched_get_priority_min 147 prctl 157 arch_prctl 158 setrlimit 160
        gettid 186 time 201 futex 202 sched_getaffinity 204 epoll_create 213 set_tid_address 218
        restart_syscall 219 fadvise64 221 timer_create 222 timer_settime 223 timer_gettime 224
        timer_getoverrun 225 timer_delete 226 clock_gettime 228 clock_getres 229 clock_nanosleep 230
        exit_group 231 epoll_wait 232 epoll_ctl 233 tgkill 234 waitid 247 pselect6 270 ppoll 271
        set_robust_list 273 get_robust_list 274 epoll_pwait 281 timerfd_create 283 eventfd 284
        timerfd_settime 286 timerfd_gettime 287 eventfd2 290 epoll_create1 291 dup3 292 pipe2 293 preadv 295
        pwritev 296 prlimit64 302 getcpu 309 getrandom 318 membarrier 324 preadv2 327 pwritev2 328 rseq 334
        sendfile 40 splice 275 tee 276 sync_file_range 277 vmsplice 278 fallocate 285 copy_file_range 326""",
    "aarch64": """read 63 write 64 close 57 fstat 80 lseek 62 mmap 222 mprotect 226 munmap 215 brk 214
        rt_sigaction 134 rt_sigprocmask 135 rt_sigreturn 139 ioctl 29 pread64 67 pwrite64 68 readv 65
        writev 66 sched_yield 124 mremap 216 msync 227 mincore 232 madvise 233 dup 23 nanosleep 101
        getitimer 102 setitimer 103 getpid 172 sendto 206 recvfrom 207 recvmsg 212 shutdown 210
        getsockname 204 getpeername 205 socketpair 199 getsockopt 209 clone 220 exit 93 wait4 260 kill 129
        uname 160 fcntl 25 flock 32 fsync 82 fdatasync 83 ftruncate 46 getcwd 17 umask 166 gettimeofday 169
        getrlimit 163 getrusage 165 sysinfo 179 times 153 getuid 174 getgid 176 geteuid 175 getegid 177
        setpgid 154 getppid 173 setsid 157 getgroups 158 getresuid 148 getresgid 150 getpgid 155 getsid 156
        capget 90 rt_sigpending 136 rt_sigtimedwait 137 rt_sigsuspend 133 sigaltstack 132 fstatfs 44
        getpriority 141 sched_getparam 121 sched_getscheduler 120 sched_get_priority_max 125
        sched_get_priority_min 126 prctl 167 setrlimit 164 gettid 178 futex 98 sched_getaffinity 123
        set_tid_address 96 restart_syscall 128 fadvise64 223 timer_create 107 timer_settime 110
        timer_gettime 108 timer_getoverrun 109 timer_delete 111 clock_gettime 113 clock_getres 114
        clock_nanosleep 115 exit_group 94 epoll_ctl 21 tgkill 131 waitid 95 pselect6 72 ppoll 73
        set_robust_list 99 get_robust_list 100 epoll_pwait 22 timerfd_create 85 timerfd_settime 86
        timerfd_gettime 87 eventfd2 19 epoll_create1 20 dup3 24 pipe2 59 preadv 69 pwritev 70 prlimit64 261
        getcpu 168 getrandom 278 membarrier 283 preadv2 286 pwritev2 287 rseq 293 sendfile 71 splice 76 tee 77
        sync_file_range 84 vmsplice 75 fallocate 47 copy_file_range 285""",
}
_FILE_CALLS = {
    "x86_64": """open 2 stat 4 lstat 6 access 21 truncate 76 getdents 78 chdir 80 fchdir 81 rename 82
        mkdir 83 rmdir 84 creat 85 link 86 unlink 87 symlink 88 readlink 89 chmod 90 fchmod 91 chown 92
        fchown 93 lchown 94 utime 132 mknod 133 statfs 137 getxattr 191 lgetxattr 192 fgetxattr 193
        listxattr 194 llistxattr 195 flistxattr 196 getdents64 217 utimes 235 openat 257 mkdirat 258
        mknodat 259 fchownat 260 newfstatat 262 unlinkat 263 renameat 264 linkat 265 symlinkat 266
        readlinkat 267 fchmodat 268 faccessat 269 utimensat 280 renameat2 316 statx 332""",
    "aarch64": """truncate 45 chdir 49 fchdir 50 fchmod 52 fchown 55 statfs 43 getxattr 8 lgetxattr 9
        fgetxattr 10 listxattr 11 llistxattr 12 flistxattr 13 getdents64 61 openat 56 mkdirat 34 mknodat 33
        fchownat 54 newfstatat 79 unlinkat 35 renameat 38 linkat 37 symlinkat 36 readlinkat 78 fchmodat 53
        faccessat 48 utimensat 88 renameat2 276 statx 291""",
}
# These have one number everywhere.
_COMMON, _COMMON_FILE_CALLS = "close_range 436 epoll_pwait2 441 futex_waitv 449", "faccessat2 439"
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _REFUSE, _ABSENT, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000
_NEWER = 424  # the C library tries calls from here on and has an older one where they are absent
_ARGUMENT = (16, 24, 32)  # where the low halves of the first arguments are
_NAMESPACES = NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | NEWCGROUP | 0x80
_CLONE_THREAD = 0x10000
_SOCK_STREAM, _SOCK_SEQPACKET = 1, 5
# Locks, flags and copies of descriptors; not the size of a pipe, and not whom the kernel signals.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
# Is it a terminal, how much is there, flags.
_IOCTL = (0x5401, 0x5411, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_PRCTL = (3, 15, 16, 21, 23, 39, 0x53564D41)  # names of threads and memory, and questions
_Step = tuple[int, int, int, int]


def allowed_calls(*, files: bool) -> dict[str, int]:
    """The system calls that Python programs need, by name. Without `files` no file can be opened or looked at."""
    machine = platform.machine()
    if machine not in _CALLS:
        raise OSError(38, f"seccomp: no call numbers for {machine}")
    texts = (_CALLS[machine], _COMMON, *((_FILE_CALLS[machine], _COMMON_FILE_CALLS) if files else ()))
    words = " ".join(texts).split()
    return {name: int(text) for name, text in zip(words[::2], words[1::2], strict=True)}


def seccomp_filter(*, files: bool) -> bytes:
    """A BPF filter for this process (its pid is in it): the allowed calls, no others.

    There are threads but no further processes, and signals to this process alone.
    """
    machine, number = platform.machine(), allowed_calls(files=files)
    thread = [(_LOAD, 0, 0, _ARGUMENT[0]), (_ANY_BIT, 0, 1, _NAMESPACES), (_RETURN, 0, 0, _REFUSE)]
    thread += [(_ANY_BIT, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    # A pair of datagram sockets can send to any path, which a filter cannot see.
    pair = [(_LOAD, 0, 0, _ARGUMENT[1]), (_AND, 0, 0, 0xF), (_EQUAL, 1, 0, _SOCK_STREAM)]
    pair += [(_EQUAL, 0, 1, _SOCK_SEQPACKET), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    conditions = {
        "clone": thread,
        "socketpair": pair,
        "fcntl": _one_of(_FCNTL, argument=1),
        "ioctl": _one_of(_IOCTL, argument=1),
        "prctl": _one_of(_PRCTL, argument=0),
        "prlimit64": _one_of((0, os.getpid()), argument=0),
        "kill": _one_of((os.getpid(),), argument=0),
        "tgkill": _one_of((os.getpid(),), argument=0),
    }
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":  # the x32 calls have other numbers for the same things
        steps += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for name in number:  # the most frequent come first
        if name not in conditions:
            steps += [(_EQUAL, 0, 1, number[name]), (_RETURN, 0, 0, _ALLOW)]
    for name, then in conditions.items():
        steps += [(_EQUAL, 0, len(then), number[name]), *then]
    steps += [(_AT_LEAST, 0, 1, _NEWER), (_RETURN, 0, 0, _ABSENT), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _one_of(values: Iterable[int], *, argument: int) -> list[_Step]:
    steps = [(_LOAD, 0, 0, _ARGUMENT[argument])]
    for value in values:
        steps += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*steps, (_RETURN, 0, 0, _REFUSE)]


def restrict_calls(*, files: bool) -> None:
    """Give up privileges that an exec could restore, and install the filter, for good."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    code = seccomp_filter(files=files)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(code) // 8, ctypes.addressof(buffer))
    _syscall("seccomp", 1, 0, ctypes.byref(program))
