"""Benchmarks as lm-eval tasks: one YAML per task, graders beside it, and here how their items are read.

The YAML names what lm-eval needs (prompt, stop strings, graders as filters, metrics); `task.py` adds what lm-eval
cannot say (data from a folder, the number of shots, generated programs in the sandbox).
"""

import gzip
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidpad.errors import DataError
from voidpad.files import readable

if TYPE_CHECKING:  # the graders' processes need no data
    from datasets import Dataset, DatasetDict

FOLDER = Path(__file__).resolve().parent
Doc = dict[str, Any]  # one item, as lm-eval calls it
Splits = dict[str, "Dataset"]


@cache
def known_tasks() -> list[str]:
    """The tasks that have a YAML here."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def from_hub(*name: str) -> "DatasetDict":
    import datasets

    try:
        return datasets.load_dataset(*name)
    except Exception as error:  # the hub fails in many ways; the user needs one
        raise DataError(
            f"data: no {name[0]} from the hub ({error}); pass --data DIR with local files"
        ) from error


def split_of(items: Iterable[Doc]) -> "Dataset":
    import datasets

    return datasets.Dataset.from_list(list(items))


def read_lines(folder: Path, name: str) -> list[Doc]:
    """The items of a JSON-lines file, zipped or not."""
    plain = folder / name
    path = plain if plain.is_file() else plain.with_name(f"{name}.gz")
    if not path.is_file():
        raise DataError(f"data: no {name} in {folder}")
    with readable(path, "JSON", DataError):
        content = path.read_bytes()
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
        return [json.loads(line) for line in lines]
