"""Replicas on Ray Serve: what clients see when one of them is killed, and settings of the application object."""

import os
import signal
import threading
import time

import httpx
import openai
import psutil
import pytest
import torch
from starlette.testclient import TestClient

from test_serve_process import start
from voidpad.engine.batching import Engine
from voidpad.errors import ConfigError
from voidpad.models import load, random_model, save
from voidpad.serve.options import Access
from voidpad.serve.replicas import ReplicaOptions, application

CLIENTS = 8
PLAN = {"plan": "void", "canvas": 48, "block": 16}


def test_settings_of_the_application_are_checked_where_it_is_built(monkeypatch):
    monkeypatch.delenv("VOIDPAD_API_KEYS", raising=False)
    for settings, message in (
        ({"modle": "tiny-void"}, "modle: "),
        ({"port": 8000}, "port: no setting"),
        ({"rows": "many", "no_auth": True}, "rows: "),
        ({"replicas": 2}, "no API keys are set"),
    ):
        with pytest.raises(ConfigError, match=message):
            application(settings)


def test_a_replica_that_loses_its_device_ends_its_process(tmp_path, monkeypatch):
    """Ray starts another replica when the process has ended. A pass that fails for another reason fails its rows."""
    save(random_model("llada"), tmp_path / "mine")
    ended, begun = threading.Event(), []
    monkeypatch.setattr(os, "_exit", lambda status: (begun.append(status), ended.set()))
    made: list[Engine] = []
    usual = Engine.__init__
    monkeypatch.setattr(
        Engine, "__init__", lambda self, *given, **named: (usual(self, *given, **named), made.append(self))[0]
    )
    app = ReplicaOptions(model=str(tmp_path / "mine"), device="cpu", name="mine").app(Access())
    body = {"model": "mine", "messages": [{"role": "user", "content": "why"}]}
    errors = [RuntimeError("out of memory"), torch.AcceleratorError("CUDA error: unspecified launch failure")]
    with TestClient(app, base_url="http://localhost") as client:
        for error in errors:

            def broken(canvas, where, error=error):
                raise error

            made[-1].denoise = broken
            assert not ended.is_set()
            assert client.post("/v1/chat/completions", json=body).status_code == 500
        assert ended.wait(60)
    assert begun == [1]


def replica_processes(driver):
    """The processes of Ray's replicas, all of them below the command's own process."""
    return [one for one in psutil.Process(driver.pid).children(recursive=True) if is_replica(one)]


def is_replica(process):
    try:
        return process.cmdline()[:1] == ["ray::ServeReplica:voidpad:voidpad"]
    except psutil.Error:
        return False


class Clients:
    """Threads that ask until every question is answered; a failed question is asked again."""

    def __init__(self, address, questions):
        self.client = openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0, timeout=240)
        self.left = list(enumerate(questions))
        self.answers: dict[int, str] = {}
        self.failures: list[tuple[float, str]] = []
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while self.left:
            place, (prompt, seed) = self.left.pop()
            begun = time.monotonic()
            try:
                self.answers[place] = self.ask(prompt, seed, stream=place % 2 == 0)
            except (openai.APIError, httpx.TransportError) as error:
                self.failures.append((begun, repr(error)))
                self.left.append((place, (prompt, seed)))

    def ask(self, prompt, seed, *, stream):
        reply = self.client.chat.completions.create(
            model="tiny-void",
            messages=[{"role": "user", "content": prompt}],
            seed=seed,
            stream=stream,
            extra_body={"voidpad": PLAN},
        )
        if not stream:
            return reply.choices[0].message.content
        choices = [chunk.choices[0] for chunk in reply]
        if not choices or not choices[-1].finish_reason:
            raise httpx.RemoteProtocolError("the stream was cut")
        return "".join(choice.delta.content or "" for choice in choices)


@pytest.mark.slow
def test_a_killed_replica_costs_only_the_requests_it_was_running():
    pytest.importorskip("ray.serve")
    numbers = [(a, b) for a in range(3, 15) for b in range(2, 12)]
    questions = [(f"{a} * {b} - {a}", seed) for seed, (a, b) in enumerate(numbers)]
    model = load("tiny-void")
    wanted = {
        place: model.generate([prompt], PLAN["plan"], seed=seed, canvas=48, block=16)[0].text
        for place, (prompt, seed) in enumerate(questions)
    }
    process, address = start("--replicas", 2)
    threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop the server
    try:
        first = replica_processes(process)
        assert len(first) == 2
        clients = Clients(address, questions)
        while len(clients.answers) < len(questions) // 4:
            time.sleep(0.05)
        killed = time.monotonic()
        first[0].kill()
        for thread in clients.threads:
            thread.join(300)
        print(len(clients.failures), "failures:", [error for _, error in clients.failures])
        assert clients.answers == wanted
        assert len(clients.failures) <= CLIENTS
        assert all(begun <= killed for begun, _ in clients.failures)
        end = time.monotonic() + 240
        while len(replica_processes(process)) < 2:  # Ray has started another one
            assert time.monotonic() < end
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
