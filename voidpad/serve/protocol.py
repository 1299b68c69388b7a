"""What clients may send, as pydantic models: OpenAI's generation routes and the extension object `voidpad`.

FastAPI validates bodies against these models and makes the OpenAPI page from them. A field of OpenAI's interface is
honoured, accepted where its value changes nothing, or refused by its name. With `--lenient` fields of the last kind
are ignored, and the reply names them in a header.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from voidpad.errors import VoidpadError, printable

MOST_ROWS = 64  # prompts times n of one request
MOST_MESSAGES = 1024
MOST_TOKENS = 1 << 20
MOST_CHARACTERS = 1 << 20

ERROR_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 504: "timeout_error"}
ERROR_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "5"},
    504: {"X-Should-Retry": "false"},
}
TokenId = Annotated[str, Field(pattern="^[0-9]{1,9}$")]
# pydantic's errors whose messages speak of Python.
IN_JSON = {
    "extra_forbidden": "unknown field",
    "none_required": "Input should be null",
    "dict_type": "Input should be an object",
    "model_type": "Input should be an object",
    "list_type": "Input should be an array",
}


class RequestError(VoidpadError):
    """A request that this server refuses; becomes an OpenAI error object with this status.

    The message may quote what a client sent: it is made printable and short.
    """

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(printable(" ".join(message.split()))[:390])
        self.param, self.status, self.code = param, status, code
        self.type = ERROR_TYPES.get(status, "invalid_request_error")
        self.headers = ERROR_HEADERS.get(status)

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        content = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return {"error": content}


class ErrorObject(BaseModel):
    """OpenAI's error object, for the OpenAPI page."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The body of every refusal."""

    error: ErrorObject


def invalid(error: Mapping[str, Any]) -> RequestError:
    """The refusal for one of pydantic's errors about a body, named by its field as clients write it."""
    kind, message = error["type"], error["msg"].removeprefix("Value error, ").rstrip(".")[:300]
    if kind == "json_invalid":
        return RequestError("the body is not valid JSON.")
    param = ""
    for part in error["loc"]:
        if isinstance(part, int):
            param += f"[{part}]"
        elif kind == "extra_forbidden" or not part.startswith(("literal[", "dict[")):  # members of a union
            param += f".{printable(part)[:60]}"
    param = param.removeprefix(".body").lstrip(".")
    if kind == "literal_error":
        message = message.replace("False", "false")
    return RequestError(f"{param or 'the body'}: {IN_JSON.get(kind, message)}.", param=param or None)


def _joined_parts(content: Any) -> Any:
    """Text, or a list of text parts joined; other kinds of parts are refused."""
    if isinstance(content, list) and content:
        for part in content:
            if not isinstance(part, dict) or part.get("type") not in ("text", "input_text", "output_text"):
                raise ValueError("only parts of type text are supported")
        texts = [part.get("text") for part in content]
        return "".join(texts) if all(isinstance(text, str) for text in texts) else None
    return content


def _outside_tool_loops(given: Any) -> Any:
    """A role or a list of tool calls; those that report a call or its result are refused."""
    if given == "tool" or (isinstance(given, list) and given):
        raise ValueError(
            "assistant messages with tool_calls and messages of role tool are not supported; "
            "send the call and its result as text"
        )
    return given


def _listed_prompts(prompt: Any) -> Any:
    """A string, a list of strings, token ids, or a list of lists of token ids, as a tuple of prompts."""
    prompts = [prompt] if isinstance(prompt, str) or _are_ids(prompt) else prompt
    if (
        not isinstance(prompts, list)
        or not prompts
        or not all(isinstance(p, str) or _are_ids(p) for p in prompts)
    ):
        raise ValueError("must be text, token ids, or a list of either")
    if len(prompts) > MOST_ROWS:
        raise ValueError(f"has {len(prompts)} entries; at most {MOST_ROWS}")
    return tuple(one if isinstance(one, str) else tuple(one) for one in prompts)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


class Body(BaseModel):
    """Strict types and no unknown fields; null counts as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class StreamOptions(Body):
    include_usage: bool = False


class StructuredOutputs(Body):
    """vLLM's extension: the answer is one of these texts, matches an expression, or is JSON of a schema."""

    regex: str | None = Field(default=None, max_length=1 << 16)
    choice: list[str] | None = None
    json_: dict[str, Any] | str | None = Field(default=None, alias="json")

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if len(self.model_fields_set) != 1:
            raise ValueError("give one of regex, choice and json")
        return self


class NamedSchema(Body):
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(default={}, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's `response_format`. A schema is always honoured to the letter, with `strict` or without."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("type json_schema goes with an object json_schema, and no other type does")
        return self


class Function(Body):
    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function


class Message(Body):
    """One turn of a chat. Text in it never becomes a special token."""

    role: Annotated[Literal["system", "developer", "user", "assistant"], BeforeValidator(_outside_tool_loops)]
    # Before the content, which a call leaves out.
    tool_calls: Annotated[list[Any], Field(max_length=0), BeforeValidator(_outside_tool_loops)] = []
    content: Annotated[str, BeforeValidator(_joined_parts)]
    name: str | None = None
    refusal: str | None = None


class Extension(Body):
    """The object `voidpad` of a request: the plan, its fields by name, and what only this server has."""

    model_config = ConfigDict(extra="allow")
    plan: str | None = Field(default=None, max_length=60, description="a preset that `voidpad plans` lists")
    special_tokens: bool = Field(
        default=False, description="spelled special tokens of a text prompt become their ids"
    )
    canvas_events: bool = Field(default=False, description="stream every pass in the trace's format")
    template: str | None = Field(
        default=None, max_length=MOST_CHARACTERS, description="text with [[gap]]s to fill"
    )
    gap_length: Literal["fixed", "cal", "void-gap"] = Field(
        default="cal", description="of gaps without a number"
    )


class Neutral(Body):
    """Fields of OpenAI's interface that this server cannot honour; accepted with the values that change nothing."""

    frequency_penalty: float = Field(default=0, ge=0, le=0)
    presence_penalty: float = Field(default=0, ge=0, le=0)
    best_of: Literal[1] = 1
    store: Literal[False] = False
    service_tier: Literal["auto", "default"] = "auto"
    metadata: dict[str, Any] = Field(default={}, max_length=0)
    parallel_tool_calls: bool = True
    functions: list[Any] = Field(default=[], max_length=0)
    function_call: Literal["none", "auto"] = "auto"
    modalities: list[Literal["text"]] = ["text"]
    audio: None = None
    prediction: None = None
    reasoning_effort: Literal["none"] = "none"
    verbosity: Literal["medium"] = "medium"
    web_search_options: None = None


class GenerationBody(Neutral):
    """What all routes share."""

    model: str = Field(max_length=1024)
    max_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    n: int = Field(default=1, ge=1, le=16)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    # lm-eval sends all of a task's stop strings.
    stop: Annotated[
        list[Annotated[str, Field(max_length=256)]],
        Field(max_length=16),
        BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
    ] = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    # -100 bans a token; other biases would need scores that no decoding rule has.
    logit_bias: dict[TokenId, Literal[-100, 0]] = Field(default={}, max_length=1024)
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    structured_outputs: StructuredOutputs | None = None
    voidpad: Extension = Extension()
    # pydantic's errors about fields that cannot be honoured, by name. A lenient server ignores these fields.
    _unsupported: dict[str, Any] = PrivateAttr(default={})

    form_field: ClassVar = "response_format"  # where clients ask for JSON

    @property
    def most_tokens(self) -> int | None:
        """The longest answer, in tokens."""
        return self.max_tokens

    @property
    def banned(self) -> tuple[int, ...]:
        """The tokens that `logit_bias` bans."""
        return tuple(int(token) for token, bias in self.logit_bias.items() if bias)

    @property
    def alternatives(self) -> int | None:
        """How many likeliest tokens are reported for each token of the answer; None: no log-probabilities at all."""
        return None

    @model_validator(mode="wrap")
    @classmethod
    def _collect_unsupported(cls, given: Any, validate: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return validate(given)
        except ValidationError as error:
            unsupported = {
                str(one["loc"][0]): one
                for one in error.errors()
                if one["loc"]
                and (one["loc"][0] in Neutral.model_fields or one["loc"][0] not in cls.model_fields)
            }
            if not unsupported:
                raise
            body = validate({name: value for name, value in given.items() if name not in unsupported})
            body._unsupported = unsupported
            return body

    @model_validator(mode="before")
    @classmethod
    def _is_json(cls, given: Any) -> Any:
        """Python's parser accepts NaN and halves of surrogate pairs, which no reply could quote."""
        try:
            json.dumps(given, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            raise ValueError("is not JSON: it holds NaN, half of a surrogate pair, or is too deep") from None
        return given

    @property
    def form(self) -> ResponseFormat | None:
        """What kind of JSON the answer must be."""
        return None

    @property
    def constrained(self) -> bool:
        """Whether the answer must match something, which has to be compiled."""
        return self.structured_outputs is not None or self.form is not None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Fields that do not go with others of the body, and why."""
        if self.stream_options is not None and not self.stream:
            yield "stream_options", "stream_options need stream=true."
        if self.voidpad.canvas_events and not self.stream:
            yield "voidpad.canvas_events", "canvas events need stream=true."
        for name in ("template", "special_tokens"):
            if getattr(self.voidpad, name) and not isinstance(self, CompletionBody):
                yield f"voidpad.{name}", f"{name} goes with /v1/completions."
        for name in ("temperature", "top_p"):
            if getattr(self, name) is not None and name in (self.voidpad.model_extra or {}):
                yield name, f"{name} is given twice; drop voidpad.{name}."


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field(default=[], max_length=64)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None

    @model_validator(mode="after")
    def _without_choice_of_the_model(self) -> ChatBody:
        """Refuse tools under `auto`, the default: the model has no way to choose between text and a call."""
        if self.tools and self.tool_choice in (None, "auto"):
            message = (
                "this server cannot leave to the model whether it calls a tool; send required, none, or the name of a "
                "function"
            )
            error = {"type": "value_error", "loc": ("tool_choice",), "msg": message}
            self.tools, self._unsupported = [], {**self._unsupported, "tools": error}
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens or self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def turns(self) -> list[Message]:
        return self.messages

    @property
    def form(self) -> ResponseFormat | None:
        wanted = self.response_format
        return None if wanted is None or wanted.type == "text" else wanted

    @property
    def constrained(self) -> bool:
        return super().constrained or bool(self.tools)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        if self.max_completion_tokens is not None and self.max_tokens not in (
            None,
            self.max_completion_tokens,
        ):
            yield "max_tokens", "max_tokens and max_completion_tokens differ; give one."
        if self.top_logprobs is not None and not self.logprobs:
            yield "top_logprobs", "top_logprobs needs logprobs=true."


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    max_tokens: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    prompt: Annotated[tuple[str | tuple[int, ...], ...], BeforeValidator(_listed_prompts)]
    logprobs: int | None = Field(default=None, ge=0, le=5)
    suffix: str | None = Field(default=None, max_length=MOST_CHARACTERS)
    echo: bool = Field(default=False, description="score the prompt, with max_tokens 0 or 1")

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def fills_gaps(self) -> bool:
        return self.suffix is not None or self.voidpad.template is not None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        yield from super().conflicts()
        if len(self.prompt) * self.n > MOST_ROWS:
            yield "n", f"{len(self.prompt) * self.n} answers; ask for at most {MOST_ROWS}."
        if self.max_tokens == 0 and not self.echo:
            yield "max_tokens", "max_tokens=0 needs echo=true."
        others = self.n > 1 or self.stop or self.structured_outputs
        if self.echo and (others or self.stream or self.fills_gaps or self.max_tokens not in (0, 1)):
            yield "echo", "echo needs max_tokens 0 or 1, and no n, stream, stop, gaps or structured_outputs."
        if self.fills_gaps and (others or self.logprobs is not None):
            yield "suffix", "a gap is filled whole: n, logprobs, stop and structured_outputs do not apply."
        if self.suffix is None:
            return
        if self.voidpad.template is not None:
            yield "suffix", "suffix and voidpad.template exclude each other."
        if len(self.prompt) != 1 or not isinstance(self.prompt[0], str):
            yield "suffix", "suffix goes with one prompt of text."
        elif "[[gap" in self.prompt[0] + self.suffix:
            yield "suffix", "the text spells a gap itself; use voidpad.template."
