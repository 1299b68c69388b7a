"""The file tree inside the sandbox: Python's library, a few devices and a bounded /tmp."""

import os
import stat
import sys

from voidpad.sandbox import kernel

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache")
SHARED_MEMORY = "/dev/shm"
_SEALED = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def library_paths() -> tuple[str, ...]:
    """The folders that a running interpreter may have to read: Python's library and shared libraries."""
    python = [os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")]
    paths: list[str] = []
    for path in (*_SYSTEM, *python, *filter(os.path.isdir, sys.path)):
        if os.path.exists(path) and not any(path == p or path.startswith(p + "/") for p in paths):
            paths.append(path)
    return tuple(paths)


def build(paths: tuple[str, ...]) -> None:
    """Replace / by an empty read-only tree with `paths`, a few devices, a fresh /proc and an empty /tmp."""
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    root = "/tmp"
    # By descriptor, because the new root is mounted over a folder that may hold some of them.
    wanted = (*paths, *filter(os.path.exists, DEVICES))
    sources = {path: os.open(path, os.O_PATH) for path in wanted if not os.path.islink(path)}
    links = {path: os.readlink(path) for path in paths if os.path.islink(path)}
    kernel.mount("tmpfs", root, "tmpfs", flags=kernel.MS_NOSUID | kernel.MS_NODEV, data="size=1m,mode=755")
    for path, target in links.items():
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(target, root + path)
    for path, fd in sources.items():
        _bind(fd, root + path)
        os.close(fd)
        if path not in DEVICES:
            kernel.read_only(root + path)
    for name in ("proc", "tmp", "dev/shm"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    kernel.mount("proc", f"{root}/proc", "proc", flags=_SEALED)
    kernel.pivot(root)
    fixed = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", flags=fixed)


def _bind(fd: int, target: str) -> None:
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(f"/proc/self/fd/{fd}", target, flags=kernel.MS_BIND | kernel.MS_REC)


def cover(disk: int, paths: tuple[str, ...]) -> None:
    """In a jail's own mount namespace, mount an empty /tmp of at most `disk` bytes and hide /proc.

    The small file system for shared memory is what Python's multiprocessing needs for its locks and queues.
    """
    hidden = {path: os.open(path, os.O_PATH) for path in paths if path.startswith("/tmp/")}
    kernel.mount("tmpfs", "/tmp", "tmpfs", flags=_SEALED, data=f"size={disk},nr_inodes=4096,mode=700")
    kernel.mount("tmpfs", SHARED_MEMORY, "tmpfs", flags=_SEALED, data="size=1m,nr_inodes=256,mode=700")
    for path, fd in hidden.items():  # a Python that is installed below /tmp
        _bind(fd, path)
        os.close(fd)
    kernel.mount("tmpfs", "/proc", "tmpfs", flags=_SEALED | kernel.MS_RDONLY, data="size=4k,mode=555")
