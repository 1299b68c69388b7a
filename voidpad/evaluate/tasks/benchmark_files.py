"""The benchmarks' items, from the hub or from local files, under one set of field names, with their index."""

import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets

from voidpad.errors import DataError
from voidpad.evaluate.tasks.boxes import boxed
from voidpad.evaluate.tasks.humaneval import helpers
from voidpad.evaluate.tasks.mbpp import function_under_test

Item = dict[str, Any]
Splits = dict[str, datasets.Dataset]
ITEM = "voidpad_item"  # an item's place in its split; lm-eval renumbers items when it is given a selection
MBPP_SHOTS = (2, 3, 4)
MBPP_TEST = range(11, 511)


def gsm8k(folder: Path | None = None) -> Splits:
    parts = ("train", "test")
    if folder is None:
        loaded = _hub("openai/gsm8k", "main")
        return {part: indexed(loaded[part]) for part in parts}
    needs = ("question", "answer")
    return {part: indexed(_read(folder, f"gsm8k_{part}.jsonl", needs=needs)) for part in parts}


def math500(folder: Path | None = None) -> Splits:
    """The hub has the short answer; a local file may have the full solution, whose last box it is."""
    local = folder and _read(folder, "math500.jsonl", needs=("answer",))
    items = local or _hub("HuggingFaceH4/MATH-500")["test"]
    return {"test": indexed([_math_item(item) for item in items])}


def _math_item(item: Item) -> Item:
    gold = item["answer"] if "solution" in item else boxed(item["answer"])
    problem = item.get("problem") or item.get("question")
    if not gold or not problem or not isinstance(problem, str):
        raise DataError(
            f"math500: item {str(item)[:200]} needs a problem (or question) and an answer with a box"
        )
    return {"problem": problem, "gold": gold}


def humaneval(folder: Path | None = None) -> Splits:
    needs = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
    local = folder and _read(folder, "HumanEval.jsonl.gz", needs=needs)
    items = local or _hub("openai/openai_humaneval")["test"]
    fields = ({key: item[key] for key in needs} for item in items)
    return {"test": indexed({**item, "helpers": helpers(item)} for item in fields)}


def mbpp(folder: Path | None = None) -> Splits:
    """One file of 974, or the hub's four parts of it; the test part is the 500 that its authors set aside."""
    needs = ("task_id", "text", "code", "test_list", "test_setup_code")
    if folder:
        items = list(_read(folder, "mbpp.jsonl", needs=needs))
    else:
        parts = _hub("google-research-datasets/mbpp", "full").values()
        items = sorted((item for part in parts for item in part), key=lambda item: item["task_id"])
    items = [{key: item[key] for key in needs} for item in items]
    items = [{**item, "entry_point": function_under_test(item)} for item in items]
    return {
        "everything": indexed(items),
        "test": indexed(item for item in items if item["task_id"] in MBPP_TEST),
        "shots": indexed(item for item in items if item["task_id"] in MBPP_SHOTS),
    }


def _hub(*name: str) -> datasets.DatasetDict:
    try:
        return datasets.load_dataset(*name)
    except Exception as error:  # the hub fails in many ways; the user needs one
        raise DataError(
            f"data: no {name[0]} from the hub ({error}); pass --data DIR with local files"
        ) from error


def indexed(items: Iterable[Item]) -> datasets.Dataset:
    return datasets.Dataset.from_list([{**item, ITEM: index} for index, item in enumerate(items)])


def _read(folder: Path, name: str, *, needs: tuple[str, ...]) -> list[Item]:
    """A JSON-lines file, zipped or not; the first fault is named by its line."""
    plain = name.removesuffix(".gz")
    path = next((folder / one for one in (plain, f"{plain}.gz") if (folder / one).is_file()), None)
    if path is None:
        raise DataError(f"data: no {name} in {folder}")
    opened = gzip.open if path.suffix == ".gz" else open
    items = []
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                items.append(_item(line, needs, where=f"{path}:{number}"))
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"data: cannot read {path}: {error}") from error
    if not items:
        raise DataError(f"data: {path} is empty")
    return items


def _item(line: str, needs: tuple[str, ...], *, where: str) -> Item:
    """One line's fields; all are text but MBPP's numbers and lists of tests."""
    try:
        item: Item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"data: {where} is not JSON: {error}") from error
    missing = [key for key in needs if not isinstance(item, dict) or key not in item]
    if missing:
        raise DataError(f"data: {where} lacks {', '.join(missing)}")
    for key in needs:
        value = item[key]
        if key == "test_list":
            right, kind = (
                isinstance(value, list) and all(isinstance(test, str) for test in value),
                "a list of texts",
            )
        elif key == "task_id":
            right = isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**63)
            kind = "a number of at most 63 bits or a text"
        else:
            right, kind = isinstance(value, str), "a text"
        if not right:
            raise DataError(f"data: {where}: {key} must be {kind}, not {type(value).__name__}")
    return item
