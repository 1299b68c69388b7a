"""OpenAI's `/v1/responses` for text: the body, its translation to a chat, and the objects of its replies."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from voidpad.serve.live import KEEP_ALIVE, LiveRequest
from voidpad.serve.protocol import (
    MOST_MESSAGES,
    MOST_TOKENS,
    Body,
    ChatBody,
    GenerationBody,
    Message,
    NamedSchema,
)


def _listed_input(given: Any) -> Any:
    """Text is one turn of the user; the marks that items of earlier replies carry are dropped."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise ValueError("must be text or a list of messages")
    marks = {"type": "message", "id": None, "status": None}
    return [
        {k: v for k, v in item.items() if k not in marks or (k == "type" and v != "message")}
        if isinstance(item, dict)
        else item
        for item in given
    ]


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
    parallel_tool_calls: bool = True
    include: list[Any] = Field(default=[], max_length=0)

    def as_chat(self) -> ChatBody:
        """The chat that asks for the same answer."""
        turns = [message.model_dump(exclude_none=True) for message in self.input]
        if self.instructions is not None:
            turns.insert(0, {"role": "system", "content": self.instructions})
        wanted = self.text.format
        form: dict[str, Any] = {"type": wanted.type}
        if wanted.type == "json_schema":
            form["json_schema"] = {"name": wanted.name, "schema": wanted.schema_}
        names = ("model", "temperature", "top_p", "seed", "stop", "stream", "structured_outputs")
        given = {name: getattr(self, name) for name in names}
        chat = ChatBody.model_validate(
            {
                **given,
                "stop": list(self.stop),
                "messages": turns,
                "response_format": form,
                "max_completion_tokens": self.max_output_tokens,
                "voidpad": self.voidpad.model_dump(exclude_unset=True),
            }
        )
        chat._unsupported = self._unsupported
        return chat


class ResponseWriter:
    """Writes the one answer of a request as OpenAI's response object, whole or as events."""

    def __init__(self, body: ResponsesBody, live: LiveRequest) -> None:
        self.body, self.live, [self.choice] = body, live, live.choices
        self.id, self.item_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self.events_sent = 0

    def reply(self) -> dict[str, Any]:
        """The response object as it stands."""
        ended = self.choice.report is not None
        cut = ended and self.choice.finish_reason == "length"
        status = "incomplete" if cut else "completed" if ended else "in_progress"
        live, prompt, answer = self.live, self.live.prompt_tokens, self.live.answer_tokens
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + answer,
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": live.created,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "model": live.served.name,
            "instructions": self.body.instructions,
            "output": [self._item(status)] if ended else [],
            "text": self.body.text.model_dump(by_alias=True, exclude_none=True),
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "temperature": self.body.temperature,
            "top_p": self.body.top_p,
            "max_output_tokens": self.body.max_output_tokens,
            "metadata": {},
            "usage": usage if ended else None,
            "voidpad": {"seed": live.seed, "plan": live.plan_name, **(self.choice.report or {})},
        }

    def _item(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part(self.choice.text)]
        return {
            "type": "message",
            "id": self.item_id,
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    async def events(self) -> AsyncIterator[bytes]:
        """The stream of events."""
        item: dict[str, Any] = {"output_index": 0}
        part = {"output_index": 0, "content_index": 0, "item_id": self.item_id}
        yield self._event("response.created", response=self.reply())
        yield self._event("response.in_progress", response=self.reply())
        yield self._event("response.output_item.added", **item, item=self._item("in_progress"))
        yield self._event("response.content_part.added", **part, part=self._part(""))
        while self.choice.report is None and self.live.error is None:
            if not await self.live.wait():
                yield KEEP_ALIVE
            if text := self.choice.take():
                yield self._event("response.output_text.delta", **part, delta=text, logprobs=[])
        if self.live.error is not None:
            error = {"code": self.live.error.code or self.live.error.type, "message": str(self.live.error)}
            yield self._event("error", **error, param=None)
            yield self._event(
                "response.failed", response={**self.reply(), "status": "failed", "error": error}
            )
            return
        reply, text = self.reply(), self.choice.text
        yield self._event("response.output_text.done", **part, text=text, logprobs=[])
        yield self._event("response.content_part.done", **part, part=self._part(text))
        yield self._event("response.output_item.done", **item, item=reply["output"][0])
        yield self._event(f"response.{reply['status']}", response=reply)

    def _event(self, kind: str, **content: Any) -> bytes:
        numbered = {"type": kind, "sequence_number": self.events_sent, **content}
        self.events_sent += 1
        return f"event: {kind}\ndata: {json.dumps(numbered, allow_nan=False)}\n\n".encode()
