"""Conversations to a prepared data file: read, filter, tokenise, sample. The defaults are the paper's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from voidpad.errors import ConfigError, DataError
from voidpad.models.load import vocabulary
from voidpad.models.text import SpecialTokenError, encode_chat, encode_text, raw_ids
from voidpad.roles import Roles
from voidpad.training import chats
from voidpad.training.chats import REASONS, Dropped, Message
from voidpad.training.padding import Pairs
from voidpad.training.prepared import Prepared

if TYPE_CHECKING:
    from datasets import Dataset

# Part of the key of every cached stage. `datasets` does not notice that our code has changed: raise this number when
# the same file would be read, filtered or tokenised differently.
READER = 4
CHUNK = 10_000  # examples whose tokens are copied at a time
COLUMNS = ("prompt", "response", "reason", "detail", "place", "starts")  # of the table that is read


_JSON = (".jsonl", ".json", ".ndjson")


@dataclass(frozen=True)
class CorpusRequest:
    """Which examples to make and to keep. Lengths are in tokens, prompt and response together."""

    max_length: int = 1024  # longer examples are cut here
    drop_longer: int = 4096  # and dropped beyond this; the authors' code has 8192
    sample: int | None = 500_000
    seed: int = 42
    raw: bool = False  # the prompt without the chat template
    skip_bad: bool = False
    processes: int = 1
    turns: str = "last"  # chats.TURNS
    names: Mapping[str, str] = field(default_factory=dict)  # chats.field_map


@dataclass
class Counts:
    """Where the conversations and their examples went, as far as `prepare` has come.

    `conversations` is the sum of the conversations dropped and those used; `examples`, made from the latter, is the
    sum of the examples dropped and those kept. The reasons are those of chats.REASONS.
    """

    conversations: int
    examples: int = 0
    dropped_conversations: dict[str, int] = field(default_factory=dict)
    dropped_examples: dict[str, int] = field(default_factory=dict)
    kept_whole: int = 0
    kept_cut: int = 0  # kept, with the response cut at max_length

    @property
    def kept(self) -> int:
        return self.kept_whole + self.kept_cut

    def __str__(self) -> str:
        dropped = [*self.dropped_conversations.items(), *self.dropped_examples.items()]
        parts = ", ".join(f"{count} ({REASONS[reason]})" for reason, count in dropped if count)
        return f"conversations read: {self.conversations}; dropped: {parts or 'none'}"


def prepare(
    sources: Sequence[str], name: str, request: CorpusRequest | None = None
) -> tuple[Prepared, Counts]:
    """Examples from files and hub data sets, tokenised for the model `name`, and where everything else went.

    `datasets` caches each stage on disk, so a call that was interrupted continues where it stopped.
    """
    from datasets import concatenate_datasets

    request = request or CorpusRequest()
    if request.turns not in chats.TURNS:
        raise ConfigError(f"turns: {request.turns!r} is unknown; use one of {', '.join(chats.TURNS)}.")
    for source in sources:
        _check_source(source)
    tokenizer, roles = vocabulary(name)
    if not (request.raw or tokenizer.chat_template):
        raise ConfigError(
            f"{name}: this tokenizer has no chat template; `voidpad data prepare --raw` takes chats as plain text."
        )
    rows = concatenate_datasets([_read(source, request) for source in sources])
    counts = Counts(int(np.sum(rows["starts"])))
    rows = _drop(rows, counts.dropped_conversations, skip_bad=request.skip_bad)
    counts.examples = len(rows)
    _check_left(rows, counts)
    rows = _without_repeats(rows, counts, request.processes)
    rows = rows.map(
        _encode,
        fn_kwargs={"tokenizer": tokenizer, "roles": roles, "raw": request.raw, "version": READER},
        remove_columns=[column for column in rows.column_names if column != "place"],
        num_proc=_workers(request.processes, rows),
        desc="tokenise",
    )
    rows = _drop(rows, counts.dropped_examples, skip_bad=request.skip_bad)
    _check_left(rows, counts)
    pairs = _fit(rows, counts, request)
    counts.kept_whole = int(pairs.complete.sum())
    counts.kept_cut = len(pairs) - counts.kept_whole
    notes = {
        "sources": list(sources),
        "tokenizer": name,
        "counts": asdict(counts),
        "request": asdict(request),
    }
    return Prepared(pairs, roles, notes), counts


def _check_source(source: str) -> None:
    """Refuse, before a tokenizer is loaded, what is neither a file that is there nor the form of a hub id."""
    path = Path(source)
    if path.suffix in (*_JSON, ".parquet"):
        if not path.is_file():
            raise DataError(f"{source}: no such file; check the path.")
    elif source.split(":")[0].count("/") != 1:
        raise ConfigError(
            f"source {source!r}: give a .jsonl or .parquet file, or a hub id owner/name[:config[:split]]."
        )


def _check_left(rows: Any, counts: Counts) -> None:
    if not len(rows):
        raise DataError(f"nothing to learn; {counts}.")


def _read(source: str, request: CorpusRequest) -> Dataset:
    """A source (JSON lines, JSON array, Parquet, owner/name[:config[:split]]) as rows of COLUMNS."""
    import datasets

    path, how = Path(source), {"turns": request.turns, "names": dict(request.names), "raw": request.raw}
    kinds = {"starts": "bool"}
    features = datasets.Features({name: datasets.Value(kinds.get(name, "string")) for name in COLUMNS})
    if path.suffix in _JSON:
        # Size and time of change are part of the cache's key: a changed file is read again.
        stamp = f"{READER}-{path.stat().st_size}-{path.stat().st_mtime_ns}"
        arguments = {"path": str(path.resolve()), "name": source, "stamp": stamp, "how": how}
        try:
            return datasets.Dataset.from_generator(_json_rows, gen_kwargs=arguments, features=features)
        except datasets.exceptions.DatasetGenerationError as error:
            if isinstance(error.__cause__, DataError):
                raise error.__cause__ from None
            raise
        except ValueError:  # what `datasets` makes of a file without a record
            raise DataError(f"{source}: the file is empty; put one conversation on each line.") from None
    table = _table(source, path)
    return table.map(
        _table_rows,
        batched=True,
        with_indices=True,
        fn_kwargs={"name": source, "how": how, "version": READER},
        remove_columns=table.column_names,
        features=features,
        num_proc=_workers(request.processes, table),
        desc="read",
    )


def _table(source: str, path: Path) -> Dataset:
    import datasets

    if path.suffix == ".parquet":
        try:
            return datasets.load_dataset("parquet", data_files=str(path), split="train")
        except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
            raise DataError(f"{source}: damaged Parquet file ({error.__cause__ or error}).") from None
    name, config, split = (*source.split(":"), "", "")[:3]
    try:
        return datasets.load_dataset(name, config or None, split=split or "train")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{source}: the hub gave nothing ({str(error).splitlines()[0]}); check the name and the network."
        ) from None


def _json_rows(path: str, name: str, stamp: str, how: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for place, record in chats.records(Path(path), name):
        yield from _rows(record, place, **how)


def _table_rows(
    batch: Mapping[str, Sequence[Any]], indices: list[int], name: str, how: dict[str, Any], version: int
) -> dict[str, list[Any]]:
    records = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    rows = [
        row
        for index, record in zip(indices, records, strict=True)
        for row in _rows(record, f"{name} row {index + 1}", **how)
    ]
    return {column: [row[column] for row in rows] for column in COLUMNS}


def _rows(
    record: Any, place: str, *, turns: str, names: Mapping[str, str], raw: bool
) -> list[dict[str, Any]]:
    """The examples of one record, or one row that says why there is none."""
    try:
        if isinstance(record, Dropped):
            raise record
        examples = chats.examples(chats.conversation(record, names), turns)
        if raw and any(len(example.prompt) > 1 for example in examples):
            raise Dropped("needs_template", f"{len(examples[-1].prompt)} messages before the answer")
    except Dropped as dropped:
        return [_row("", "", dropped.reason, dropped.detail, place, True)]
    return [
        _row(json.dumps(example.prompt), example.response, "", "", place, number == 0)
        for number, example in enumerate(examples)
    ]


def _row(*values: Any) -> dict[str, Any]:
    return dict(zip(COLUMNS, values, strict=True))


def _drop(rows: Dataset, dropped: dict[str, int], *, skip_bad: bool) -> Dataset:
    """The rows without a reason; the others are counted. What is wrong in itself is an error, unless skip_bad."""
    reasons = np.asarray(rows["reason"], dtype=object)
    faulty = np.flatnonzero(np.isin(reasons, chats.FAULTS))
    if len(faulty) and not skip_bad:
        first = rows[int(faulty[0])]
        more = f" (and {len(faulty) - 1} more)" if len(faulty) > 1 else ""
        raise DataError(f"{first['place']}: {first['detail']}{more}; correct it, or pass --skip-bad.")
    names, counts = np.unique(reasons[reasons != ""], return_counts=True)
    dropped |= dict(zip(names.tolist(), counts.tolist(), strict=True))
    return rows.select(np.flatnonzero(reasons == ""))


def _without_repeats(rows: Dataset, counts: Counts, processes: int) -> Dataset:
    workers = _workers(processes, rows)
    marked = rows.map(_digest, fn_kwargs={"version": READER}, num_proc=workers, desc="compare")
    first = np.sort(np.unique(np.asarray(marked["digest"]), return_index=True)[1])
    counts.dropped_examples["repeated"] = len(rows) - len(first)
    return rows.select(first)


def _digest(row: dict[str, str], version: int) -> dict[str, str]:
    prompt = [(message["role"], message["content"].strip()) for message in json.loads(row["prompt"])]
    text = json.dumps([prompt, row["response"].strip()])
    return {"digest": hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}


def _encode(row: dict[str, str], tokenizer: Any, roles: Roles, raw: bool, version: int) -> dict[str, Any]:
    """Prompt and response as ids, tokenised apart: a token must not straddle the border between them."""
    prompt: list[Message] = json.loads(row["prompt"])
    try:
        ids = encode_example(tokenizer, roles, prompt, row["response"], raw=raw)
    except Dropped as dropped:
        return {"prompt": [], "response": [], "reason": dropped.reason, "detail": dropped.detail}
    return {"prompt": ids[0], "response": ids[1], "reason": "", "detail": ""}


def encode_example(
    tokenizer: Any, roles: Roles, prompt: Sequence[Message], response: str, *, raw: bool = False
) -> tuple[list[int], list[int]]:
    """Ids of the messages, up to where the answer begins, and of the response.

    A special token of the model that is written out in a message (a mask, an end of text, another role's header)
    stays text; an example where that is impossible is dropped. With `raw` such spellings in the prompt become the
    tokens themselves, because somebody who goes without the template writes the headers by hand; the mask and the
    padding tokens are refused there.
    """
    try:
        answer = encode_text(tokenizer, response, roles=roles)
        if not raw:
            turns = [dict(message) for message in prompt]
            return encode_chat(tokenizer, turns, roles=roles), answer
    except SpecialTokenError as error:
        raise Dropped("special_tokens", str(error).rstrip(".")) from None
    except ConfigError as error:
        if not tokenizer.chat_template:
            raise
        raise Dropped("bad", str(error).rstrip(".")) from None
    ids = raw_ids(tokenizer, prompt[-1]["content"])
    for token in ids:
        if token in (roles.mask, roles.void, *roles.rainbow):
            name = tokenizer.convert_ids_to_tokens(token)
            raise Dropped("special_tokens", f"the prompt contains the model's special token {name}")
    return ids, answer


def _fit(rows: Dataset, counts: Counts, request: CorpusRequest) -> Pairs:
    """Drop what cannot be used, sample, cut, and lay everything end to end.

    Tokens are copied in chunks from the cache on disk, so that memory holds the result and little else.
    """
    sizes = [_sizes(rows, name) for name in ("prompt", "response")]
    p, r = sizes
    reasons = {"empty": r == 0, "too_long": p + r > request.drop_longer, "no_room": p >= request.max_length}
    usable = np.ones(len(p), dtype=bool)
    for name, hit in reasons.items():
        counts.dropped_examples[name] = int((hit & usable).sum())
        usable &= ~hit
    order = np.random.default_rng(request.seed).permutation(np.flatnonzero(usable))
    kept = np.sort(order[: request.sample])
    counts.dropped_examples["not_sampled"] = len(order) - len(kept)
    _check_left(kept, counts)
    p, whole = p[kept], r[kept]
    room = np.minimum(whole, request.max_length - p)
    tokens = np.empty(int((p + room).sum()), dtype=np.int32)
    ends = (p + room).cumsum()
    for first in range(0, len(kept), CHUNK):
        some = slice(first, first + CHUNK)
        table = rows.select(kept[some]).with_format("arrow")[:]
        chunk = _interleave(_lists(table, "prompt"), _lists(table, "response"), room[some])
        begin = int(ends[first] - p[first] - room[first])
        tokens[begin : begin + len(chunk)] = chunk
    lengths = (torch.from_numpy(np.ascontiguousarray(part)) for part in (p, room, room == whole))
    return Pairs(torch.from_numpy(tokens), *lengths)


def _sizes(rows: Dataset, name: str) -> np.ndarray:
    """The length of every list of a column, read in chunks."""
    batches = rows.select_columns([name]).with_format("arrow").iter(CHUNK)
    return np.concatenate([_lists(table, name).lengths for table in batches])


@dataclass(frozen=True)
class _Lists:
    """A column of integer lists, flat."""

    values: np.ndarray
    lengths: np.ndarray


def _lists(table: Any, name: str) -> _Lists:
    column = table[name].combine_chunks()
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy()[offsets[0] : offsets[-1]]
    return _Lists(values, np.diff(offsets).astype(np.int64))


def _interleave(prompt: _Lists, response: _Lists, room: np.ndarray) -> np.ndarray:
    """`prompt response prompt response ...`, each response cut to `room`."""
    lists = (prompt, response)
    begin = [part.lengths.cumsum() - part.lengths for part in lists]
    sizes = np.stack([prompt.lengths, room], axis=1).reshape(-1)
    starts = np.stack([begin[0], begin[1] + len(prompt.values)], axis=1).reshape(-1)
    ends = sizes.cumsum()
    index = np.arange(ends[-1]) + np.repeat(starts - (ends - sizes), sizes)
    tokens: np.ndarray = np.concatenate([part.values for part in lists])[index].astype(np.int32)
    return tokens


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
