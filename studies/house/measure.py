"""Print the size of the package, room by room: modules, lines, public classes, public functions.

Run it from the root of the repository: python studies/house/measure.py. The figures are there to be watched, not to be
kept below a limit: a limit would invite squeezing.
"""

import ast
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "voidpad"


@dataclass
class Size:
    modules: int = 0
    lines: int = 0
    classes: int = 0
    functions: int = 0

    def add(self, text: str) -> None:
        top = ast.parse(text).body
        public = [node for node in top if not getattr(node, "name", "_").startswith("_")]
        self.modules += 1
        self.lines += len(text.splitlines())
        self.classes += sum(isinstance(node, ast.ClassDef) for node in public)
        self.functions += sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in public)


def measure() -> dict[str, Size]:
    """Sizes by room, and those of the whole package under `all`. Names inside classes and functions do not count."""
    sizes: dict[str, Size] = defaultdict(Size)
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for name in (room, "all"):
            sizes[name].add(path.read_text(encoding="utf-8"))
    return dict(sorted(sizes.items(), key=lambda item: (item[0] == "all", item[0])))


def main() -> None:
    print(f"{'room':14}{'modules':>9}{'lines':>8}{'classes':>9}{'functions':>11}")
    for room, size in measure().items():
        print(f"{room:14}{size.modules:9}{size.lines:8}{size.classes:9}{size.functions:11}")


if __name__ == "__main__":
    main()
