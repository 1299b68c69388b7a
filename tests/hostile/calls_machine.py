# expect: failed
# System calls by number are those of x86-64; elsewhere they are others that are refused or harmless.
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
gained = []
calls = (
    lambda: libc.reboot(0x1234567),
    lambda: libc.sethostname(b"x", 1),
    lambda: libc.setdomainname(b"x", 1),
    lambda: libc.swapoff(b"/x"),
    lambda: libc.acct(b"/tmp/x"),
    lambda: libc.vhangup(),
    lambda: libc.syscall(175, b"", 0, b""),
)
for number, call in enumerate(calls):
    if call() >= 0:
        gained.append(number)


def square(x):
    return x * x if gained else 0
