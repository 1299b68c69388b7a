"""The laws of the layout: rooms and the direction of imports, what the wheel holds, names that exist."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import voidpad.decode
from voidpad.decode.presets import ALIASES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "voidpad"
# A room may import the rooms before it. `recipes` holds data and a finder, which commands use.
ROOMS = [
    "errors",
    "roles",
    "files",
    "constrain",
    "decode",
    "engine",
    "models",
    "training",
    "sandbox",
    "builtin",
    "evaluate",
    "diagnose",
    "experiments",
    "recipes",
    "serve",
    "commands",
]


def name_of(path: Path) -> str:
    """The dotted name of a module or package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def package_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)


TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
PATHS = {name_of(path): path for path in TREES}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, in functions and for type checking too; `from package import module` counts
    as an import of the module."""
    modules: set[str] = set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= {name if name in PATHS else node.module for name in inner}
    return modules


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_module_is_in_a_room():
    assert {room_of(name) for name in PATHS} - {"", "__main__"} <= set(ROOMS)


def test_imports_point_to_lower_rooms():
    upwards = [
        f"{name_of(path)} imports {module}"
        for path in TREES
        if (room := room_of(name_of(path))) in ROOMS
        for module in sorted(imports(path))
        if module.split(".")[0] == "voidpad"
        and room_of(module) != room
        and (room_of(module) not in ROOMS or ROOMS.index(room_of(module)) > ROOMS.index(room))
    ]
    assert upwards == [], "move the function to the room it belongs to"


def test_no_import_cycle_between_packages():
    graph: dict[str, set[str]] = defaultdict(set)
    for path in TREES:
        for module in imports(path) & PATHS.keys():
            target = package_of(PATHS[module])
            # The root package and the modules beside it (roles, errors) belong to everybody.
            if "voidpad" not in (target, package_of(path)) and target != package_of(path):
                graph[package_of(path)].add(target)
    assert len(graph) > 10
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_laboratory_stays_outside():
    assert [name_of(path) for path in TREES if any(m.split(".")[0] == "studies" for m in imports(path))] == []
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["voidpad"]  # tests/test_package.py looks into a built wheel
    assert len(list((PACKAGE / "recipes").rglob("*.toml"))) > 10
    assert not list(PACKAGE.rglob("studies"))


def test_studies_use_names_that_exist():
    """The laboratory is seldom run; a name that moved must not wait for that."""
    absent = []
    for path in sorted((ROOT / "studies").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("voidpad"):
                continue
            if node.module not in PATHS:
                absent.append(f"{path.name}: {node.module}")
                continue
            bound = names_bound_in(TREES[PATHS[node.module]])
            absent += [
                f"{path.name}: {node.module}.{alias.name}"
                for alias in node.names
                if alias.name not in bound and f"{node.module}.{alias.name}" not in PATHS
            ]
    assert absent == []


def names_bound_in(tree: ast.Module) -> set[str]:
    """Names that a module defines, assigns or imports."""
    names = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def test_decoding_needs_torch_alone():
    code = "import sys, voidpad.engine.batching; print([m for m in ('transformers', 'peft') if m in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert ran.stdout.strip() == "[]"


def test_presets_users_type():
    """They stay, in their order; others may come."""
    names = (
        "original void void-expansion daedal rho-eos smart-crop eos-last eos-never eos-penalty append-blocks"
    )
    assert [name for name in voidpad.decode.PRESETS if name in names.split()] == names.split()
    assert ALIASES == {"eos": "original", "rainbow": "original"}


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
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in homes.finditer(text)]
    assert found == []
