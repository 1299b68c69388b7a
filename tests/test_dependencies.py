"""What the package imports is what pyproject.toml declares, no less and no more."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# transformers imports them when it is told to; jinja2 is for chat templates
THROUGH_OTHERS = {"accelerate", "bitsandbytes", "jinja2", "tensorboard"}


def distribution(name: str) -> str:
    """A distribution's name, without version and extras, in the form in which names are compared."""
    return re.split(r"[^\w.-]", name, maxsplit=1)[0].lower().replace("_", "-")


def declared(*extras: str) -> set[str]:
    listed = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    return {distribution(requirement) for part in listed for requirement in part}


@cache
def imported() -> dict[str, set[str]]:
    """Distributions that voidpad imports, each with the files that do."""
    providers = packages_distributions()
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "voidpad").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in (
                {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"voidpad"}
            ):
                [provider] = {distribution(name) for name in providers.get(top, [f"nothing installs {top}"])}
                found.setdefault(provider, set()).add(str(path.relative_to(ROOT)))
    return found


def users() -> set[str]:
    """The extras users install, as opposed to those for working on voidpad."""
    return set(PROJECT["optional-dependencies"]) - {"dev", "docs", "all"}  # `all` names other extras


def test_every_import_is_declared():
    missing = {name: files for name, files in imported().items() if name not in declared(*users())}
    assert missing == {}


def test_every_declared_package_is_imported():
    assert declared(*users()) - set(imported()) - THROUGH_OTHERS == set()


def test_the_constraints_pin_everything_declared():
    pinned = {distribution(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert declared(*PROJECT["optional-dependencies"]) - pinned - {"voidpad"} == set()
