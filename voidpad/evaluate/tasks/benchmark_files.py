"""How a task reads its items: from the hub or from local files, each with its index in its split."""

import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidpad.errors import DataError, first_line

if TYPE_CHECKING:  # the graders' processes need no data
    from datasets import Dataset, DatasetDict

Item = dict[str, Any]
Splits = dict[str, "Dataset"]
ITEM = "voidpad_item"  # an item's place in its split; lm-eval renumbers items when it is given a selection


def from_hub(*name: str) -> "DatasetDict":
    import datasets

    try:
        return datasets.load_dataset(*name)
    except Exception as error:  # the hub fails in many ways; the user needs one
        raise DataError(
            f"data: no {name[0]} from the hub ({error}); pass --data DIR with local files"
        ) from error


def indexed(items: Iterable[Item]) -> "Dataset":
    import datasets

    return datasets.Dataset.from_list([{**item, ITEM: index} for index, item in enumerate(items)])


def read_lines(folder: Path, name: str, *, needs: tuple[str, ...]) -> list[Item]:
    """The items of a JSON-lines file, zipped or not; all have the fields that the task needs."""
    plain = name.removesuffix(".gz")
    path = next((folder / one for one in (plain, f"{plain}.gz") if (folder / one).is_file()), None)
    if path is None:
        raise DataError(f"data: no {name} in {folder}")
    opened = gzip.open if path.suffix == ".gz" else open
    items = []
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                item = json.loads(line)
                if missing := [key for key in needs if key not in item]:
                    raise DataError(f"data: {path}:{number} lacks {', '.join(missing)}")
                items.append(item)
    except (ValueError, TypeError, RecursionError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"data: {path}:{len(items) + 1}: cannot be read ({first_line(error)})") from error
    if not items:
        raise DataError(f"data: {path} is empty")
    return items
