# expect: failed
import resource
from contextlib import suppress

gained = []
for limit in (
    resource.RLIMIT_CPU,
    resource.RLIMIT_AS,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_CORE,
):
    with suppress(OSError, ValueError):
        resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        gained.append(limit)
