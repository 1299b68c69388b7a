"""Conversations to a prepared data file: read, filter, tokenise, sample. The defaults are the paper's.

`prepare` reads its sources once, from start to end. Worker processes turn chunks of records into token ids; this one
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
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from voidpad.errors import ConfigError, DataError, first_line
from voidpad.models.load import vocabulary
from voidpad.models.text import SpecialTokenError, encode_chat, encode_text, raw_ids
from voidpad.roles import Roles
from voidpad.training import chats
from voidpad.training.chats import REASONS, Dropped, Message
from voidpad.training.padding import Pairs
from voidpad.training.prepared import Prepared

CHUNK = (256, 1 << 20)  # records, or bytes of them, that a worker gets at a time
LONG_TEXT = 1 << 16  # characters from which on a text is tokenised in pieces to see whether it is too long
LISTED = 10  # places of odd rows that are named, for each reason
JSON = (".jsonl", ".json", ".ndjson")


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

    conversations: int = 0
    examples: int = 0
    dropped_conversations: dict[str, int] = field(default_factory=dict)
    dropped_examples: dict[str, int] = field(default_factory=dict)
    kept_whole: int = 0
    kept_cut: int = 0  # kept, with the response cut at max_length
    unknown: int = 0  # examples with characters or words that the tokenizer does not know; they may be kept
    places: dict[str, list[str]] = field(default_factory=dict)  # by reason, where the first odd rows stand

    @property
    def kept(self) -> int:
        return self.kept_whole + self.kept_cut

    def note(self, reason: str, place: str) -> None:
        places = self.places.setdefault(reason, [])
        if len(places) < LISTED and place not in places:
            places.append(place)

    def __str__(self) -> str:
        dropped = [*self.dropped_conversations.items(), *self.dropped_examples.items()]
        parts = ", ".join(f"{count} ({REASONS[reason]})" for reason, count in dropped if count)
        return f"conversations read: {self.conversations}; dropped: {parts or 'none'}"


def prepare(
    sources: Sequence[str], name: str, request: CorpusRequest | None = None
) -> tuple[Prepared, Counts]:
    """Examples from files and hub data sets, tokenised for the model `name`, and where everything else went."""
    request = request or CorpusRequest()
    if request.turns not in chats.TURNS:
        raise ConfigError(f"turns: {request.turns!r} is unknown; use one of {', '.join(chats.TURNS)}.")
    for source in sources:  # before a tokenizer is loaded
        if Path(source).suffix in (*JSON, ".parquet"):
            if not Path(source).is_file():
                raise DataError(f"{source}: no such file; check the path.")
        elif source.split(":")[0].count("/") != 1:
            raise ConfigError(
                f"source {source!r}: give a .jsonl or .parquet file, or a hub id owner/name[:config[:split]]."
            )
    tokenizer, roles = vocabulary(name)
    if not (request.raw or tokenizer.chat_template):
        raise ConfigError(
            f"{name}: this tokenizer has no chat template; `voidpad data prepare --raw` takes chats as plain text."
        )
    counts, seen = Counts(), set[bytes]()
    faults: list[tuple[str, str]] = []
    prompt, response, whole = array("q"), array("q"), array("q")
    with tempfile.TemporaryFile() as spool:
        for made in _outcomes(sources, Encoder(tokenizer, roles, request), name):
            counts.conversations += made.first
            reason, dropped = made.reason, counts.dropped_conversations
            if made.digest is not None:  # about an example
                counts.examples += 1
                dropped = counts.dropped_examples
                reason = "repeated" if made.digest in seen else reason
                seen.add(made.digest)
            if reason in chats.FAULTS and not request.skip_bad:
                faults.append((made.place, made.detail))
                if len(faults) == LISTED:
                    break
            if reason:
                counts.note(reason, made.place)
                dropped[reason] = dropped.get(reason, 0) + 1
                continue
            if made.unknown:
                counts.unknown += 1
                counts.note("unknown", made.place)
            room = min(len(made.response), request.max_length - len(made.prompt))
            prompt.append(len(made.prompt))
            response.append(room)
            whole.append(len(made.response) == room)
            spool.write(np.array([*made.prompt, *made.response[:room]], dtype=np.int32).tobytes())
        if faults:
            place, detail = faults[0]
            others = f" (also {', '.join(place for place, _ in faults[1:])})" if len(faults) > 1 else ""
            raise DataError(f"{place}: {detail}{others}; correct it, or pass --skip-bad.")
        if not prompt:
            raise DataError(f"nothing to learn; {counts}.")
        spool.flush()
        lengths = [np.frombuffer(part, dtype=np.int64) for part in (prompt, response, whole)]
        order = np.random.default_rng(request.seed).permutation(np.arange(len(prompt)))
        kept = np.sort(order[: request.sample])
        counts.dropped_examples["not_sampled"] = len(prompt) - len(kept)
        sizes = lengths[0] + lengths[1]
        ends = sizes.cumsum()
        starts = ends - sizes
        tokens = np.memmap(spool, dtype=np.int32, mode="r")
        taken = np.concatenate([tokens[starts[row] : ends[row]] for row in kept])
    p, r, complete = (torch.from_numpy(part[kept]) for part in lengths)
    counts.kept_whole = int(complete.sum())
    counts.kept_cut = len(kept) - counts.kept_whole
    notes = {
        "sources": list(sources),
        "tokenizer": name,
        "counts": asdict(counts),
        "request": asdict(request),
    }
    return Prepared(Pairs(torch.from_numpy(taken), p, r, complete.bool()), roles, notes), counts


# From records to token ids


class Outcome(NamedTuple):
    """What became of a record, if it gave no example, or of one of its examples."""

    place: str  # file and line
    first: bool  # the first outcome of its record
    reason: str = ""  # a key of chats.REASONS; empty: the example is usable
    detail: str = ""
    digest: bytes | None = None  # of the example's text without surrounding blanks; None: about a record
    prompt: Sequence[int] = ()
    response: Sequence[int] = ()
    unknown: bool = False


@dataclass(frozen=True)
class Encoder:
    """Turns records into outcomes, for one tokenizer and one request."""

    tokenizer: Any
    roles: Roles
    request: CorpusRequest

    def __call__(self, records: Sequence[tuple[str, Any]]) -> list[Outcome]:
        return [outcome for place, record in records for outcome in self._outcomes(place, record)]

    def _outcomes(self, place: str, record: Any) -> Iterator[Outcome]:
        """One outcome for each answer that is asked for, or one that says why there is none.

        Turns only ever make a prompt longer, so after the first prompt that is too long the rest is not tokenised.
        """
        request = self.request
        try:
            messages = chats.conversation(chats.parse(record), request.names)
            answers = chats.answers(messages, request.turns)
            if request.raw and answers[-1] > 1:
                raise Dropped("needs_template", f"{answers[-1]} messages before the answer")
        except Dropped as dropped:
            yield Outcome(place, True, dropped.reason, dropped.detail)
            return
        digest, read, too_long = hashlib.blake2b(digest_size=16), 0, False
        for answer in answers:
            for message in messages[read:answer]:
                digest.update(json.dumps([message["role"], message["content"].strip()]).encode())
            first, read, response = read == 0, answer, messages[answer]["content"]
            this = digest.copy()
            this.update(json.dumps(response.strip()).encode())
            outcome = Outcome(place, first, digest=this.digest())
            if not too_long:
                outcome, too_long = self._encode(outcome, messages[:answer], response)
            yield outcome._replace(reason="too_long") if too_long else outcome

    def _encode(self, outcome: Outcome, prompt: list[Message], response: str) -> tuple[Outcome, bool]:
        """The outcome with its ids or the reason why it has none, and whether the prompt alone is too long."""
        request, longest = self.request, self.request.drop_longer
        if _exceeds(self.tokenizer, [message["content"] for message in prompt], longest):
            return outcome, True
        if _exceeds(self.tokenizer, [response], longest):
            return outcome._replace(reason="too_long"), False
        try:
            ids, answer = encode_example(self.tokenizer, self.roles, prompt, response, raw=request.raw)
        except Dropped as dropped:
            return outcome._replace(reason=dropped.reason, detail=dropped.detail), False
        reason = ""
        if not answer:
            reason = "empty"
        elif len(ids) + len(answer) > longest:
            reason = "too_long"
        elif len(ids) >= request.max_length:
            reason = "no_room"
        unknown = self.tokenizer.unk_token_id
        odd = unknown is not None and (unknown in ids or unknown in answer)
        return outcome._replace(reason=reason, prompt=ids, response=answer, unknown=odd), len(ids) > longest


def _exceeds(tokenizer: Any, texts: Iterable[str], limit: int) -> bool:
    """Whether a text of millions of characters has far more than `limit` tokens, without tokenising it whole.

    A tokenizer takes hundreds of bytes a token. Each cut adds a few tokens, so the pieces must have twice the limit;
    what lies between is tokenised and measured exactly.
    """
    texts = list(texts)
    if sum(map(len, texts)) <= LONG_TEXT:
        return False
    pieces = (text[at : at + LONG_TEXT] for text in texts for at in range(0, len(text), LONG_TEXT))
    count = 0
    for piece in pieces:
        count += len(encode_text(tokenizer, piece))
        if count > 2 * limit:
            return True
    return False


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


# Reading, and the worker processes


def _outcomes(sources: Sequence[str], encoder: Encoder, name: str) -> Iterator[Outcome]:
    """The outcomes of all records, in order, whatever the number of processes."""
    chunks = (chunk for source in sources for chunk in _chunks(_records(source)))
    processes = encoder.request.processes
    if processes == 1:
        for chunk in chunks:
            yield from encoder(chunk)
        return
    # Spawned, not forked: the tokenizer's threads do not survive a fork.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _set_up, (name, encoder.request))
    try:
        waiting: deque[Future[list[Outcome]]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(_encode_chunk, chunk))
            if len(waiting) > 2 * processes:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: Encoder | None = None  # in a worker


def _set_up(name: str, request: CorpusRequest) -> None:
    global _encoder
    _encoder = Encoder(*vocabulary(name), request)


def _encode_chunk(chunk: Sequence[tuple[str, Any]]) -> list[Outcome]:
    assert _encoder is not None
    return _encoder(chunk)


def _chunks(records: Iterable[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    chunk: list[tuple[str, Any]] = []
    size = 0
    for place, record in records:
        chunk.append((place, record))
        size += len(record) if isinstance(record, bytes) else 0
        if len(chunk) >= CHUNK[0] or size >= CHUNK[1]:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _records(source: str) -> Iterator[tuple[str, Any]]:
    """(where it stands, record) of each record of a source: JSON, Parquet, or a hub id owner/name[:config[:split]]."""
    path = Path(source)
    if path.suffix in JSON:
        empty = True
        for found in chats.records(path, source):
            empty = False
            yield found
        if empty:
            raise DataError(f"{source}: the file is empty; put one conversation on each line.")
        return
    import datasets  # which brings pyarrow
    import pyarrow as arrow
    from pyarrow import parquet

    rows: Iterable[Any]
    try:
        if path.suffix == ".parquet":
            batches = parquet.ParquetFile(path).iter_batches(CHUNK[0])
            rows = (row for batch in batches for row in batch.to_pylist())
        else:
            name, config, split = (*source.split(":"), "", "")[:3]
            rows = datasets.load_dataset(name, config or None, split=split or "train")
        yield from ((f"{source} row {number}", row) for number, row in enumerate(rows, 1))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{source}: cannot be read ({first_line(error)}); check the name, the file and the network."
        ) from None


# What a prepared file holds


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
    prompt, response = pairs.prompt.double().numpy(), pairs.response.double().numpy()
    longest = int(response.max())
    steps = [*(2**k for k in range(3, 14) if 2**k < longest), longest]

    def quantiles(lengths: np.ndarray) -> dict[str, float]:
        values = np.quantile(lengths, [*QUANTILES.values()]).tolist()
        return {**dict(zip(QUANTILES, values, strict=True)), "mean": float(lengths.mean())}

    return Stats(
        examples=len(pairs),
        tokens=len(pairs.tokens),
        truncated=int((~pairs.complete & ~pairs.has_gaps).sum()),
        prompt=quantiles(prompt),
        response=quantiles(response),
        cdf={m: float((response <= m).mean()) for m in steps},
    )
