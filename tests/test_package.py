"""The wheel: all it needs is inside, and it answers offline from an environment that never saw the sources."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from voidpad.models import load

ROOT = Path(__file__).parents[1]
# No proxy answers there: whoever reaches for the network fails.
OFFLINE = {"HF_HUB_OFFLINE": "1", "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}


def called(*command: object, **options) -> subprocess.CompletedProcess:
    ran = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=900, **options
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    called(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    [path] = folder.glob("*.whl")
    return path


@dataclass(frozen=True)
class Environment:
    """A virtual environment away from the sources."""

    folder: Path

    def run(self, program: str, *arguments: object) -> str:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))
        }
        return called(
            self.folder / "bin" / program,
            *arguments,
            cwd=self.folder,
            env=kept | OFFLINE,
            stdin=subprocess.DEVNULL,
        ).stdout


def check_generates(environment: Environment) -> None:
    home = environment.run("python", "-c", "import voidpad; print(voidpad.__file__)").strip()
    assert Path(home).is_relative_to(environment.folder)
    row = json.loads(environment.run("voidpad", "generate", "hello", "--canvas", 64, "--json"))
    [result] = load("tiny-void").generate("hello", canvas=64)
    assert row == {**row, "text": result.text, "tokens": result.tokens, "canvas": result.canvas}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Environment:
    """The wheel alone, beside this interpreter's dependencies but out of sight of its editable install."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    environment = Environment(folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check")
    called(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    site = environment.run(
        "python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    ).strip()
    # A path file adds one folder; path files inside that folder, like an editable install's, are not read.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return environment


def test_the_wheel_holds_every_file_of_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = called("git", "-C", ROOT, "ls-files", "-z", "voidpad").stdout.split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    assert wanted - names == set()
    for folder, suffix in (
        ("diagnose/page/assets", ".html"),
        ("diagnose/page/assets", ".js"),
        ("evaluate/tasks", ".yaml"),
        ("recipes", ".toml"),
    ):
        assert any(name.startswith(f"voidpad/{folder}/") and name.endswith(suffix) for name in names), folder
    assert "voidpad/builtin/assets/tokenizer/tokenizer.json" in names
    assert all(name.startswith(("voidpad/", "voidpad-")) for name in names)
    assert not [name for name in names if name.endswith((".pyc", ".tmp", ".bin", ".pt"))]


def test_the_wheel_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    texts = {
        name.split("/")[-1]: archive.read(name).decode()
        for name in archive.namelist()
        if ".dist-info/" in name
    }
    assert "voidpad = voidpad.__main__:main" in texts["entry_points.txt"]
    assert "Requires-Python: >=3.11" in texts["METADATA"]
    assert "License-Expression: Apache-2.0" in texts["METADATA"]
    assert "LICENSE" in texts
    assert wheel.stat().st_size < 24e6


def test_the_built_in_model_answers_offline_without_the_sources(installed):
    check_generates(installed)


@pytest.mark.slow
def test_it_installs_with_its_dependencies_into_a_bare_environment(wheel, tmp_path):
    venv.create(tmp_path / "bare", with_pip=True, symlinks=True)
    pip = (tmp_path / "bare" / "bin" / "pip", "--disable-pip-version-check", "install", "--quiet")
    called(*pip, "--constraint", ROOT / "constraints.txt", wheel)
    check_generates(Environment(tmp_path / "bare"))


@pytest.mark.slow
def test_gpu_tests_are_collected_where_the_evaluation_extra_is_missing():
    """`make test-gpu` runs with whatever a GPU machine has; lm-eval and its graders need not be there."""
    program = """
import sys, pytest

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("lm_eval", "math_verify", "ray", "playwright"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "gpu", "--collect-only"]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout
    assert "tests/test_fast.py::test_graphs_change_no_token" in ran.stdout
    assert "tests/test_train_gpu.py" in ran.stdout
