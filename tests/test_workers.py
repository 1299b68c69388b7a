"""One evaluation on several devices: real processes, here each on the CPU."""

import os
import signal
import sys

import pytest
import torch

from test_evaluate import content
from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate import AnswerRequest, EvalConfig, Resources, evaluate, read_run
from voidpad.evaluate.answer import Workers, opened_run
from voidpad.models import random_model, save

TWO = Resources(device="cpu,cpu")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    save(random_model("llada", vocab=110, context=1024, dtype=torch.float32), folder)
    return EvalConfig(
        model=str(folder),
        tasks=("tiny_steps",),
        fields={"canvas": 16, "block": 8, "temperature": 1.0},
        limit=5,
    )


def test_two_processes_give_the_rows_of_one(settings, tmp_path):
    evaluate(settings, tmp_path / "one")
    evaluate(settings, tmp_path / "two", resources=TWO)
    one, two = content(tmp_path / "one"), content(tmp_path / "two")
    for config in (one[0], two[0], one[3], two[3]):
        assert config["provenance"].pop("devices", ["cpu", "cpu"]) == ["cpu", "cpu"]
    assert two == one
    journal = read_run(tmp_path / "two").journal.records
    assert sorted(journal) == [f"tiny_steps:{item}" for item in range(5)]


def test_a_process_imports_nothing_from_the_current_folder(settings, tmp_path, monkeypatch):
    (tmp_path / "pickle.py").write_text("open('imported', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    with Workers(settings, Resources(), ["cpu"]):
        pass
    assert not (tmp_path / "imported").exists()
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.slow
def test_what_a_process_refuses_is_said_once_and_nothing_is_written(settings, tmp_path):
    with pytest.raises(ConfigError, match=r"^device 'elsewhere'"):
        evaluate(settings, tmp_path / "run", resources=Resources(device="elsewhere,cpu"))
    assert not (tmp_path / "run").exists()


def test_each_needs_a_gpu(settings):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with (
        pytest.raises(ConfigError, match="device 'each': this machine has no CUDA device"),
        opened_run(settings, Resources(device="each")),
    ):
        pass


@pytest.mark.slow
def test_a_process_that_dies_is_named_and_leaves_no_other(settings):
    asked = [AnswerRequest(name=f"tiny_steps:{item}", prompt="one") for item in range(4)]
    with Workers(settings, Resources(), ["cpu", "cpu"]) as workers:
        processes = list(workers.processes.values())
        os.kill(processes[1].pid, signal.SIGKILL)
        with pytest.raises(VoidpadError, match=r"the process on cpu died \(status -9\)"):
            list(workers.run(asked))
    assert not any(process.is_alive() for process in processes)
