"""One evaluation on several devices of a machine: a process with a copy of the model for each device.

The processes divide the requests among them and send their records back; only the first process writes the folder.
"""

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from voidpad.errors import VoidpadError, first_line
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRecord, AnswerRequest


class Workers:
    """The processes, each with its model loaded. `config`, `plan` and `provenance` are those of a `LoadedRun`."""

    def __init__(self, config: EvalConfig, resources: Resources, devices: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self.devices = list(devices)
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        try:
            for device in devices:
                mine, theirs = context.Pipe()
                work = (theirs, config, replace(resources, device=device))
                process = context.Process(target=_work, args=work, daemon=True)
                with _safe_path():
                    process.start()
                theirs.close()
                self.pipes.append(mine)
                self.processes.append(process)
            loaded = [self._receive(pipe) for pipe in self.pipes]
        except BaseException:
            self.close()
            raise
        self.config: EvalConfig = loaded[0][0]
        self.plan: dict[str, Any] = loaded[0][1]
        names = [facts["device"] for _, _, facts in loaded]
        self.provenance: dict[str, Any] = {**loaded[0][2], "devices": names}

    def run(self, requests: Sequence[AnswerRequest]) -> Iterator[list[AnswerRecord]]:
        """Answer each request once, on one of the devices; yields records in the order they end."""
        for part, pipe in enumerate(self.pipes):
            with suppress(BrokenPipeError):  # a dead process is named when its records are read
                pipe.send(list(requests)[part :: len(self.pipes)])
        busy = list(self.pipes)
        while busy:
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                done = self._receive(ready)
                if done is None:
                    busy.remove(ready)
                else:
                    yield done

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
            process.join()

    def _receive(self, pipe: Connection) -> Any:
        """What a process sent. An error of its own is raised here, and so is its sudden end."""
        at = self.pipes.index(pipe)
        try:
            sent = pipe.recv()
        except (EOFError, ConnectionResetError):
            self.processes[at].join(5)
            raise VoidpadError(
                f"the process on {self.devices[at]} died (status {self.processes[at].exitcode}); what was answered "
                "is kept, and the same command goes on from there"
            ) from None
        if isinstance(sent, VoidpadError):
            raise sent
        return sent


@contextmanager
def _safe_path() -> Iterator[None]:
    """A Python that starts inside imports nothing from the current folder, where a `pickle.py` may lie."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def _work(pipe: Connection, config: EvalConfig, resources: Resources) -> None:
    """One process: load, say what was loaded, answer one list of requests, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # as on the command line: it warns at import
    from voidpad.evaluate.answer import load_run

    gone = (EOFError, BrokenPipeError, ConnectionResetError)  # the first process has ended
    with suppress(*gone):
        try:
            loaded = load_run(config, resources)
            pipe.send((loaded.config, loaded.plan, loaded.provenance))
            for done in loaded.answering.run(pipe.recv()):
                pipe.send(done)
            pipe.send(None)
        except VoidpadError as error:
            pipe.send(error)
        except gone:
            raise
        except Exception as error:
            pipe.send(VoidpadError(f"{resources.device}: {type(error).__name__}: {first_line(error)}"))
