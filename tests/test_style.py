"""The house rules that a machine can check."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import voidpad.decode
from voidpad.decode.presets import ALIASES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "voidpad"
DECODE = sorted((PACKAGE / "decode").glob("*.py"))
# The order of the decoder's modules: each may import those before it, never one after it.
LAYERS = "rules rows noise commit propose stop denoise length eos_length plan outcome constrained authors presets loop"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> set[str]:
    """Every module a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", DECODE, ids=name_of)
def test_the_decoder_imports_torch_and_pydantic_only(path):
    ours = {"voidpad.roles", "voidpad.errors", "torch", "pydantic", "pydantic_core", "annotated_types"}
    if path.stem == "constrained":
        ours |= {"numpy", "numpy.typing"}  # the messages of one row are numpy arrays, on the host
    strange = {
        module
        for module in imports(path)
        if module.split(".")[0] not in sys.stdlib_module_names
        and module not in ours
        and not module.startswith(("torch.", "pydantic.", "voidpad.decode.", "voidpad.constrain"))
    }
    assert strange == set()


def test_imports_of_the_decoder_point_one_way():
    order = LAYERS.split()
    assert {path.stem for path in DECODE} == {*order, "__init__"}
    for path in DECODE:
        if path.stem != "__init__":
            used = {module.split(".")[2] for module in imports(path) if module.startswith("voidpad.decode.")}
            assert {name for name in used if order.index(name) >= order.index(path.stem)} == set(), path.name
    above = ("voidpad.models", "voidpad.commands", "voidpad.evaluate")
    for path in (PACKAGE / "roles.py", PACKAGE / "errors.py", PACKAGE / "engine" / "batching.py"):
        assert not [module for module in imports(path) if module.startswith(above)], path.name


def test_decoding_needs_torch_alone():
    code = "import sys, voidpad.engine.batching; print([m for m in ('transformers', 'peft') if m in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert ran.stdout.strip() == "[]"


def test_presets_users_type():
    names = (
        "original void void-expansion daedal rho-eos smart-crop eos-last eos-never eos-penalty append-blocks"
    )
    assert list(voidpad.decode.PRESETS) == names.split()
    assert ALIASES == {"eos": "original", "rainbow": "original"}


def test_only_commands_print():
    """The decoder, the engine, the models and everything below evaluation yield facts."""
    rooms = ("decode", "engine", "models", "constrain", "training", "diagnose", "experiments")
    talkative = []
    for path in (path for room in rooms for path in sorted((PACKAGE / room).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                talkative.append(f"{name_of(path)}:{node.lineno}")
    assert talkative == []


def tracked() -> list[Path]:
    """Text files of the repository; every file below its folders where there is no git."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    names = [name for name in listed.stdout.split("\0") if name]
    folders = ("voidpad", "tests", "docs", "spec", "studies")
    paths = [ROOT / name for name in names] or [p for folder in folders for p in (ROOT / folder).rglob("*.*")]
    kinds = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".js", ".css", ".html", ".sh", ""}
    return [path for path in paths if path.is_file() and path.suffix in kinds]


def test_no_path_of_somebodys_machine():
    homes = re.compile(rf"{re.escape(str(ROOT))}\b|/(?:home|Users)/[a-z]\w+/|[A-Z]:\\Users\\")
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [f"{name_of(path)}: {match.group()}" for match in homes.finditer(text)]
    assert found == []
