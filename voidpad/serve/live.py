"""A request from its validated body to the last byte of its reply: its rows in the engine, and OpenAI's objects."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from voidpad.constrain.row import GapConstraints, RowConstraint
from voidpad.decode.plan import Plan
from voidpad.models.fill import Layout
from voidpad.serve.answer_text import AnswerText
from voidpad.serve.live_page import CanvasStream
from voidpad.serve.logprobs import SlotLogprobs
from voidpad.serve.protocol import CompletionBody, GenerationBody, RequestError

if TYPE_CHECKING:
    from voidpad.serve.requests import ServedModel

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting\n\n"
KEEP_ALIVE_SECONDS = 15.0
MOST_RECORDS = 4096  # canvas events a client may leave unread


@dataclass(eq=False, kw_only=True)
class Choice(AnswerText):
    """One answer: a row of the engine, the text that is final of it, and what the client has of it.

    `final`, `scores` and `canvas` belong to the engine's thread, everything else to the event loop.
    """

    live: LiveRequest
    index: int
    handle: int = -1
    final: int = 0  # leading slots that were handed over
    scores: SlotLogprobs | None = None  # where logprobs were requested
    canvas: CanvasStream | None = None  # where the client wants to see the canvas
    report: dict[str, Any] | None = None  # what the row cost, once it has ended
    sent_logprobs: int = 0
    sent_characters: int = 0  # of tokens in logprobs


@dataclass(eq=False)
class LiveRequest:
    """What to decode and how, the answers so far, and the replies. The event loop owns it once it is submitted."""

    body: GenerationBody
    served: ServedModel
    plan_name: str
    plan: Plan
    seed: int
    prompts: list[list[int]]
    limits: list[int | None] = field(default_factory=list)  # the longest canvas for each prompt
    constraint: RowConstraint | GapConstraints | None = None  # what every answer must match
    calls_tool: bool = False  # the answer is a function call
    layout: Layout | None = None  # a template whose gaps are to be filled, in the place of a prompt
    error: RequestError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    records: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # canvas events to be sent
    created: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        body, self.submitted = self.body, time.monotonic()
        stops = tuple(filter(None, body.stop))
        self.chat = not isinstance(body, CompletionBody)
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + uuid.uuid4().hex
        self.include_usage = body.stream_options is not None and body.stream_options.include_usage
        self.choices = []
        for index in range(len(self.prompts) * body.n):
            limit = None if self.layout else body.most_tokens
            choice = Choice(self.served.rules, stops, limit, live=self, index=index)
            if body.alternatives is not None:
                choice.scores = SlotLogprobs(body.alternatives)
            if body.voidpad.canvas_events:
                choice.canvas = CanvasStream(self.served, self.plan_name, self.seed, index)
            self.choices.append(choice)

    @property
    def seconds(self) -> float:
        """Since the request was understood."""
        return time.monotonic() - self.submitted

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def answer_tokens(self) -> int:
        """Tokens of the answers, before their ends."""
        return sum(len(choice.ids) for choice in self.choices)

    def fail(self, error: RequestError) -> None:
        self.error = self.error or error
        self.changed.set()
        self.finished.set()

    def add_records(self, index: int, records: list[dict[str, Any]]) -> None:
        self.records += [(index, record) for record in records]
        if len(self.records) > MOST_RECORDS:
            self.fail(RequestError("the client reads canvas events too slowly."))

    async def changes(self) -> AsyncIterator[bool]:
        """An item for each change of an answer; false where it is time to show that the connection lives."""
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await self.changed.wait()
            except TimeoutError:
                yield False
            else:
                self.changed.clear()
                yield True

    # Replies

    def reply(self) -> dict[str, Any]:
        """The answer of a request that is not streamed."""
        listed = []
        for choice in self.choices:
            call = self._call(choice)
            answer: dict[str, Any] = {"text": choice.text}
            if self.chat:
                content = None if call else choice.text
                message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
                answer = {"message": {**message, "tool_calls": [call]} if call else message}
            reason = "tool_calls" if call else choice.finish_reason
            about = {"logprobs": self._logprobs(choice), "voidpad": choice.report}
            listed.append({"index": choice.index, **answer, **about, "finish_reason": reason})
        more = {"usage": self._usage(), "voidpad": {"seed": self.seed, "plan": self.plan_name}}
        return {**self._envelope(listed, chunk=False), **more}

    async def events(self) -> AsyncIterator[bytes]:
        """The stream: for each change all events that became ready, in one piece."""
        if self.chat:
            first = {"role": "assistant", "content": ""}
            yield b"".join(self._chunk(choice, first) for choice in self.choices)
        left = list(self.choices)
        async for changed in self.changes():
            if not changed:
                yield KEEP_ALIVE
                continue
            # No await until the piece is whole: the engine's updates cannot come between a text and its end.
            records, self.records = self.records, []
            piece = [self._event([], voidpad={"choice": index, **record}) for index, record in records]
            piece += [self._delta(choice) for choice in left]
            piece += [self._last(choice) for choice in left if choice.report is not None]
            left = [choice for choice in left if choice.report is None]
            if self.error is not None:
                piece.append(_sse(self.error.body))
            elif not left:
                usage = [self._event([], usage=self._usage())] if self.include_usage else []
                piece += [*usage, DONE]
            if content := b"".join(piece):
                yield content
            if self.error is not None or not left:
                return

    def _delta(self, choice: Choice) -> bytes:
        """A chunk for what became sendable of one choice; empty where nothing did."""
        if self.calls_tool:  # sent whole with the last chunk: arguments are an object inside the text
            return b""
        text = choice.take()
        unsent = choice.complete and choice.sent_logprobs < len(choice.logprobs)
        if not text and not unsent:
            return b""
        return self._chunk(choice, {"content": text}, logprobs=self._logprobs(choice))

    def _last(self, choice: Choice) -> bytes:
        """The chunk that ends one choice, after its function call if it is one."""
        call = self._call(choice)
        called = self._chunk(choice, {"tool_calls": [{"index": 0, **call}]}) if call else b""
        about = {"seed": self.seed, "plan": self.plan_name, **(choice.report or {})}
        reason = "tool_calls" if call else choice.finish_reason
        return called + self._chunk(choice, {}, about=about, finish_reason=reason)

    def _call(self, choice: Choice) -> dict[str, Any] | None:
        """The answer as a function call; one that was cut short is sent as text."""
        if not self.calls_tool or choice.stop_reason == "max_tokens" or not choice.text.endswith("}"):
            return None
        call = json.loads(choice.text)
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
        return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}

    def _chunk(
        self, choice: Choice, delta: dict[str, Any], *, about: dict[str, Any] | None = None, **more: Any
    ) -> bytes:
        content = {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        listed = {"index": choice.index, "logprobs": None, "finish_reason": None, **more, **content}
        return self._event([listed], **({"voidpad": about} if about else {}))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        """One chunk. With include_usage every chunk but the last has `usage: null`, as OpenAI's have."""
        usage = {"usage": None} if self.include_usage else {}
        return _sse({**self._envelope(choices, chunk=True), **usage, **more})

    def _envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        chat = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.id,
            "object": chat if self.chat else "text_completion",
            "created": int(self.created),
            "model": self.served.name,
            "system_fingerprint": self.served.fingerprint,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        prompt, answer = self.prompt_tokens, self.answer_tokens
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        """Log-probabilities of the tokens that were not reported yet."""
        if (alternatives := self.body.alternatives) is None:
            return None
        text = self.served.token_text
        tokens = choice.logprobs[choice.sent_logprobs :]
        choice.sent_logprobs = len(choice.logprobs)
        if self.chat:
            content = []
            for token in tokens:
                likeliest = [self._entry(*one) for one in token.top[:alternatives]]
                content.append({**self._entry(token.id, token.logprob), "top_logprobs": likeliest})
            return {"content": content, "refusal": None}
        offsets = []
        for token in tokens:
            offsets.append(choice.sent_characters)
            choice.sent_characters += len(text(token.id))
        return {
            "tokens": [text(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{text(id): value for id, value in token.top[:alternatives]} for token in tokens],
            "text_offset": offsets,
        }

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        text = self.served.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "surrogatepass"))}


def _sse(content: Any) -> bytes:
    """One server-sent event."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"
