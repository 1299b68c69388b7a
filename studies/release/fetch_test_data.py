"""Fetch what some tests read and the repository does not hold: benchmark items and the released models' settings.

`python -m studies.release.fetch_test_data FOLDER` writes FOLDER/benchmarks and FOLDER/hub; then set VOIDPAD_DATA to
FOLDER. It needs the `eval` extra and a connection to the Hugging Face hub. No weights are fetched, about 20 MB in all.
The licences are those of the data sets: MIT for GSM8K, MATH and HumanEval, CC BY 4.0 for MBPP.
"""

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
from huggingface_hub import snapshot_download

# Folder in hub/ and repository. Only small text files are fetched: configurations, tokenizers, tensor names.
RELEASES = {
    "dream-7b-instruct": "Dream-org/Dream-v0-Instruct-7B",
    "llada-8b-instruct": "GSAI-ML/LLaDA-8B-Instruct",
    "llada2.0-mini": "inclusionAI/LLaDA2.0-mini",
    "sdar-4b-chat": "JetLM/SDAR-4B-Chat",
    "sdar-8b-chat": "JetLM/SDAR-8B-Chat",
    "sdar-30b-a3b-chat": "JetLM/SDAR-30B-A3B-Chat",
}


def write_lines(path: Path, items: Iterable[dict[str, Any]]) -> None:
    """JSON lines, zipped where the name ends in .gz."""
    text = "".join(json.dumps(item) + "\n" for item in items)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    print(f"{path}: {text.count(chr(10))} items")


def fetch_benchmarks(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    gsm8k = datasets.load_dataset("openai/gsm8k", "main")
    for part in ("train", "test"):
        write_lines(folder / f"gsm8k_{part}.jsonl", gsm8k[part])
    math500 = datasets.load_dataset("HuggingFaceH4/MATH-500")["test"]
    # The full solution stands under `answer`: the tests take the gold answer from its last box.
    pairs = ({"question": item["problem"], "answer": item["solution"]} for item in math500)
    write_lines(folder / "math500.jsonl", pairs)
    write_lines(folder / "HumanEval.jsonl.gz", datasets.load_dataset("openai/openai_humaneval")["test"])
    parts = datasets.load_dataset("google-research-datasets/mbpp", "full").values()
    items = sorted((item for part in parts for item in part), key=lambda item: item["task_id"])
    write_lines(folder / "mbpp.jsonl", items)


def fetch_settings(folder: Path) -> None:
    for name, repository in RELEASES.items():
        snapshot_download(repository, local_dir=folder / name, allow_patterns=["*.json", "merges.txt"])
        print(f"{folder / name}: {repository}")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m studies.release.fetch_test_data FOLDER")
    folder = Path(sys.argv[1])
    fetch_benchmarks(folder / "benchmarks")
    fetch_settings(folder / "hub")
    print(f"set VOIDPAD_DATA={folder.resolve()} to run the tests that read them")


if __name__ == "__main__":
    main()
