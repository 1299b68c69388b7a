"""What clients receive: OpenAI's objects for answers, chunks of a stream, and errors."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from voidpad.serve.answer_text import Choice, TokenLogprob
from voidpad.serve.protocol import RequestError
from voidpad.serve.requests import GenerationRequest

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting\n\n"


def event(content: Any) -> bytes:
    """One server-sent event."""
    return (
        b"data: "
        + json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        + b"\n\n"
    )


def error_object(error: RequestError) -> dict[str, Any]:
    """OpenAI's error object."""
    content = {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}
    return {"error": content}


@dataclass
class ReplyWriter:
    """Writes the answers of one request, whole or as chunks of a stream."""

    request: GenerationRequest
    model: str
    fingerprint: str
    token_text: Any  # id -> the token's own text
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = ""
    opened: set[int] = field(default_factory=set)  # choices whose first chunk was written
    offsets: dict[int, int] = field(default_factory=dict)  # characters of each choice already in logprobs
    sent_logprobs: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        prefix = "chatcmpl-" if self.chat else "cmpl-"
        self.id = self.id or prefix + uuid.uuid4().hex

    @property
    def chat(self) -> bool:
        return self.request.route == "chat"

    def whole(
        self, choices: Sequence[Choice], reports: Sequence[dict[str, Any]], prompt_tokens: int
    ) -> dict[str, Any]:
        """The answer of a request that is not streamed. `reports` holds what each choice cost."""
        listed = [self._whole_choice(index, choice, reports[index]) for index, choice in enumerate(choices)]
        reply = self._envelope(listed, chunk=False)
        reply["usage"] = self.usage(choices, prompt_tokens)
        reply["voidpad"] = {"seed": self.request.seed, "plan": self.request.plan_name}
        return reply

    def _whole_choice(self, index: int, choice: Choice, report: dict[str, Any]) -> dict[str, Any]:
        logprobs = self._logprobs(index, choice) if self.request.logprobs else None
        shared = {
            "index": index,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "voidpad": report,
        }
        if self.chat and self._is_call(choice):
            message = {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [self._call(choice)],
            }
            return {**shared, "finish_reason": "tool_calls", "message": message}
        if self.chat:
            return {**shared, "message": {"role": "assistant", "content": choice.text, "refusal": None}}
        return {**shared, "text": choice.text}

    def delta(self, index: int, choice: Choice) -> list[bytes]:
        """Chunks for what became sendable of one choice; the first chunk of a chat carries the role."""
        chunks = []
        if self.chat and index not in self.opened:
            self.opened.add(index)
            chunks.append(self._chunk(index, {"role": "assistant", "content": ""}))
        if self.request.calls_tool:  # sent whole with the last chunk: arguments are an object inside the text
            return chunks
        text = choice.take()
        if text or (choice.complete and self.request.logprobs and self._unsent(index, choice)):
            logprobs = self._logprobs(index, choice) if self.request.logprobs else None
            chunks.append(self._chunk(index, {"content": text}, logprobs=logprobs))
        return chunks

    def last(self, index: int, choice: Choice, report: dict[str, Any]) -> bytes:
        """The chunk that ends one choice."""
        if self._is_call(choice):
            delta = {"tool_calls": [{"index": 0, **self._call(choice)}]}
            return self._chunk(index, delta) + self._chunk(
                index, {}, finish_reason="tool_calls", report=report
            )
        return self._chunk(index, {}, finish_reason=choice.finish_reason, report=report)

    def _is_call(self, choice: Choice) -> bool:
        """Whether the answer is a whole function call; one that was cut short is sent as text."""
        return self.request.calls_tool and choice.stop_reason != "max_tokens" and choice.text.endswith("}")

    def _call(self, choice: Choice) -> dict[str, Any]:
        call = json.loads(choice.text)
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        function = {"name": call["name"], "arguments": arguments}
        return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}

    def closing(self, choices: Sequence[Choice], prompt_tokens: int) -> list[bytes]:
        """What follows the last choice: the usage, where it was asked for, and the end mark."""
        chunks = []
        if self.request.include_usage:
            reply = self._envelope([])
            chunks.append(event({**reply, "usage": self.usage(choices, prompt_tokens)}))
        return [*chunks, DONE]

    def canvas(self, index: int, record: dict[str, Any]) -> bytes:
        """A chunk without choices that carries one line of the trace, for a page that draws the canvas."""
        reply = self._envelope([])
        return event({**reply, **self._usage_slot(), "voidpad": {"choice": index, **record}})

    def usage(self, choices: Sequence[Choice], prompt_tokens: int) -> dict[str, int]:
        """Tokens of prompts and answers; an answer's tokens are those before its end."""
        answered = sum(len(choice.ids) for choice in choices)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": answered,
            "total_tokens": prompt_tokens + answered,
        }

    def _envelope(self, choices: list[dict[str, Any]], *, chunk: bool = True) -> dict[str, Any]:
        chat = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.id,
            "object": chat if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _usage_slot(self) -> dict[str, None]:
        """With include_usage every chunk but the last has `usage: null`, as OpenAI's have."""
        return {"usage": None} if self.request.include_usage else {}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        report: dict[str, Any] | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": finish_reason}
        choice |= {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        reply = self._envelope([choice])
        if report is not None:
            reply["voidpad"] = {"seed": self.request.seed, "plan": self.request.plan_name, **report}
        return event({**reply, **self._usage_slot()})

    def _unsent(self, index: int, choice: Choice) -> list[TokenLogprob]:
        return choice.logprobs[self.sent_logprobs.get(index, 0) :]

    def _logprobs(self, index: int, choice: Choice) -> dict[str, Any]:
        """Log-probabilities of the tokens that were not reported yet."""
        tokens = self._unsent(index, choice)
        self.sent_logprobs[index] = len(choice.logprobs)
        top = self.request.top_logprobs
        if self.chat:
            content = []
            for token in tokens:
                listed = [self._entry(*one) for one in token.top[:top]]
                content.append({**self._entry(token.id, token.logprob), "top_logprobs": listed})
            return {"content": content, "refusal": None}
        texts = [self.token_text(token.id) for token in tokens]
        offsets, at = [], self.offsets.get(index, 0)
        for text in texts:
            offsets.append(at)
            at += len(text)
        self.offsets[index] = at
        tops = [{self.token_text(id): value for id, value in token.top[:top]} for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "surrogatepass"))}
