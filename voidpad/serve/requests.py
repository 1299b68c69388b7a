"""From a validated body to what the engine decodes: prompt ids, the plan, the seed and the limits."""

from __future__ import annotations

import contextlib
import ctypes
import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from voidpad.constrain import ConstraintError, choice, json_object, json_schema, regex
from voidpad.constrain.row import GapConstraints, RowConstraint
from voidpad.decode.loop import resolved_bans
from voidpad.decode.plan import Plan
from voidpad.decode.presets import schema
from voidpad.errors import PlanError, VoidpadError
from voidpad.models.fill import Layout, lay_out
from voidpad.models.text import encode_text, raw_ids
from voidpad.serve.protocol import (
    MOST_ROWS,
    ChatBody,
    CompletionBody,
    Extension,
    Function,
    GenerationBody,
    RequestError,
    Route,
)

if TYPE_CHECKING:
    from voidpad.models import Model

LONG_TEXT = (
    1 << 15
)  # characters; longer texts are tokenized one at a time, because each takes hundreds of megabytes
_long_texts = threading.Lock()


@dataclass(frozen=True)
class GenerationRequest:
    """A checked request: what to decode, how, and in which form to answer."""

    route: Route
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
    ignored: tuple[str, ...] = ()  # fields without effect, which a lenient server accepts
    constraint: RowConstraint | GapConstraints | None = None  # what every answer must match
    calls_tool: bool = False  # the answer is a function call
    layout: Layout | None = None  # a template whose gaps are to be filled, in the place of a prompt
    only_gap: bool = False  # of a template with one gap, answer with what was written in it

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
    lenient: bool = False
    longest_token: int = 256  # characters of the longest token: no shorter encoding of a text exists

    def plan(self, name: str, fields: Mapping[str, Any]) -> Plan:
        """The plan of a request: the server's own fields hold unless the request names another plan."""
        if ":" in name:
            raise RequestError(
                "a plan from a module is code; give the name of a preset.", param="voidpad.plan"
            )
        known = self._known_fields(name)
        if unknown := sorted(set(fields) - known):
            raise RequestError(
                f"{unknown[0][:60]!r} is no field of plan {name[:60]!r}.", param=_param(unknown[0])
            )
        given = {**(self.fields if name == self.plan_name else {}), **fields}
        try:
            plan = self.model.plan(name, **given)
            resolved_bans(plan, self.model.roles, vocab=self.model.net.config.vocab_size)
        except VoidpadError as error:
            raise RequestError(str(error), param=_plan_param(error, fields)) from None
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

    def _known_fields(self, name: str) -> set[str]:
        try:
            return {field.name for field in schema(name, self.model.decoding)}
        except VoidpadError as error:
            raise RequestError(str(error), param="voidpad.plan") from None


Run = Callable[[Callable[[], Tensor]], Tensor]  # has a pass made by the engine's thread


def resolve(body: GenerationBody, served: ServedModel, run: Run) -> GenerationRequest:
    """What a body asks for: encodes the prompts and builds the plan. Long prompts take a while; call it in a thread."""
    if body.model != served.name:
        raise RequestError(
            f"the model {body.model[:80]!r} does not exist; this server has {served.name!r}.",
            param="model",
            status=404,
            code="model_not_found",
        )
    for name, reason in body.unused.items():
        if not served.lenient:
            raise RequestError(f"{name[:60]}: {reason}.", param=name[:60])
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options need stream=true.", param="stream_options")
    if body.voidpad.canvas_events and not body.stream:
        raise RequestError("canvas events need stream=true.", param="voidpad.canvas")
    plan_name = body.voidpad.plan or served.plan_name
    plan = _plan(plan_name, body, served)
    max_tokens = body.max_tokens
    if isinstance(body, ChatBody):
        newer = body.max_completion_tokens
        if newer is not None and max_tokens is not None and newer != max_tokens:
            raise RequestError("max_tokens and max_completion_tokens differ; give one.", param="max_tokens")
        max_tokens = newer if newer is not None else max_tokens
        if body.top_logprobs is not None and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
        route: Route = "chat"
        logprobs, top = body.logprobs, body.top_logprobs
        tools = _wanted_tools(body)
        prompts: tuple[tuple[int, ...], ...] = (_chat_ids(body, tools, served),)
    else:
        assert isinstance(body, CompletionBody)
        route, tools = "completions", []
        logprobs, top = body.logprobs is not None, body.logprobs
        if body.suffix is not None or body.voidpad.template is not None:
            return _filling(body, plan_name, served, run)
        prompts = tuple(_prompt_ids(one, body.voidpad, served) for one in body.prompt)
    request = GenerationRequest(
        route=route,
        prompts=prompts,
        plan_name=plan_name,
        plan=plan,
        seed=secrets.randbits(53) if body.seed is None else body.seed & (2**63 - 1),
        n=body.n,
        max_tokens=max_tokens,
        stops=body.stop,
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        logprobs=logprobs,
        top_logprobs=top or 0,
        canvas_events=body.voidpad.canvas_events,
        ignored=tuple(body.unused),
        constraint=_compiled(body, tools, plan, served.model),
        calls_tool=bool(tools),
    )
    if request.rows > MOST_ROWS:
        raise RequestError(f"{request.rows} answers in one request; ask for at most {MOST_ROWS}.", param="n")
    return request


def _filling(body: CompletionBody, plan_name: str, served: ServedModel, run: Run) -> GenerationRequest:
    """A request whose prompt and suffix, or whose template, leave gaps to fill."""
    asked = body.voidpad
    if body.stream or body.n > 1 or body.logprobs is not None or body.stop:
        raise RequestError(
            "a gap is filled whole: stream, n, logprobs and stop do not apply.", param="suffix"
        )
    template = asked.template
    if template is None:
        if len(body.prompt) != 1 or not isinstance(body.prompt[0], str):
            raise RequestError("suffix goes with one prompt of text.", param="suffix")
        if "[[gap" in body.prompt[0] + (body.suffix or ""):
            raise RequestError("the text spells a gap itself; use voidpad.template.", param="suffix")
        template = f"{body.prompt[0]}[[gap:{min(body.max_tokens or 16, 2048)}]]{body.suffix}"
    elif body.suffix is not None:
        raise RequestError("suffix and voidpad.template exclude each other.", param="suffix")
    never = ("ends",) if served.model.roles.void is None else ("ends", "void")
    plan = served.plan(plan_name, {"ban": never, **asked.fields})
    if len(template) > served.model.context * served.longest_token:
        raise RequestError(
            "the text cannot fit the model's context.", param="prompt", code="context_length_exceeded"
        )
    try:
        layout = lay_out(served.model, template, plan, length=asked.gap_length, run=run)
    except VoidpadError as error:
        raise RequestError(str(error), param="voidpad.template" if asked.template else "prompt") from None
    return GenerationRequest(
        route="completions",
        prompts=(tuple(layout.ids),),
        plan_name=plan_name,
        plan=layout.plan,
        seed=secrets.randbits(53) if body.seed is None else body.seed & (2**63 - 1),
        constraint=layout.constraint,
        layout=layout,
        only_gap=asked.template is None,
        ignored=tuple(body.unused),
    )


def _plan(name: str, body: GenerationBody, served: ServedModel) -> Plan:
    """The plan that `temperature`, `top_p`, `logit_bias` and the extension object ask for."""
    fields = body.voidpad.fields
    for field, value in (("temperature", body.temperature), ("top_p", body.top_p)):
        if value is None:
            continue
        if field in fields:
            raise RequestError(f"{field} is given twice; drop voidpad.{field}.", param=field)
        if field == "top_p" and value == 1:
            continue  # the whole distribution: nothing to do, for plans without sampling too
        fields[field] = value
    plan = served.plan(name, fields)
    banned = tuple(int(token) for token, bias in body.logit_bias.items() if bias)
    rows = served.model.net.config.vocab_size
    if outside := [token for token in banned if token >= rows]:
        raise RequestError(f"logit_bias: {outside[0]} is no token id below {rows}.", param="logit_bias")
    if banned:
        muted = (*plan.mute, *banned) if plan.mute == plan.ban and plan.mute else plan.mute
        plan = plan.replace(ban=(*plan.ban, *banned), mute=muted)
    return plan


def _plan_param(error: VoidpadError, fields: Mapping[str, Any]) -> str:
    """The request's field that a plan's refusal is about."""
    name = error.field if isinstance(error, PlanError) else None
    return "voidpad" if name is None or name not in fields else _param(name)


def _param(field: str) -> str:
    """A plan's field as the request spells it."""
    return field if field in ("temperature", "top_p") else f"voidpad.{field[:60]}"


def _wanted_tools(body: ChatBody) -> list[Function]:
    """The functions among which the answer must choose; empty where it calls none."""
    chosen = body.tool_choice
    if not body.tools or chosen == "none":
        return []
    if chosen in (None, "auto"):
        raise RequestError(
            "tool_choice: this server cannot leave to the model whether it calls a tool; send required, none, or the "
            "name of a function.",
            param="tool_choice",
        )
    functions = [tool.function for tool in body.tools]
    if chosen == "required":
        return functions
    name = chosen.get("function", {}).get("name") if isinstance(chosen, dict) else None
    if found := [function for function in functions if function.name == name]:
        return found
    raise RequestError(f"tool_choice: names no function of tools: {str(name)[:60]!r}.", param="tool_choice")


def _compiled(
    body: GenerationBody, tools: Sequence[Function], plan: Plan, model: Model
) -> RowConstraint | None:
    """What the answer must match, compiled in a process with limits of time and memory."""
    wanted, param = None, "structured_outputs"
    try:
        if body.structured_outputs is not None:
            asked = body.structured_outputs
            if asked.regex is not None:
                wanted = regex(asked.regex)
            else:
                wanted = json_schema(asked.json_) if asked.choice is None else choice(asked.choice)
        if isinstance(body, ChatBody) and body.response_format and body.response_format.type != "text":
            if wanted is not None:
                raise RequestError("response_format and structured_outputs exclude each other.", param=param)
            param, named = "response_format", body.response_format.json_schema
            wanted = json_object() if named is None else json_schema(named.schema_)
        if tools:
            if wanted is not None:
                raise RequestError(f"{param} and tools exclude each other.", param="tools")
            param, wanted = "tools", json_schema({"anyOf": [_call_schema(one) for one in tools]})
        return None if wanted is None else model.constrain(wanted, plan, worker=True)
    except ConstraintError as error:
        raise RequestError(str(error), param=param, code=error.keyword or None) from None
    except VoidpadError as error:
        raise RequestError(str(error), param=param) from None


def _call_schema(function: Function) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": function.parameters},
        "required": ["name", "arguments"],
    }


def _chat_ids(body: ChatBody, tools: Sequence[Function], served: ServedModel) -> tuple[int, ...]:
    turns = [{"role": message.role, "content": message.content} for message in body.messages]
    if tools:
        listed = json.dumps([function.model_dump(exclude_none=True) for function in tools])
        told = f'Call one of these functions as {{"name": ..., "arguments": ...}}: {listed}'
        if turns[0]["role"] in ("system", "developer"):
            turns[0] = {**turns[0], "content": f"{turns[0]['content']}\n{told}"}
        else:
            turns.insert(0, {"role": "system", "content": told})
    size = sum(len(turn["content"]) for turn in turns)
    return _encoded(lambda: served.model.encode(turns), size, "messages", served)


def _prompt_ids(prompt: str | tuple[int, ...], extension: Extension, served: ServedModel) -> tuple[int, ...]:
    model = served.model
    if not isinstance(prompt, str):
        return _encoded(lambda: model.check_prompt(prompt), 0, "prompt", served)
    if extension.special_tokens:
        return _encoded(
            lambda: model.check_prompt(raw_ids(model.tokenizer, prompt)), len(prompt), "prompt", served
        )

    def encode() -> Sequence[int]:
        return model.check_prompt(encode_text(model.tokenizer, prompt, roles=model.roles))

    return _encoded(encode, len(prompt), "prompt", served)


def _encoded(
    encode: Callable[[], Sequence[int]], size: int, param: str, served: ServedModel
) -> tuple[int, ...]:
    """The ids of a prompt of `size` characters, in bounded memory; refused where no encoding fits the context."""
    most = served.model.context * served.longest_token
    if size > most:
        raise RequestError(
            f"{param}: {size} characters cannot fit the model's context of {served.model.context} tokens; shorten it.",
            param=param,
            code="context_length_exceeded",
        )
    try:
        if size < LONG_TEXT:
            return tuple(encode())
        with _long_texts:
            ids = tuple(encode())
            _return_memory()
        return ids
    except VoidpadError as error:
        code = "context_length_exceeded" if "context" in str(error) else None
        raise RequestError(str(error), param=param, code=code) from None


def _return_memory() -> None:
    """Give the tokenizer's freed memory back to the system; glibc would keep it for the process."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
