import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The shared benchmark and release files; they are not part of the repository."""
    root = Path(os.environ.get("VOIDPAD_DATA") or Path(__file__).parents[1].parent / "shared" / "data")
    if not root.is_dir():
        pytest.skip("no shared data: set VOIDPAD_DATA to the folder that holds benchmarks/ and hub/")
    return root
