import io
import json
import os
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

with suppress(ImportError):  # a machine for the GPU tests alone may lack it
    from hypothesis import HealthCheck, settings

    # The same examples in every run, and no limit of time for one of them: a busy machine changes no outcome.
    # `--hypothesis-profile default` draws new examples.
    settings.register_profile(
        "certain",
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("certain")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, read only the files that have GPU tests: a GPU machine may lack what the others import."""
    if config.option.markexpr != "gpu" or not collection_path.name.startswith("test_"):
        return None
    return True if "mark.gpu" not in collection_path.read_text(encoding="utf-8") else None


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Benchmark files and the released models' configurations, which are not part of the repository.

    They are read from the folder that VOIDPAD_DATA names and from nowhere else.
    """
    named = os.environ.get("VOIDPAD_DATA")
    if not named:
        pytest.skip("VOIDPAD_DATA is not set; `make test-data` fetches the files and says what to set")
    folder = Path(named)
    if not (folder / "benchmarks").is_dir() or not (folder / "hub").is_dir():
        pytest.fail(f"VOIDPAD_DATA={named}: holds no benchmarks/ and hub/; run `make test-data` again")
    return folder


@pytest.fixture(scope="session")
def all_layers() -> None:
    """Skips tests of the whole sandbox where the kernel does not offer every layer of protection."""
    from voidpad.sandbox import layers

    missing = [] if layers()["namespaces"] else ["namespaces"]
    if missing:
        pytest.skip(f"this kernel lacks {', '.join(missing)}")


@pytest.fixture(scope="module")
def sandbox(all_layers):
    """The whole sandbox, with a time limit that no honest program meets on a slow machine."""
    from voidpad.sandbox import Sandbox, SandboxLimits

    with Sandbox(limits=SandboxLimits(seconds=60)) as made:
        yield made


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def voidpad(monkeypatch, capsys):
    """`voidpad COMMAND` in this process: a line as a shell would split it, further words, and standard input."""
    from voidpad.commands import cli

    def run(line: str, *words: object, given: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["voidpad", *shlex.split(line), *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ran(ended.value.code or 0, *capsys.readouterr())

    return run
