"""Conversations to a prepared data file: read, filter, tokenise, sample. The defaults are the paper's.

`prepare` reads its sources once, from start to end. Records become token ids here or in worker processes; this process
counts what is dropped, leaves out repeats and writes the ids of usable examples to a temporary file, from which the
sample is taken at the end. Nothing is cached, and memory holds lengths, digests and the result.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from voidpad.errors import ConfigError, DataError
from voidpad.files import readable
from voidpad.models.checkpoint import vocabulary
from voidpad.models.text import SpecialTokenError, encode_chat, encode_text, raw_ids
from voidpad.roles import Roles
from voidpad.training import chats
from voidpad.training.chats import REASONS, Dropped, Message
from voidpad.training.prepared import Pairs, Prepared

CHUNK = 64  # records that a worker gets at a time
# Characters of a token. A text of millions of them is too long without being tokenised, which would take a gigabyte.
LONGEST_TOKEN = 32
LISTED = 10  # places of odd rows that are named, for each reason


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
    turns: str = "last"  # or every, single: see chats.answers
    names: Mapping[str, str] = field(default_factory=dict)  # chats.field_map


@dataclass
class Counts:
    """Where the conversations and their examples went, as far as `prepare` has come.

    A conversation gives examples or is dropped, and an example is kept or dropped, for one of chats.REASONS.
    """

    conversations: int = 0
    kept_whole: int = 0
    kept_cut: int = 0  # kept, with the response cut at max_length
    dropped: dict[str, int] = field(default_factory=dict)  # conversations and examples, by reason
    places: dict[str, list[str]] = field(default_factory=dict)  # by reason, where the first of them stand

    @property
    def kept(self) -> int:
        return self.kept_whole + self.kept_cut

    def drop(self, reason: str, place: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        places = self.places.setdefault(reason, [])
        if len(places) < LISTED and place not in places:
            places.append(place)


def prepare(
    sources: Sequence[str], name: str, request: CorpusRequest | None = None
) -> tuple[Prepared, Counts]:
    """Examples from files and hub data sets, tokenised for the model `name`, and where everything else went."""
    request = request or CorpusRequest()
    tokenizer, roles = vocabulary(name)
    if not (request.raw or tokenizer.chat_template):
        raise ConfigError(
            f"{name}: this tokenizer has no chat template; `voidpad data prepare --raw` takes chats as plain text."
        )
    counts, seen = Counts(), set[bytes]()
    rows = array("q")  # of each usable example: tokens of prompt and response, and whether it is whole
    with tempfile.TemporaryFile() as spool:
        for place, outcomes in _encoded(sources, name, request):
            counts.conversations += 1
            for one in outcomes:
                reason = "repeated" if one.digest in seen else one.reason
                if one.digest is not None:
                    seen.add(one.digest)
                if reason in chats.FAULTS and not request.skip_bad:
                    raise DataError(f"{place}: {one.detail}; correct it, or pass --skip-bad.")
                if reason:
                    counts.drop(reason, place)
                    continue
                ids = [*one.prompt, *one.response][: request.max_length]
                answer = len(ids) - len(one.prompt)
                rows.extend((len(one.prompt), answer, answer == len(one.response)))
                spool.write(np.array(ids, dtype=np.int32).tobytes())
        if not rows:
            dropped = ", ".join(f"{n} ({REASONS[reason]})" for reason, n in counts.dropped.items())
            raise DataError(f"nothing to learn in {counts.conversations} conversations; dropped: {dropped}.")
        spool.flush()
        lengths = np.frombuffer(rows, dtype=np.int64).reshape(-1, 3)
        order = np.random.default_rng(request.seed).permutation(len(lengths))
        kept = np.sort(order[: request.sample])
        ends = np.concatenate([[0], lengths[:, :2].sum(1).cumsum()])
        tokens = np.memmap(spool, dtype=np.int32, mode="r")
        taken = torch.from_numpy(np.concatenate([tokens[ends[row] : ends[row + 1]] for row in kept]))
    prompt, response, whole = torch.from_numpy(lengths[kept]).unbind(1)
    counts.kept_whole = int(whole.sum())
    counts.kept_cut = len(kept) - counts.kept_whole
    if len(kept) < len(lengths):
        counts.dropped["not_sampled"] = len(lengths) - len(kept)
    facts = {"counts": asdict(counts), "request": asdict(request)}
    notes = {"sources": list(sources), "tokenizer": name, **facts}
    return Prepared(Pairs(taken, prompt, response, whole.bool()), roles, notes), counts


# From records to token ids


class Outcome(NamedTuple):
    """What became of an example, or of a record that gave none."""

    digest: bytes | None = None  # of the example's text without surrounding blanks; None: no example
    reason: str = ""  # a key of chats.REASONS; empty: the example is usable
    detail: str = ""
    prompt: Sequence[int] = ()
    response: Sequence[int] = ()


Encoded = tuple[str, list[Outcome]]  # where a record stands, and what became of it


def _encoded(sources: Sequence[str], name: str, request: CorpusRequest) -> Iterator[Encoded]:
    """All records in order, whatever the number of processes."""
    records = (found for source in sources for found in _records(source))
    chunks = iter(lambda: list(islice(records, CHUNK)), [])
    encode = partial(_encode_chunk, name, request)
    if request.processes == 1:
        for chunk in chunks:
            yield from encode(chunk)
        return
    # Spawned, not forked: the tokenizer's threads do not survive a fork.
    with ProcessPoolExecutor(request.processes, get_context("spawn")) as pool:
        waiting: deque[Future[list[Encoded]]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(encode, chunk))
            if len(waiting) > 2 * request.processes:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _records(source: str) -> Iterator[tuple[str, Any]]:
    """(where it stands, record) of each record of a source: JSON, Parquet, or a hub id owner/name[:config[:split]]."""
    path, place = Path(source), ""
    with readable(path, path.suffix[1:] or "data", DataError):
        if path.suffix in (".jsonl", ".json", ".ndjson"):
            rows: Iterator[tuple[str, Any]] = chats.records(path)
        elif path.suffix == ".parquet":
            from pyarrow import parquet

            batches = parquet.ParquetFile(path).iter_batches()
            rows = _numbered(source, (row for batch in batches for row in batch.to_pylist()))
        elif source.split(":")[0].count("/") == 1:
            import datasets

            hub, config, split = (*source.split(":"), "", "")[:3]
            rows = _numbered(source, datasets.load_dataset(hub, config or None, split=split or "train"))
        else:
            raise ConfigError(
                f"source {source!r}: give a .jsonl or .parquet file, or a hub id owner/name[:config[:split]]."
            )
        for place, record in rows:
            yield place, record
    if not place:
        raise DataError(f"{source}: the file is empty; put one conversation on each line.")


def _numbered(source: str, rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{source} row {number}", row) for number, row in enumerate(rows, 1))


def _encode_chunk(name: str, request: CorpusRequest, chunk: Sequence[tuple[str, Any]]) -> list[Encoded]:
    return [(place, _outcomes(name, request, record)) for place, record in chunk]


_vocabulary = lru_cache(1)(vocabulary)


def _outcomes(name: str, request: CorpusRequest, record: Any) -> list[Outcome]:
    """One outcome for each answer that is asked for, or one that says why there is none.

    Turns only make a prompt longer, so after the first prompt that is too long nothing is tokenised, and the digest of
    a prompt goes on from the prompt before: a conversation takes time in proportion to its length.
    """
    try:
        messages = chats.conversation(record, request.names)
        answers = chats.answers(messages, request.turns)
        if request.raw and answers[-1] > 1:
            raise Dropped("needs_template", f"{answers[-1]} messages before the answer")
    except Dropped as dropped:
        return [Outcome(reason=dropped.reason, detail=dropped.detail)]
    longest, begin, characters, outcomes = LONGEST_TOKEN * request.drop_longer, 0, 0, []
    said = hashlib.blake2b(digest_size=16)
    too_long = False
    for answer in answers:
        for message in messages[begin:answer]:
            said.update(_normalised(message))
            characters += len(message["content"])
        begin, digest = answer, said.copy()
        digest.update(_normalised(messages[answer]))
        too_long = too_long or characters > longest
        if too_long or len(messages[answer]["content"]) > longest:
            outcomes.append(Outcome(digest.digest(), "too_long"))
            continue
        outcomes.append(_outcome(name, request, digest.digest(), messages[: answer + 1]))
        too_long = len(outcomes[-1].prompt) > request.drop_longer
    return outcomes


def _normalised(message: Message) -> bytes:
    """A message as the search for repeated examples sees it."""
    return json.dumps([message["role"], message["content"].strip()]).encode()


def _outcome(name: str, request: CorpusRequest, digest: bytes, messages: Sequence[Message]) -> Outcome:
    """The example whose response is the last message."""
    tokenizer, roles = _vocabulary(name)
    *before, answer = messages
    try:
        prompt, response = encode_example(tokenizer, roles, before, answer["content"], raw=request.raw)
    except Dropped as dropped:
        return Outcome(digest, dropped.reason, dropped.detail)
    reason = ""
    if not response:
        reason = "empty"
    elif len(prompt) + len(response) > request.drop_longer:
        reason = "too_long"
    elif len(prompt) >= request.max_length:
        reason = "no_room"
    return Outcome(digest, reason, "", prompt, response)


def encode_example(
    tokenizer: Any, roles: Roles, prompt: Sequence[Message], response: str, *, raw: bool = False
) -> tuple[list[int], list[int]]:
    """Ids of the messages, up to where the answer begins, and of the response.

    The two are tokenised apart: a token must not straddle the border between them. A special token of the model that is
    written out in a message (a mask, an end of text, another role's header) stays text; an example where that is
    impossible is dropped. With `raw` such spellings in the prompt become the tokens themselves, because somebody who
    goes without the template writes the headers by hand; the mask and the padding tokens are refused there.
    """
    try:
        answer = encode_text(tokenizer, response, roles=roles)
        if not raw:
            return encode_chat(tokenizer, [dict(message) for message in prompt], roles=roles), answer
    except SpecialTokenError as error:
        raise Dropped("special_tokens", str(error).rstrip(".")) from None
    except ConfigError as error:
        if not tokenizer.chat_template:
            raise
        raise Dropped("bad", str(error).rstrip(".")) from None
    ids = raw_ids(tokenizer, prompt[-1]["content"])
    if special := {*ids} & {roles.mask, roles.void, *roles.rainbow}:
        token = tokenizer.convert_ids_to_tokens(min(special))
        raise Dropped("special_tokens", f"the prompt contains the model's special token {token}")
    return ids, answer
