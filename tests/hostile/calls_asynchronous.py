# expect: failed
# Kernel memory and watches that no limit of a process counts.
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
context = ctypes.c_ulong(0)
gained = []
if libc.syscall(206, 1024, ctypes.byref(context)) == 0:  # io_setup
    gained.append("io_setup")
for call in (libc.inotify_init, lambda: libc.inotify_init1(0), lambda: libc.fanotify_init(0, 0)):
    if call() >= 0:
        gained.append(call)
if libc.syscall(425, 8, ctypes.create_string_buffer(256)) >= 0:  # io_uring_setup
    gained.append("io_uring_setup")


def square(x):
    return x * x if gained else 0
