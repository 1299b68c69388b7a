"""What clients send, checked field by field.

Every field of OpenAI's two generation routes is known here: it is honoured, accepted when its value has no
effect, or refused with its name. Nothing is ignored silently.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from voidpad.decode.loop import resolved_bans
from voidpad.decode.plan import Plan
from voidpad.engine.cache_policy import check_cacheable
from voidpad.errors import VoidpadError
from voidpad.models.text import CHAT_ROLES, encode_text, raw_ids
from voidpad.serve.json_fields import JsonFields, RequestError

if TYPE_CHECKING:
    from voidpad.models import Model

MOST_CHOICES = 16  # n
MOST_ROWS = 64  # prompts times n of one request
MOST_STOPS = 16  # lm-eval sends all of a task's stop strings
LONGEST_STOP = 256  # characters
MOST_MESSAGES = 1024
MOST_TOP_LOGPROBS = 20
MOST_BIASES = 1024
# Fields whose listed values change nothing; any other value asks for something this server does not do.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "metadata": ({},),
    "echo": (False,),
    "suffix": ("",),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
LABELS = ("user", "safety_identifier", "prompt_cache_key")  # texts about the caller; they change no answer


@dataclass(frozen=True)
class GenerationRequest:
    """A checked request: what to decode, how, and in which form to answer."""

    route: Literal["chat", "completions"]
    prompts: tuple[tuple[int, ...], ...]  # token ids
    plan_name: str
    plan: Plan
    seed: int
    n: int = 1
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    canvas_events: bool = False  # the page asks for every pass, in the trace's format

    @property
    def rows(self) -> int:
        return len(self.prompts) * self.n


@dataclass(frozen=True)
class ServedModel:
    """The model and the decoding defaults that requests are checked against."""

    model: Model
    name: str
    plan_name: str
    fields: Mapping[str, Any]
    cache: str | None = None

    def plan(self, name: str, fields: Mapping[str, Any]) -> Plan:
        """The plan of a request: the server's own fields hold unless the request names another plan."""
        if ":" in name:
            raise RequestError(
                "a plan from a module is code; give the name of a preset.", param="voidpad.plan"
            )
        given = {**(self.fields if name == self.plan_name else {}), **fields}
        try:
            plan = self.model.plan(name, **given)
            resolved_bans(plan, self.model.roles, vocab=self.model.net.config.vocab_size)
            if self.cache:
                check_cacheable(plan)
        except VoidpadError as error:
            raise RequestError(str(error), param=_named_field(str(error), fields)) from None
        if given.get("canvas") is not None and plan.length.canvas >= self.model.context:
            raise RequestError(
                f"canvas={plan.length.canvas} leaves no room for a prompt in the model's context of "
                f"{self.model.context}; lower canvas.",
                param="voidpad.canvas",
            )
        if self.cache and plan.block != self.model.plan(self.plan_name, **self.fields).block:
            raise RequestError(
                f"block={plan.block}: this server keeps a cache for one block size; leave block out.",
                param="voidpad.block",
            )
        if not plan.cut:
            raise RequestError(
                "cut=false cannot be served: an answer ends at its first EOS.", param="voidpad.cut"
            )
        return plan


def read_request(
    given: dict[str, Any], route: Literal["chat", "completions"], served: ServedModel
) -> GenerationRequest:
    """Check every field and return what it asks for."""
    fields = JsonFields(given)
    name = fields.text("model")
    if name is None:
        raise RequestError("model is missing; GET /v1/models names it.", param="model")
    if name != served.name:
        raise RequestError(
            f"the model {name!r} does not exist; this server has {served.name!r}.",
            param="model",
            status=404,
            code="model_not_found",
        )
    extension = JsonFields(fields.mapping("voidpad") or {}, prefix="voidpad.")
    n = fields.whole("n", 1, MOST_CHOICES) or 1
    stream = fields.flag("stream") or False
    options = fields.mapping("stream_options")
    if options is not None and not stream:
        raise RequestError("stream_options need stream=true.", param="stream_options")
    include_usage = JsonFields(options or {}, prefix="stream_options.").only_flag("include_usage")
    special = extension.flag("special_tokens") or False
    canvas_events = extension.flag("canvas_events") or False
    # `canvas: true` means events, a number the plan's canvas.
    if isinstance(extension.left.get("canvas"), bool):
        canvas_events = extension.take("canvas") or canvas_events
    if canvas_events and not stream:
        raise RequestError("canvas events need stream=true.", param="voidpad.canvas")
    plan_name = extension.text("plan") or served.plan_name
    plan = _plan(plan_name, fields, extension, served)
    max_tokens = fields.whole("max_tokens", 1, 1 << 20)
    if route == "chat":
        newer = fields.whole("max_completion_tokens", 1, 1 << 20)
        if newer is not None and max_tokens is not None and newer != max_tokens:
            raise RequestError("max_tokens and max_completion_tokens differ; give one.", param="max_tokens")
        max_tokens = newer if newer is not None else max_tokens
        prompts: tuple[tuple[int, ...], ...] = (_chat_ids(fields.required("messages"), served.model),)
        logprobs, top = fields.flag("logprobs") or False, fields.whole("top_logprobs", 0, MOST_TOP_LOGPROBS)
        if top is not None and not logprobs:
            raise RequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
    else:
        prompts = _prompt_ids(fields.required("prompt"), served.model, special=special)
        top = fields.whole("logprobs", 0, 5)
        logprobs = top is not None
    seed = fields.whole("seed", -(2**63), 2**63 - 1)
    request = GenerationRequest(
        route=route,
        prompts=prompts,
        plan_name=plan_name,
        plan=plan,
        seed=secrets.randbits(53) if seed is None else seed & (2**63 - 1),
        n=n,
        max_tokens=max_tokens,
        stops=_stops(fields.take("stop")),
        stream=stream,
        include_usage=include_usage,
        logprobs=logprobs,
        top_logprobs=top or 0,
        canvas_events=canvas_events,
    )
    _refuse_effects(fields)
    if request.rows > MOST_ROWS:
        raise RequestError(f"{request.rows} answers in one request; ask for at most {MOST_ROWS}.", param="n")
    return request


def _plan(name: str, fields: JsonFields, extension: JsonFields, served: ServedModel) -> Plan:
    """The plan that `temperature`, `top_p`, `logit_bias` and the extension object ask for."""
    wanted = extension.rest()
    temperature, top_p = fields.number("temperature", 0, 2), fields.number("top_p", 0, 1)
    for field, value in (("temperature", temperature), ("top_p", top_p)):
        if value is None:
            continue
        if field in wanted:
            raise RequestError(f"{field} is given twice; drop voidpad.{field}.", param=field)
        if field == "top_p" and value == 1:
            continue  # the whole distribution: nothing to do, for plans without sampling too
        wanted[field] = value
    banned = _bans(fields.mapping("logit_bias"), served.model)
    plan = served.plan(name, wanted)
    if banned:
        muted = (*plan.mute, *banned) if plan.mute == plan.ban and plan.mute else plan.mute
        plan = replace(plan, ban=(*plan.ban, *banned), mute=muted)
    return plan


def _bans(biases: Mapping[str, Any] | None, model: Model) -> tuple[int, ...]:
    """`logit_bias` of -100 bans a token; other values would need scores that no rule here has."""
    if not biases:
        return ()
    if len(biases) > MOST_BIASES:
        raise RequestError(
            f"logit_bias has {len(biases)} entries; at most {MOST_BIASES}.", param="logit_bias"
        )
    rows = model.net.config.vocab_size
    banned = []
    for token, bias in biases.items():
        if not token.isascii() or not token.isdigit() or len(token) > 9 or not int(token) < rows:
            raise RequestError(f"logit_bias: {token[:40]!r} is no token id below {rows}.", param="logit_bias")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or bias not in (-100, 0):
            raise RequestError(
                f"logit_bias: {token}={str(bias)[:40]} cannot be honoured; only -100 (never write it) can.",
                param="logit_bias",
            )
        if bias:
            banned.append(int(token))
    return tuple(banned)


def _chat_ids(messages: Any, model: Model) -> tuple[int, ...]:
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of at least one message.", param="messages")
    if len(messages) > MOST_MESSAGES:
        raise RequestError(
            f"messages has {len(messages)} entries; at most {MOST_MESSAGES}.", param="messages"
        )
    turns = [_turn(message, place) for place, message in enumerate(messages)]
    try:
        return tuple(model.encode(turns))
    except VoidpadError as error:
        raise _too_long(str(error), "messages") from None


def _turn(message: Any, place: int) -> dict[str, str]:
    where = f"messages[{place}]"
    if not isinstance(message, dict):
        raise RequestError(f"{where} must be an object with role and content.", param=where)
    role = message.get("role")
    if not isinstance(role, str) or role not in CHAT_ROLES:
        raise RequestError(f"{where}.role must be one of {', '.join(CHAT_ROLES)}.", param=f"{where}.role")
    extra = sorted(
        set(message) - {"role", "content", "name", "refusal"} - {k for k, v in message.items() if v is None}
    )
    if extra:
        raise RequestError(
            f"{where}.{extra[0]} is not supported; send role and content.", param=f"{where}.{extra[0]}"
        )
    return {"role": role, "content": _content(message.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str:
    """Text, or text parts joined; other kinds of parts are refused."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise RequestError(f"{where} must be text or a list of text parts.", param=where)
    texts = []
    for place, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f"{where}[{place}]: only parts of type text are supported.", param=f"{where}[{place}]"
            )
        texts.append(part["text"])
    return "".join(texts)


def _prompt_ids(prompt: Any, model: Model, *, special: bool) -> tuple[tuple[int, ...], ...]:
    """A string, a list of strings, token ids, or a list of lists of token ids."""
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and _is_id(prompt[0])):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise RequestError("prompt must be text, token ids, or a list of either.", param="prompt")
    if len(prompt) > MOST_ROWS:
        raise RequestError(f"prompt has {len(prompt)} entries; at most {MOST_ROWS}.", param="prompt")
    return tuple(_one_prompt(one, model, special=special) for one in prompt)


def _one_prompt(one: Any, model: Model, *, special: bool) -> tuple[int, ...]:
    try:
        if isinstance(one, str):
            ids = (
                raw_ids(model.tokenizer, one)
                if special
                else encode_text(model.tokenizer, one, roles=model.roles)
            )
            return tuple(model.admit(ids))
        if isinstance(one, list) and all(_is_id(token) for token in one):
            rows = model.net.config.vocab_size
            outside = [token for token in one if not 0 <= token < rows]
            if outside:
                raise RequestError(
                    f"prompt: token id {outside[0]} is outside 0 to {rows - 1}.", param="prompt"
                )
            return tuple(model.admit(one))
    except RequestError:
        raise
    except VoidpadError as error:
        raise _too_long(str(error), "prompt") from None
    raise RequestError("prompt must be text, token ids, or a list of either.", param="prompt")


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _too_long(message: str, param: str) -> RequestError:
    code = "context_length_exceeded" if "context" in message else None
    return RequestError(message, param=param, code=code)


def _stops(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise RequestError("stop must be text or a list of texts.", param="stop")
    if len(stops) > MOST_STOPS:
        raise RequestError(f"stop has {len(stops)} texts; at most {MOST_STOPS}.", param="stop")
    if any(len(stop) > LONGEST_STOP for stop in stops):
        raise RequestError(f"a stop text may have at most {LONGEST_STOP} characters.", param="stop")
    return tuple(dict.fromkeys(stop for stop in stops if stop))


def _refuse_effects(fields: JsonFields) -> None:
    """What is left of a request must have no effect."""
    for label in LABELS:
        fields.text(label)
    for name, value in fields.rest().items():
        if name not in NEUTRAL:
            raise RequestError(f"{name[:60]}: this route has no such field.", param=name[:60])
        if not any(type(value) is type(one) and value == one for one in NEUTRAL[name]) and not (
            value == 0 and 0 in NEUTRAL[name] and isinstance(value, int | float)
        ):
            shown = json.dumps(value)[:60]
            neutral = " or ".join(json.dumps(one) for one in NEUTRAL[name]) or "null"
            raise RequestError(
                f"{name}={shown} cannot be honoured; leave it out or send {neutral}.", param=name
            )


def _named_field(message: str, fields: Mapping[str, Any]) -> str:
    """The extension field that a plan's refusal is about: the first one that it names."""
    words = re.findall(r"\w+", message)
    name = next((word for word in words if word in fields), None)
    if name is None:
        return "voidpad"
    return name if name in ("temperature", "top_p") else f"voidpad.{name}"
