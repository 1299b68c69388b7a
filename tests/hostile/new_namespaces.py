# expect: failed
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
done = []
for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x02000000):
    done += [flag] if libc.unshare(flag) == 0 else []
done += ["mount"] if libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"") == 0 else []
done += ["umount"] if libc.umount2(b"/tmp", 2) == 0 or libc.umount2(b"/proc", 2) == 0 else []
done += ["chroot"] if libc.chroot(b"/tmp") == 0 else []
done += ["hostname"] if libc.sethostname(b"x", 1) == 0 else []


def square(x):
    return x * x if done else 0
