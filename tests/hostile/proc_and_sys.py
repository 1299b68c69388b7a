# expect: failed
from contextlib import suppress

gained = []
for path in (
    "/proc/self/oom_score_adj",
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/sys/power/state",
    "/sys/fs/cgroup/cgroup.procs",
    "/proc/1/mem",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/sda",
    "/dev/tty",
    "/dev/ptmx",
):
    with suppress(OSError), open(path, "r+b", buffering=0) as file:
        gained.append(path)
