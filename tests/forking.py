"""Programs in children of one process that has imported everything: most take less time than importing torch does.

`python forking.py SOCKET` listens at a Unix socket. A request is ["voidpad", its arguments...] or ["python", code],
with the folder, the environment and the standard files of whoever asks; the reply is the exit status.
"""

import contextlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

# What stands for `voidpad` and for `python -` where blocks of shell and Python are run.
ASKING = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect({path!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(asking, [asked], [0, 1, 2])
    sys.exit(int(asking.recv(9) or 1))
"""


@contextlib.contextmanager
def prepared_process(folder: Path, environment: dict[str, str]) -> Iterator[list[str]]:
    """The words that start a program in a child of a prepared process, which ends with the block."""
    path, asking = folder / "socket", folder / "asking.py"
    asking.write_text(ASKING.format(path=str(path)))
    server = subprocess.Popen([sys.executable, __file__, str(path)], stdin=subprocess.PIPE, env=environment)
    try:
        while not path.exists():
            assert server.poll() is None, "the process that imports everything has ended"
            time.sleep(0.05)
        yield [sys.executable, "-IS", str(asking)]
    finally:
        server.kill()
        server.wait()


def listen(path: str) -> None:
    """Answer requests until standard input closes, each with a child of its own."""
    import_everything()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen(16)
        os.rename(f"{path}.new", path)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                keep(connection)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def import_everything() -> None:
    import voidpad

    for module in pkgutil.walk_packages(voidpad.__path__, "voidpad."):
        if module.name != "voidpad.__main__":
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                __import__(module.name)
    voidpad.load("tiny-void")  # with what transformers and peft import when they need it


def keep(connection: socket.socket) -> None:
    """Run one program, tell its exit status, and end it when whoever asked has gone."""
    asked, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        connection.close()
        run(*json.loads(asked), files)
    for file in files:
        os.close(file)
    if connection in select.select([connection, os.pidfd_open(child)], [], [])[0]:
        os.kill(child, signal.SIGTERM)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(str(status if status >= 0 else 128 - status).encode())
    os._exit(0)


def run(words: list[str], folder: str, environment: dict[str, str], files: list[int]) -> None:
    from voidpad.__main__ import main

    for place, file in enumerate(files):
        os.dup2(file, place)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    status = 1
    try:
        if words[0] == "python":
            exec(compile(words[1], "block", "exec"), {"__name__": "__main__"})
        else:
            main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    listen(sys.argv[1])
