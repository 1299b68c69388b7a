"""The text of one answer while it is being written.

Masked diffusion fills the canvas in any order, but a client reads from left to right. The engine reports how
many leading slots of a row can no longer change; this module turns them into text, finds the end of the answer
and holds back what could still turn into something else: an unfinished character, or the beginning of a stop
string. Text that was sent is never taken back, so a streamed answer equals the unstreamed one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenizers import decoders

from voidpad.models.text import special_ids
from voidpad.serve.logprobs import TokenLogprob

if TYPE_CHECKING:
    from voidpad.models import Model

UNFINISHED = "\ufffd"  # what a tokenizer gives for bytes that are no whole character yet


@dataclass(frozen=True)
class TextRules:
    """What is the same for every answer of a model: how ids become text and which ids end it."""

    decode: Callable[[list[int]], str]
    ends: frozenset[int]
    dropped: frozenset[int]  # ids that are no text
    joins: bool = False  # ids after a whole character can be decoded by themselves


def text_rules(model: Model) -> TextRules:
    """How this model's ids become text, gathered once."""
    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    joins = backend is not None and isinstance(backend.decoder, decoders.ByteLevel | decoders.Fuse)
    return TextRules(
        # A clean-up of spaces would change characters that were sent already.
        decode=lambda ids: str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)),
        ends=frozenset(model.roles.ends),
        dropped=frozenset(special_ids(tokenizer) | model.roles.all()),
        joins=joins,
    )


@dataclass
class AnswerText:
    """One answer: `feed` takes final tokens, `take` gives text that may be sent.

    `limit` is the most tokens the answer may have; what lies beyond is dropped and the answer counts as cut.
    """

    rules: TextRules
    stops: tuple[str, ...] = ()
    limit: int | None = None
    ids: list[int] = field(default_factory=list)  # tokens of the answer, before its end
    logprobs: list[TokenLogprob] = field(default_factory=list)  # those of `ids`, where they were requested
    # The answer as decoded last: after `take`, and once the answer is complete; cut at a stop string.
    text: str = ""
    sent: int = 0  # characters of `text` that were taken
    finish_reason: str | None = None  # "stop" or "length" once the answer is complete
    # What ended the answer, if its row did not: "eos", "stop" (a stop string) or "max_tokens".
    stop_reason: str | None = None
    decoded: int = 0  # leading ids whose text ends with a whole character; `decoded_text` is their text
    decoded_text: str = ""
    stale: bool = False  # there are ids that are not in `text` yet

    @property
    def complete(self) -> bool:
        return self.finish_reason is not None

    def feed(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None) -> None:
        """Take the next final tokens of the row, left to right; tokens after the end are ignored."""
        for place, token in enumerate(tokens):
            if self.complete:
                break
            if token in self.rules.ends:
                self.finish_reason, self.stop_reason = "stop", "eos"
            elif self.limit is not None and len(self.ids) >= self.limit:
                self.finish_reason, self.stop_reason = "length", "max_tokens"
            else:
                self.stale = True
                self.ids.append(token)
                if logprobs is not None:
                    self.logprobs.append(logprobs[place])
        if self.stops or self.complete:
            self._decode()

    def finish(self, text: str, ids: list[int]) -> None:
        """The answer is this text, all at once: the gaps of a template are full."""
        self.text, self.ids, self.stale = text, ids, False
        self.finish_reason = "stop"

    def end(self) -> None:
        """The row has ended: what was held back is final, and without an end the answer was cut short."""
        if not self.complete:
            self.finish_reason = "length"
            self._decode()

    def take(self) -> str:
        """The text that became sendable since the last call."""
        self._decode()
        ready = len(self.text) if self.complete else self._safe()
        delta = self.text[self.sent : ready]
        self.sent = max(self.sent, ready)
        return delta

    def _decode(self) -> None:
        """Bring `text` up to date; where texts join, decode only what follows the last whole character."""
        if not self.stale:
            return
        self.stale = False
        fresh = [one for one in self.ids[self.decoded :] if one not in self.rules.dropped]
        text = self.decoded_text + self.rules.decode(fresh)
        if self.rules.joins and not text.endswith(UNFINISHED):
            self.decoded, self.decoded_text = len(self.ids), text
        # The stop string that is complete first counts, so that the pieces in which a text arrives do not matter.
        places = [(text.find(stop), stop) for stop in self.stops]
        first = min(((place + len(stop), place) for place, stop in places if place >= 0), default=None)
        if first is not None:
            text = text[: first[1]]
            self.finish_reason = self.stop_reason = "stop"
        self.text = text

    def _safe(self) -> int:
        """How many characters can no longer change, whatever tokens follow."""
        certain = self.text.rstrip(UNFINISHED)
        ready = len(certain)
        for stop in self.stops:
            for size in range(min(len(stop) - 1, len(certain)), 0, -1):
                if certain.endswith(stop[:size]):
                    ready = min(ready, len(certain) - size)
                    break
        return max(ready, self.sent)
