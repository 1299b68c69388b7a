"""What clients may send, as pydantic models: OpenAI's two generation routes and the extension object `voidpad`.

FastAPI validates bodies against these models and makes the OpenAPI page from them. A field of OpenAI's interface is
honoured, accepted where its value changes nothing, or refused by its name. With `--lenient` fields of the last kind
are ignored, and the reply names them in a header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from voidpad.errors import VoidpadError, printable

MOST_CHOICES = 16  # n
MOST_ROWS = 64  # prompts times n of one request
MOST_STOPS = 16  # lm-eval sends all of a task's stop strings
LONGEST_STOP = 256  # characters
MOST_MESSAGES = 1024
MOST_BIASES = 1024
MOST_TOKENS = 1 << 20
MOST_PATTERN = 1 << 16  # characters of a regular expression
MOST_TOOLS = 64
Route = Literal["chat", "completions"]


class RequestError(VoidpadError):
    """A request that this server refuses; becomes an OpenAI error object with this status."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.code, self.kind = param, status, code, kind
        self.headers = dict(headers or {})


def invalid(errors: Sequence[Any]) -> RequestError:
    """The refusal for pydantic's errors about a body: the first one, named by its field as clients write it."""
    error = errors[0]
    param = field_name(error["loc"])
    if error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", "not JSON")
        return RequestError(f"the body is not valid JSON: {printable(str(reason))[:160]}.")
    if error["type"] == "missing" and not param:
        return RequestError("the body must be a JSON object.")
    message = "is missing" if error["type"] == "missing" else error["msg"].removeprefix("Value error, ")
    message = " ".join(printable(message).split())[:300].rstrip(".")
    return RequestError(f"{param or 'the body'}: {message}.", param=param or None)


def field_name(location: Sequence[int | str]) -> str:
    """A place in a body as clients write it: `messages[0].role`."""
    name = ""
    for part in location:
        if part == "body" and not name:
            continue
        name += f"[{part}]" if isinstance(part, int) else f".{printable(part)[:60]}"
    return name.lstrip(".")


def _plain(text: str) -> str:
    """Text that is valid Unicode: JSON can spell one half of a surrogate pair, which no encoding has."""
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("holds half of a surrogate pair")
    return text


def _text_of_content(content: Any) -> Any:
    """Text, or a list of text parts joined; other kinds of parts are refused."""
    if isinstance(content, str):
        return _plain(content)
    if not isinstance(content, list) or not content:
        raise ValueError("must be text or a list of text parts")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError("only parts of type text are supported")
    return _plain("".join(part["text"] for part in content))


def _listed_stops(stop: Any) -> Any:
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list | tuple) or not all(isinstance(one, str) for one in stops):
        raise ValueError("must be text or a list of texts")
    if len(stops) > MOST_STOPS:
        raise ValueError(f"has {len(stops)} texts; at most {MOST_STOPS}")
    if any(len(one) > LONGEST_STOP for one in stops):
        raise ValueError(f"a stop text may have at most {LONGEST_STOP} characters")
    return tuple(dict.fromkeys(_plain(one) for one in stops if one))


def _listed_prompts(prompt: Any) -> Any:
    """A string, a list of strings, token ids, or a list of lists of token ids, as a tuple of prompts."""
    prompts = [prompt] if isinstance(prompt, str) or _are_ids(prompt) else prompt
    if not isinstance(prompts, list) or not prompts:
        raise ValueError("must be text, token ids, or a list of either")
    if len(prompts) > MOST_ROWS:
        raise ValueError(f"has {len(prompts)} entries; at most {MOST_ROWS}")
    if not all(isinstance(one, str) or _are_ids(one) for one in prompts):
        raise ValueError("must be text, token ids, or a list of either")
    return tuple(_plain(one) if isinstance(one, str) else tuple(one) for one in prompts)


def _are_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    )


def _banned_ids(biases: Any) -> Any:
    """`logit_bias` of -100 bans a token; other values would need scores that no decoding rule has."""
    if not isinstance(biases, dict):
        raise ValueError("must be an object of token ids and biases")
    if len(biases) > MOST_BIASES:
        raise ValueError(f"has {len(biases)} entries; at most {MOST_BIASES}")
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 9):
            raise ValueError(f"{token[:40]!r} is no token id")
        if isinstance(bias, bool) or bias not in (-100, 0):
            raise ValueError(f"{token}={str(bias)[:40]} cannot be honoured; only -100 (never write it) can")
    return {token: int(bias) for token, bias in biases.items()}


class _Body(BaseModel):
    """Strict types; null counts as absent; what is not honoured is collected in `unused`, by name."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)
    # Fields whose listed values change nothing. Any other value asks for something this server does not do.
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}

    @property
    def unused(self) -> dict[str, str]:
        """Fields that have no effect although their values ask for one, with the reason."""
        reasons: dict[str, str] = {}
        for name, value in (self.model_extra or {}).items():
            neutral = self.neutral.get(name)
            if neutral is None:
                reasons[name] = "this route has no such field"
            elif not any(_same(value, one) for one in neutral):
                accepted = " or ".join(map(repr, neutral)) or "null"
                reasons[name] = f"cannot be honoured; leave it out or send {accepted}"
        return reasons


def _same(value: Any, neutral: Any) -> bool:
    is_zero = neutral == 0 and isinstance(value, int | float) and not isinstance(value, bool)
    return bool(value == neutral) and (is_zero or type(value) is type(neutral))


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False


class StructuredOutputs(_Body):
    """vLLM's extension: the answer is one of these texts, matches an expression, or is JSON of a schema."""

    model_config = ConfigDict(extra="forbid", strict=True)
    regex: str | None = Field(default=None, max_length=MOST_PATTERN)
    choice: list[str] | None = None
    json_: dict[str, Any] | str | None = Field(default=None, alias="json")

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if sum(one is not None for one in (self.regex, self.choice, self.json_)) != 1:
            raise ValueError("give one of regex, choice and json")
        return self


class NamedSchema(_Body):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(default={}, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Body):
    """OpenAI's `response_format`. A schema is always honoured to the letter, with `strict` or without."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("type json_schema goes with an object json_schema, and no other type does")
        return self


class Function(_Body):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    strict: bool | None = None


class Tool(_Body):
    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["function"]
    function: Function


class Message(_Body):
    """One turn of a chat. Text in it never becomes a special token."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text_of_content)]
    name: str | None = None
    refusal: str | None = None


class Extension(_Body):
    """The object `voidpad` of a request: the plan, its fields by name, and what only this server has."""

    plan: str | None = Field(default=None, max_length=60, description="a preset that `voidpad plans` lists")
    special_tokens: bool = Field(
        default=False, description="spelled special tokens of a text prompt become their ids"
    )
    canvas_events: bool = Field(default=False, description="stream every pass in the trace's format")
    template: str | None = Field(default=None, max_length=1 << 20, description="text with [[gap]]s to fill")
    gap_length: Literal["fixed", "cal", "void-gap"] = Field(
        default="cal", description="of gaps without a number"
    )

    @model_validator(mode="before")
    @classmethod
    def _canvas_of_true(cls, given: Any) -> Any:
        """`canvas: true` asks for canvas events; a number is the plan's field."""
        if isinstance(given, dict) and isinstance(given.get("canvas"), bool):
            given = {**given, "canvas_events": given["canvas"] or given.get("canvas_events", False)}
            del given["canvas"]
        return given

    @property
    def fields(self) -> dict[str, Any]:
        """The plan's fields."""
        return dict(self.model_extra or {})


class GenerationBody(_Body):
    """What both routes share."""

    model: str = Field(max_length=1024)
    max_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Annotated[tuple[str, ...], BeforeValidator(_listed_stops)] = ()
    stream: bool = False
    stream_options: StreamOptions | None = None
    logit_bias: Annotated[dict[str, int], BeforeValidator(_banned_ids)] = {}
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    structured_outputs: StructuredOutputs | None = None
    voidpad: Extension = Extension()

    neutral = {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "best_of": (1,),
        "store": (False,),
        "service_tier": ("auto", "default"),
        "metadata": ({},),
    }


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field(default=[], max_length=MOST_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None

    neutral = {
        **GenerationBody.neutral,
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "web_search_options": (),
    }


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[tuple[str | tuple[int, ...], ...], BeforeValidator(_listed_prompts)]
    logprobs: int | None = Field(default=None, ge=0, le=5)

    suffix: str | None = Field(default=None, max_length=1 << 20)

    neutral = {**GenerationBody.neutral, "echo": (False,)}
