# expect: failed, error
# Flags that make a file immutable or append-only outlive the program that set them.
import ctypes
import fcntl
import os
import struct
from contextlib import suppress

libc = ctypes.CDLL(None, use_errno=True)
gained = []
fd = os.open("file", os.O_CREAT | os.O_RDWR)
for request in (0x40086602, 0x401C5820):  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
    with suppress(OSError):
        fcntl.ioctl(fd, request, struct.pack("=7I", 64, 0, 0, 0, 0, 0, 0))
        gained.append(request)
for number in (468, 469):  # file_getattr, file_setattr
    if libc.syscall(number, -100, b"file", struct.pack("=Q4I", 0, 0, 0, 0, 0), 24, 0) == 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
