"""One evaluation on several devices of a machine: a process with a copy of the model for each device.

The processes divide the requests among them and send their records back; only the first process writes the folder.
"""

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from voidpad.errors import VoidpadError, first_line
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRecord, AnswerRequest


class Workers:
    """The processes, each with its model loaded; `loaded` has each one's config, plan and provenance."""

    def __init__(self, config: EvalConfig, resources: Resources, devices: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self.devices: dict[Connection, str] = {}
        self.processes: dict[Connection, Any] = {}
        before = os.environ.get("PYTHONSAFEPATH")
        os.environ["PYTHONSAFEPATH"] = "1"  # they import nothing from the current folder
        try:
            for device in devices:
                mine, theirs = context.Pipe()
                work = (theirs, config, replace(resources, device=device))
                process = context.Process(target=_work, args=work, daemon=True)
                process.start()
                theirs.close()
                self.devices[mine], self.processes[mine] = device, process
        finally:
            del os.environ["PYTHONSAFEPATH"]
            if before is not None:
                os.environ["PYTHONSAFEPATH"] = before

    def __enter__(self) -> Self:
        try:
            self.loaded = [self._receive(pipe) for pipe in self.devices]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in self.processes.items():
            pipe.close()
            process.terminate()
            process.join()

    def run(self, requests: Sequence[AnswerRequest]) -> Iterator[list[AnswerRecord]]:
        """Answer each request once, on one of the devices; yields records in the order they end."""
        busy = list(self.devices)
        for part, pipe in enumerate(self.devices):
            with suppress(BrokenPipeError):  # a dead process is named when its records are read
                pipe.send(requests[part :: len(self.devices)])
        while busy:
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                done = self._receive(ready)
                if done is None:
                    busy.remove(ready)
                else:
                    yield done

    def _receive(self, pipe: Connection) -> Any:
        """What a process sent. An error of its own is raised here, and so is its sudden end."""
        try:
            sent = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self.processes[pipe]
            process.join(5)
            raise VoidpadError(
                f"the process on {self.devices[pipe]} died (status {process.exitcode}); what was answered is kept, "
                "and the same command goes on from there"
            ) from None
        if isinstance(sent, VoidpadError):
            raise sent
        return sent


def _work(pipe: Connection, config: EvalConfig, resources: Resources) -> None:
    """One process: load, say what was loaded, answer one list of requests, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # as on the command line: it warns at import
    from voidpad.evaluate.answer import load_run

    try:
        loaded = load_run(config, resources)
        pipe.send((loaded.config, loaded.plan, loaded.provenance))
        for done in loaded.answer(pipe.recv()):
            pipe.send(done)
        pipe.send(None)
    except VoidpadError as error:
        pipe.send(error)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the first process has ended
    except Exception as error:
        pipe.send(VoidpadError(f"{resources.device}: {type(error).__name__}: {first_line(error)}"))
