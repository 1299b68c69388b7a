"""One evaluation on several devices of a machine: a process with a copy of the model for each device.

The processes divide the requests among them and send their records back; only the first process writes the folder.
"""

import logging
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from voidpad.errors import VoidpadError, reason
from voidpad.evaluate.folder import AnswerRequest
from voidpad.evaluate.journal import AnswerRecord
from voidpad.evaluate.settings import Resources, Settings


class Workers:
    """The processes, each with its model loaded. `settings` and `provenance` are those of a `LoadedRun`."""

    def __init__(self, settings: Settings, resources: Resources, devices: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self.devices = list(devices)
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        try:
            for device in devices:
                mine, theirs = context.Pipe()
                work = (theirs, settings, replace(resources, device=device))
                process = context.Process(target=_work, args=work, daemon=True)
                process.start()
                theirs.close()
                self.pipes.append(mine)
                self.processes.append(process)
            loaded = [self._receive(pipe) for pipe in self.pipes]
        except BaseException:
            self.close()
            raise
        self.settings: dict[str, Any] = loaded[0][0]
        names = [facts["device"] for _, facts in loaded]
        self.provenance: dict[str, Any] = {**loaded[0][1], "devices": names}

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


def _work(pipe: Connection, settings: Settings, resources: Resources) -> None:
    """One process: load, say what was loaded, answer one list of requests, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # as on the command line: it warns at import
    from voidpad.evaluate.answer import load_run

    try:
        try:
            loaded = load_run(settings, resources)
            pipe.send((loaded.settings, loaded.provenance))
            for done in loaded.answering.run(pipe.recv()):
                pipe.send(done)
            pipe.send(None)
        except VoidpadError as error:
            pipe.send(error)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            pipe.send(VoidpadError(f"{resources.device}: {type(error).__name__}: {reason(error)}"))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the first process is gone
