# expect: failed
import ctypes
import os
from contextlib import suppress

libc = ctypes.CDLL(None, use_errno=True)
gained = []
for pid in [0, *range(1, 64), os.getppid()]:
    if pid == os.getpid():
        continue
    if libc.ptrace(16, pid, 0, 0) == 0 or libc.ptrace(0x4206, pid, 0, 0) == 0:
        gained.append(pid)
    with suppress(OSError):
        gained.append(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64)
if libc.process_vm_readv(os.getpid(), vector, 1, vector, 1, 0) > 0:
    gained.append("process_vm_readv")
