# expect: failed, error
# Calls that programs need, with the arguments that would reach other processes or outlive this one.
import ctypes
import fcntl
import os
import socket
import struct
import termios

libc = ctypes.CDLL(None, use_errno=True)
other = os.getppid() or 1
file = os.open("file", os.O_CREAT | os.O_RDWR)
one, _ = socket.socketpair()
pipe, _ = os.pipe()


def forked(flags):
    pid = libc.syscall(56, flags, 0, 0, 0, 0)  # clone on x86-64; elsewhere another call that is refused
    if pid == 0:
        os._exit(0)
    if pid < 0:
        raise OSError


def checked(result):
    if result < 0:
        raise OSError


gained = []
calls = (
    lambda: os.fork(),
    lambda: forked(17),
    lambda: forked(0x10000000 | 17),  # CLONE_NEWUSER
    lambda: checked(libc.vfork()),
    lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),  # could send to any path
    lambda: fcntl.fcntl(one, fcntl.F_SETOWN, other),  # whom the kernel signals
    lambda: fcntl.fcntl(one, 10, 9),  # F_SETSIG
    lambda: fcntl.fcntl(pipe, 1031, 1 << 20),  # F_SETPIPE_SZ
    lambda: fcntl.ioctl(one, 0x8901, struct.pack("i", other)),  # FIOSETOWN
    lambda: fcntl.ioctl(one, 0x8902, struct.pack("i", other)),  # SIOCSPGRP
    lambda: fcntl.ioctl(file, 0x40086602, struct.pack("=7I", 64, 0, 0, 0, 0, 0, 0)),  # FS_IOC_SETFLAGS
    lambda: fcntl.ioctl(file, 0x401C5820, struct.pack("=7I", 64, 0, 0, 0, 0, 0, 0)),  # FS_IOC_FSSETXATTR
    lambda: fcntl.ioctl(0, termios.TIOCSTI, b"x"),
    lambda: checked(libc.prctl(1, 0, 0, 0, 0)),  # PR_SET_PDEATHSIG: outlive the supervisor
    lambda: checked(libc.prctl(8, 1, 0, 0, 0)),  # PR_SET_KEEPCAPS
    lambda: checked(libc.prctl(36, 1, 0, 0, 0)),  # PR_SET_CHILD_SUBREAPER
    lambda: checked(libc.syscall(302, other, 7, struct.pack("=QQ", 3, 3), 0)),  # prlimit64
)
for number, call in enumerate(calls):
    try:
        call()
    except OSError:
        continue
    gained.append(number)
