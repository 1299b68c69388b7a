"""open_checkpoint: small files are read once, and what needs no weights is refused before they are read."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from voidpad.commands.cli import app
from voidpad.errors import ConfigError, WeightsError
from voidpad.models import load, open_checkpoint, random_model, save
from voidpad.models.checkpoint import Checkpoint, vocabulary

OPENED: Counter[str] = Counter()
_COUNTING = False


def _count(event, arguments):
    if _COUNTING and event == "open" and isinstance(arguments[0], str | bytes | Path):
        OPENED[str(arguments[0])] += 1


sys.addaudithook(_count)  # cannot be removed again, so it counts only between two marks


@pytest.fixture
def opened_files():
    global _COUNTING
    OPENED.clear()
    _COUNTING = True
    yield OPENED
    _COUNTING = False


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    save(random_model(context=1024, seed=4), folder)
    return folder


def times_opened(counts, folder, name):
    return counts[str(folder / name)]


def test_generate_reads_each_small_file_once_and_checks_once(saved, opened_files, monkeypatch):
    calls = Counter()

    def counted(name):
        plain = getattr(Checkpoint, name)

        def call(self, *arguments, **named):
            calls[name] += 1
            return plain(self, *arguments, **named)

        monkeypatch.setattr(Checkpoint, name, call)

    counted("plan")
    counted("check_prompt")
    done = CliRunner().invoke(app, ["generate", "hi", "--model", str(saved), "--canvas", "32"])
    assert done.exit_code == 0, done.output
    for name in ("config.json", "voidpad.json"):
        assert times_opened(opened_files, saved, name) == 1, name
    assert calls == {"plan": 1, "check_prompt": 1}


def test_an_adapter_and_its_base_are_read_once(opened_files):
    opened = open_checkpoint("tiny-void")
    adapter = opened.source.adapter
    for folder, name in (
        (adapter.folder, "adapter_config.json"),
        (adapter.folder, "voidpad.json"),
        (opened.source.folder, "config.json"),
    ):
        assert times_opened(opened_files, folder, name) == 1, name
    assert not any(name.endswith("model.safetensors") for name in opened_files if "adapter" not in name)
    opened.load_weights()
    assert times_opened(opened_files, opened.source.folder, "config.json") == 1
    assert times_opened(opened_files, adapter.folder, "adapter_config.json") == 1


def test_what_needs_no_weights_works_without_them(saved, tmp_path):
    folder = tmp_path / "weightless"
    folder.mkdir()
    for path in saved.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    opened, whole = open_checkpoint(folder), load(saved)
    assert opened.encode("hi") == whole.encode("hi")
    assert (opened.roles, opened.context, opened.default_plan) == (
        whole.roles,
        whole.context,
        whole.default_plan,
    )
    assert opened.plan("void", block=8) == whole.plan("void", block=8)
    with pytest.raises(ConfigError, match="the model's context of"):
        opened.prepare("hi", opened.plan("original", canvas=1024, block=32))
    assert vocabulary(str(folder))[1] == whole.roles
    with pytest.raises(WeightsError, match=r"model\.safetensors: no such file"):
        opened.load_weights()


def test_prepared_prompts_decode_as_the_prompts_do(saved):
    model = load(saved)
    plan = model.plan("original", canvas=16, block=8)
    ready = [model.prepare(prompt, plan) for prompt in ("hi", "add 2 and 2")]
    plain = model.generate(["hi", "add 2 and 2"], plan)
    assert [one.tokens for one in model.generate(ready)] == [one.tokens for one in plain]
    assert list(model.stream(ready[0]))[-1].finished[0].ids == plain[0].ids
    with pytest.raises(ConfigError, match="prepared prompts bring their own plan"):
        model.generate(ready, "void")
