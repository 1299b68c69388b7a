"""OpenAI's `/v1/responses` for text: the body, its translation to a chat, and the objects of its replies."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from voidpad.serve.live import KEEP_ALIVE, LiveRequest
from voidpad.serve.protocol import (
    MOST_MESSAGES,
    MOST_TOKENS,
    Body,
    GenerationBody,
    Message,
    NamedSchema,
    ResponseFormat,
)


def _listed_input(given: Any) -> Any:
    """Text is one turn of the user; the marks that items of earlier replies carry are dropped."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise ValueError("must be text or a list of messages")
    return [_without_marks(item) if isinstance(item, dict) else item for item in given]


def _without_marks(item: dict[str, Any]) -> dict[str, Any]:
    plain = item.get("type") == "message"
    return {key: value for key, value in item.items() if key not in ("id", "status", "type" if plain else "")}


class TextFormat(NamedSchema):
    """What chats call `response_format`, with the schema on the same level."""

    type: Literal["text", "json_object", "json_schema"]


class TextOptions(Body):
    format: TextFormat = TextFormat(type="text")
    verbosity: Literal["medium"] = "medium"


class ResponsesBody(GenerationBody):
    """POST /v1/responses. Nothing is stored, so that a conversation is sent whole each time."""

    input: Annotated[list[Message], BeforeValidator(_listed_input)] = Field(
        min_length=1, max_length=MOST_MESSAGES
    )
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    text: TextOptions = TextOptions()
    n: Literal[1] = 1
    max_tokens: None = None
    previous_response_id: None = None
    conversation: None = None
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    tools: list[Any] = Field(default=[], max_length=0)
    tool_choice: Literal["auto", "none"] = "auto"
    include: list[Any] = Field(default=[], max_length=0)

    form_field: ClassVar = "text.format"

    @property
    def most_tokens(self) -> int | None:
        return self.max_output_tokens

    @property
    def turns(self) -> list[Message]:
        first = [] if self.instructions is None else [Message(role="system", content=self.instructions)]
        return [*first, *self.input]

    @property
    def form(self) -> ResponseFormat | None:
        wanted = self.text.format
        schema = wanted if wanted.type == "json_schema" else None
        return None if wanted.type == "text" else ResponseFormat(type=wanted.type, json_schema=schema)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        if self.voidpad.canvas_events:
            yield "voidpad.canvas_events", "canvas events go with chats and completions."


class LiveResponse(LiveRequest):
    """A request whose one answer is written as OpenAI's response object, whole or as events."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.id, self.item_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self.events_sent = 0
        [self.choice] = self.choices

    def reply(self) -> dict[str, Any]:
        """The response object as it stands."""
        body, ended = self.body, self.choice.report is not None
        assert isinstance(body, ResponsesBody)
        cut = ended and self.choice.finish_reason == "length"
        status = "incomplete" if cut else "completed" if ended else "in_progress"
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.answer_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.answer_tokens,
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(self.created),
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "model": self.served.name,
            "instructions": body.instructions,
            "output": [self._item(status)] if ended else [],
            "text": body.text.model_dump(by_alias=True, exclude_none=True),
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "usage": usage if ended else None,
            "voidpad": {"seed": self.seed, "plan": self.plan_name, **(self.choice.report or {})},
        }

    def _item(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part(self.choice.text)]
        item = {"type": "message", "id": self.item_id, "status": status}
        return {**item, "role": "assistant", "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    async def events(self) -> AsyncIterator[bytes]:
        """The stream of events."""
        part = {"output_index": 0, "content_index": 0, "item_id": self.item_id}
        yield self._named("response.created", response=self.reply())
        yield self._named("response.in_progress", response=self.reply())
        yield self._named("response.output_item.added", output_index=0, item=self._item("in_progress"))
        yield self._named("response.content_part.added", **part, part=self._part(""))
        async for changed in self.changes():
            # No await in between: the engine's updates cannot come between a text and its end.
            text, ended = self.choice.take(), self.choice.report is not None
            if text:
                yield self._named("response.output_text.delta", **part, delta=text, logprobs=[])
            if self.error is not None:
                error = {"code": self.error.code or self.error.type, "message": str(self.error)}
                failed = {**self.reply(), "status": "failed", "error": error}
                yield self._named("error", **error, param=None)
                yield self._named("response.failed", response=failed)
                return
            if ended:
                break
            if not changed:
                yield KEEP_ALIVE
        reply, text = self.reply(), self.choice.text
        yield self._named("response.output_text.done", **part, text=text, logprobs=[])
        yield self._named("response.content_part.done", **part, part=self._part(text))
        yield self._named("response.output_item.done", output_index=0, item=reply["output"][0])
        yield self._named(f"response.{reply['status']}", response=reply)

    def _named(self, kind: str, **content: Any) -> bytes:
        numbered = {"type": kind, "sequence_number": self.events_sent, **content}
        self.events_sent += 1
        return f"event: {kind}\ndata: {json.dumps(numbered, allow_nan=False)}\n\n".encode()
