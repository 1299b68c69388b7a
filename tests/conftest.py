import os
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, read only the files that have GPU tests: a GPU machine may lack what the others import."""
    if config.option.markexpr != "gpu" or not collection_path.name.startswith("test_"):
        return None
    return True if "mark.gpu" not in collection_path.read_text(encoding="utf-8") else None


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The shared benchmark and release files; they are not part of the repository."""
    root = Path(os.environ.get("VOIDPAD_DATA") or Path(__file__).parents[1].parent / "shared" / "data")
    if not root.is_dir():
        pytest.skip("no shared data: set VOIDPAD_DATA to the folder that holds benchmarks/ and hub/")
    return root
