"""Conversations to prepared data, after the paper's recipe: two messages, no repeats, length filter, sample."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from voidpad.errors import ConfigError, DataError
from voidpad.models.adapter import base_folder
from voidpad.models.card import read_card, read_json
from voidpad.models.load import read_config
from voidpad.models.locate import locate
from voidpad.models.text import chat, chat_ids, raw_ids, read_tokenizer
from voidpad.roles import Roles, resolve
from voidpad.training.padding import Pairs
from voidpad.training.prepared import Prepared

if TYPE_CHECKING:
    from datasets import Dataset

BAD, TURNS, GOOD = "bad", "turns", ""
COLUMNS = ("prompt", "response", "status", "place", "reason")


@dataclass(frozen=True)
class Wanted:
    """What to keep. Lengths are in tokens, prompt and response together."""

    max_length: int = 1024  # longer examples are cut here
    drop_longer: int = 4096  # and dropped beyond this; the authors' code has 8192
    sample: int | None = 500_000
    seed: int = 42
    raw: bool = False  # the prompt without the chat template
    skip_bad: bool = False
    processes: int = 1


@dataclass(frozen=True)
class Counts:
    """Where the examples went; everything read is in exactly one of the others."""

    read: int = 0
    bad: int = 0
    not_two_messages: int = 0
    repeated: int = 0
    empty: int = 0  # response without a token
    too_long: int = 0
    no_room: int = 0  # the prompt alone fills the row
    not_sampled: int = 0
    kept: int = 0
    truncated: int = 0  # of those kept


def vocabulary(name: str) -> tuple[Any, Roles]:
    """Tokenizer and roles of a model folder, a hub id, or a folder with a tokenizer alone."""
    folder = base_folder(name)
    tokenizer = read_tokenizer(folder)
    card = read_card(locate(name)) or read_card(folder)
    if card is not None:
        return tokenizer, card.roles
    if not (folder / "config.json").is_file():
        return tokenizer, resolve(tokenizer, {}, rows=len(tokenizer))
    rows = read_config(folder)[1].vocab_size
    return tokenizer, resolve(tokenizer, read_json(folder / "config.json"), rows=rows)


def prepare(sources: Sequence[str], name: str, wanted: Wanted | None = None) -> tuple[Prepared, Counts]:
    """Read, filter, tokenise and sample. `datasets` caches each stage, so a call goes on where one broke."""
    from datasets import concatenate_datasets

    wanted = wanted or Wanted()
    tokenizer, roles = vocabulary(name)
    rows = concatenate_datasets([records(source, wanted.processes) for source in sources])
    counts = Counts(read=len(rows))
    rows, counts = _well_formed(rows, counts, skip_bad=wanted.skip_bad)
    rows, counts = _without_repeats(rows, counts, wanted.processes)
    rows = rows.map(
        _encode,
        fn_kwargs={"tokenizer": tokenizer, "raw": wanted.raw},
        remove_columns=rows.column_names,
        num_proc=_workers(wanted.processes, rows),
        desc="tokenise",
    )
    pairs, counts = _fit(rows, counts, wanted)
    notes = {"sources": list(sources), "tokenizer": name, "counts": asdict(counts), "wanted": asdict(wanted)}
    return Prepared(pairs, roles, notes), counts


def records(source: str, processes: int = 1) -> Dataset:
    """A source (JSON lines, Parquet, owner/name[:config[:split]]) as rows of COLUMNS."""
    import datasets

    path = Path(source)
    if path.suffix in (".jsonl", ".json", ".ndjson"):
        if not path.is_file():
            raise DataError(f"{source}: no such file.")
        stamp = (
            f"{path.stat().st_size}-{path.stat().st_mtime_ns}"  # a changed file is not taken from the cache
        )
        features = datasets.Features({name: datasets.Value("string") for name in COLUMNS})
        arguments = {"path": str(path.resolve()), "name": source, "stamp": stamp}
        return datasets.Dataset.from_generator(_lines, gen_kwargs=arguments, features=features)
    rows = _table(source, path)
    return rows.map(
        _row,
        with_indices=True,
        fn_kwargs={"name": source},
        remove_columns=rows.column_names,
        num_proc=_workers(processes, rows),
        desc="read",
    )


def _table(source: str, path: Path) -> Dataset:
    import datasets

    if path.suffix == ".parquet":
        if not path.is_file():
            raise DataError(f"{source}: no such file.")
        try:
            return datasets.load_dataset("parquet", data_files=str(path), split="train")
        except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
            raise DataError(f"{source}: damaged Parquet file ({error.__cause__ or error}).") from None
    name, config, split = (*source.split(":"), "", "")[:3]
    if name.count("/") != 1:
        raise ConfigError(
            f"source {source!r}: give a .jsonl or .parquet file, or a hub id owner/name[:config[:split]]."
        )
    try:
        return datasets.load_dataset(name, config or None, split=split or "train")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{source}: the hub gave nothing ({str(error).splitlines()[0]}); check the name."
        ) from None


def _lines(path: str, name: str, stamp: str) -> Iterator[dict[str, str]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            yield _checked(_parse(line), f"{name}:{number}")


def _parse(line: bytes) -> Any:
    """The record, or the reason why there is none."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    if not text.strip():
        return "empty line"
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg})"


def _row(record: dict[str, Any], index: int, name: str) -> dict[str, str]:
    return _checked(record, f"{name} row {index + 1}")


def _checked(record: Any, place: str) -> dict[str, str]:
    status, first, second = _pair(record)
    given = (first, second, "") if status == GOOD else ("", "", first)
    return dict(zip(COLUMNS, (*given[:2], status, place, given[2]), strict=True))


def _pair(record: Any) -> tuple[str, str, str]:
    """(status, prompt, response), or (status, reason, "")."""
    if isinstance(record, str):
        return BAD, record, ""
    if not isinstance(record, Mapping):
        return BAD, "not an object", ""
    if "messages" in record:
        turns = record["messages"]
        if not isinstance(turns, Sequence) or not all(_is_text(turn, "content") for turn in turns):
            return BAD, "messages is not a list of objects with a text field 'content'", ""
        if len(turns) != 2:
            return TURNS, f"{len(turns)} messages", ""
        return _texts(turns[0]["content"], turns[1]["content"])
    if _is_text(record, "prompt") and _is_text(record, "response"):
        return _texts(record["prompt"], record["response"])
    return BAD, "neither 'messages' nor the text fields 'prompt' and 'response'", ""


def _texts(prompt: str, response: str) -> tuple[str, str, str]:
    return (GOOD, prompt, response) if prompt.strip() else (BAD, "empty prompt", "")


def _is_text(record: Any, field: str) -> bool:
    return isinstance(record, Mapping) and isinstance(record.get(field), str)


def _well_formed(rows: Dataset, counts: Counts, *, skip_bad: bool) -> tuple[Dataset, Counts]:
    status = np.asarray(rows["status"], dtype=object)
    bad = np.flatnonzero(status == BAD)
    if len(bad) and not skip_bad:
        first = rows[int(bad[0])]
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise DataError(f"{first['place']}: {first['reason']}{more}; mend it, or pass --skip-bad.")
    counts = replace(counts, bad=len(bad), not_two_messages=int((status == TURNS).sum()))
    return rows.select(np.flatnonzero(status == GOOD)), counts


def _without_repeats(rows: Dataset, counts: Counts, processes: int) -> tuple[Dataset, Counts]:
    marked = rows.map(_digest, num_proc=_workers(processes, rows), desc="compare")
    digests = np.asarray(marked["digest"])
    first = np.sort(np.unique(digests, return_index=True)[1])
    return rows.select(first), replace(counts, repeated=len(rows) - len(first))


def _digest(row: dict[str, str]) -> dict[str, str]:
    text = f"{row['prompt'].strip()}\x1e{row['response'].strip()}"
    return {"digest": hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}


def _encode(row: dict[str, str], tokenizer: Any, raw: bool) -> dict[str, list[int]]:
    """Prompt and response apart: a token must not straddle the border between them."""
    prompt = raw_ids(tokenizer, row["prompt"]) if raw else chat_ids(tokenizer, chat(row["prompt"]))
    return {"prompt": prompt, "response": raw_ids(tokenizer, row["response"])}


def _fit(rows: Dataset, counts: Counts, wanted: Wanted) -> tuple[Pairs, Counts]:
    """Drop what cannot be used, sample, cut, and lay everything end to end."""
    table = rows.with_format("arrow")[:] if len(rows) else None
    if table is None:
        raise DataError(f"nothing to learn: {counts}.")
    prompt, response = (_lists(table, name) for name in ("prompt", "response"))
    p, r = prompt.lengths, response.lengths
    reasons = {"empty": r == 0, "too_long": p + r > wanted.drop_longer, "no_room": p >= wanted.max_length}
    usable = np.ones(len(p), dtype=bool)
    for name, hit in reasons.items():
        counts = replace(counts, **{name: int((hit & usable).sum())})
        usable &= ~hit
    order = np.random.default_rng(wanted.seed).permutation(np.flatnonzero(usable))
    kept = np.sort(order[: wanted.sample])
    room = np.minimum(r[kept], wanted.max_length - p[kept])
    counts = replace(counts, not_sampled=len(order) - len(kept), kept=len(kept))
    counts = replace(counts, truncated=int((room < r[kept]).sum()))
    if not len(kept):
        raise DataError(f"nothing to learn: {counts}.")
    tokens = _interleave(prompt, response, kept, room)
    lengths = (torch.from_numpy(np.ascontiguousarray(part)) for part in (p[kept], room, room == r[kept]))
    return Pairs(torch.from_numpy(tokens), *lengths), counts


@dataclass(frozen=True)
class Lists:
    """A column of integer lists, flat."""

    values: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def _lists(table: Any, name: str) -> Lists:
    column = table[name].combine_chunks()
    offsets = column.offsets.to_numpy()
    return Lists(column.values.to_numpy(), offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64))


def _interleave(prompt: Lists, response: Lists, rows: np.ndarray, room: np.ndarray) -> np.ndarray:
    """`prompt response prompt response ...` of the rows, the response cut to `room`."""
    sizes = np.stack([prompt.lengths[rows], room], axis=1).reshape(-1)
    starts = np.stack([prompt.starts[rows], response.starts[rows] + len(prompt.values)], axis=1).reshape(-1)
    ends = sizes.cumsum()
    index = np.arange(ends[-1]) + np.repeat(starts - (ends - sizes), sizes)
    return np.concatenate([prompt.values, response.values])[index].astype(np.int32)


def _workers(processes: int, rows: Dataset) -> int | None:
    return min(processes, len(rows)) if processes > 1 and len(rows) else None


@dataclass(frozen=True)
class Stats:
    """Lengths of a prepared file."""

    examples: int
    tokens: int
    truncated: int
    prompt: dict[str, float]
    response: dict[str, float]
    cdf: dict[int, float]  # F(m): share of examples whose response has at most m tokens


QUANTILES = {"min": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}


def stats(prepared: Prepared) -> Stats:
    pairs = prepared.pairs
    response = pairs.response.double()
    steps = sorted({2**k for k in range(3, 14) if 2**k < int(response.max())} | {int(response.max())})
    return Stats(
        examples=len(pairs),
        tokens=len(pairs.tokens),
        truncated=int((~pairs.complete).sum()),
        prompt=_quantiles(pairs.prompt),
        response=_quantiles(pairs.response),
        cdf={m: (response <= m).double().mean().item() for m in steps},
    )


def _quantiles(lengths: torch.Tensor) -> dict[str, float]:
    values = lengths.double().numpy()
    return {name: float(np.quantile(values, q)) for name, q in QUANTILES.items()} | {
        "mean": float(values.mean())
    }
