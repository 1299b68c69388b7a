"""From a validated body to what the engine decodes: prompt ids, the plan, the seed and the limits."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from voidpad.constrain import ConstraintError, choice, json_object, json_schema, regex
from voidpad.constrain.row import RowConstraint
from voidpad.decode.length import Fixed, VoidExpansion
from voidpad.decode.loop import resolved_bans
from voidpad.decode.plan import Plan
from voidpad.decode.presets import describe
from voidpad.errors import ConfigError, PlanError, VoidpadError
from voidpad.evaluate.provenance import installed_version
from voidpad.models.fill import Layout, lay_out
from voidpad.models.text import encode_text, raw_ids
from voidpad.serve.answer_text import text_rules
from voidpad.serve.live import LiveRequest
from voidpad.serve.options import ServeOptions
from voidpad.serve.protocol import (
    ChatBody,
    CompletionBody,
    Function,
    GenerationBody,
    Message,
    RequestError,
    invalid,
)
from voidpad.serve.responses import LiveResponse, ResponsesBody

if TYPE_CHECKING:
    from voidpad.models import Model

Run = Callable[[Callable[[], Tensor]], Tensor]  # has a pass made by the engine's thread
LONG_TEXT = 1 << 15  # characters whose tokenizing leaves memory worth giving back


def usual_plan(default: str) -> str:
    """The plan to serve where none is named. Clients do not know the length of an answer, so VOID padding expands."""
    return "void-expansion" if default == "void" else default


class ServedModel:
    """A model under its name for clients, and the decoding defaults that requests are checked against."""

    def __init__(self, model: Model, options: ServeOptions) -> None:
        self.model, self.options = model, options
        self.name = options.name or model.name
        self.plan_name = options.plan or usual_plan(model.default_plan)
        try:
            self.default = self.plan(self.plan_name, {})
        except RequestError as error:
            raise ConfigError(str(error)) from None
        self.rules = text_rules(model)
        # A text of more than this many characters has more tokens than the context.
        self.longest_text = model.context * max(map(len, model.tokenizer.get_vocab()), default=1)
        self.token_text = cache(lambda token: str(model.tokenizer.decode([token])))  # of a token by itself

    @cached_property
    def fingerprint(self) -> str:
        """Names the weights, the plan and the version; the same at every start."""
        version = installed_version("voidpad") or "unknown"
        about = [self.model.fingerprint, self.default.plain(), self.options.cache, version]
        return "vp_" + hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]

    def plan(self, name: str, fields: Mapping[str, Any]) -> Plan:
        """The plan of a request: the server's own fields hold unless the request names another plan."""
        model, own = self.model, self.options.fields if name == self.plan_name else {}
        given = {**own, **fields}
        try:
            plan, _ = describe(name, given, defaults=model.decoding, calibration=model.card.calibration)
            model.plan(plan)  # refuses one for another kind of attention
            resolved_bans(plan, model.roles, vocab=model.net.config.vocab_size)
            if "canvas" in given and plan.length.canvas >= model.context:
                raise PlanError(
                    f"canvas={plan.length.canvas} leaves no room for a prompt in the model's context of "
                    f"{model.context}; lower canvas.",
                    field="canvas",
                )
            if self.options.cache and fields and plan.block != self.default.block:
                raise PlanError(
                    f"block={plan.block}: this server keeps a cache for one block size; leave block out.",
                    field="block",
                )
            if not plan.cut:
                raise PlanError("cut=false cannot be served: an answer ends at its first EOS.", field="cut")
        except VoidpadError as error:
            field = error.field if isinstance(error, PlanError) else ""
            at_top = field in ("temperature", "top_p") and field in fields
            known = field[:60] if field == "plan" or field in fields else ""
            raise RequestError(
                str(error), param=field if at_top else f"voidpad.{known}".rstrip(".")
            ) from None
        return plan


def resolve(body: GenerationBody, served: ServedModel, run: Run) -> LiveRequest:
    """What a body asks for: encodes the prompts and builds the plan. Long prompts take a while; call it in a thread."""
    if body._unsupported and not served.options.lenient:
        raise invalid(next(iter(body._unsupported.values())))
    for param, message in body.conflicts():
        raise RequestError(message, param=param)
    seed = secrets.randbits(53) if body.seed is None else body.seed & (2**63 - 1)
    plan_name = body.voidpad.plan or served.plan_name
    plan = _plan(plan_name, body, served)
    tools: list[Function] = []
    layout, echo = None, False
    if isinstance(body, CompletionBody):
        echo = body.echo
        if body.fills_gaps:
            layout = _lay_out(body, plan, served, run)
            plan, prompts = layout.plan, [layout.ids]
        else:
            prompts = [_prompt_ids(one, body, served) for one in body.prompt]
    else:
        assert isinstance(body, ChatBody | ResponsesBody)
        tools = _wanted_tools(body) if isinstance(body, ChatBody) else []
        prompts = [_chat_ids(body.turns, tools, served)]
    constraint = layout.constraint if layout else _compiled(body, tools, plan, served.model)
    bounded = not (layout or echo)
    live = LiveResponse if isinstance(body, ResponsesBody) else LiveRequest
    return live(
        body,
        served,
        plan_name,
        plan,
        seed,
        prompts,
        limits=[_canvas_limit(ids, plan, body, constraint, served) if bounded else None for ids in prompts],
        constraint=constraint,
        calls_tool=bool(tools),
        layout=layout,
    )


def _lay_out(body: CompletionBody, plan: Plan, served: ServedModel, run: Run) -> Layout:
    """The text of a request whose prompt and suffix, or whose template, leave gaps to fill."""
    asked = body.voidpad
    template = asked.template
    if template is None:
        template = f"{body.prompt[0]}[[gap:{min(body.max_tokens or 16, 2048)}]]{body.suffix}"
    # The server's usual plan: a gap has its own length, so the canvas need not grow.
    if asked.plan is None and isinstance(plan.length, VoidExpansion):
        plan = plan.replace(length=Fixed(canvas=plan.length.canvas))
    with _bounded(len(template), "voidpad.template" if asked.template else "prompt", served):
        return lay_out(served.model, template, plan, length=asked.gap_length, run=run)


def _plan(name: str, body: GenerationBody, served: ServedModel) -> Plan:
    """The plan that `temperature`, `top_p`, `logit_bias` and the extension object ask for."""
    fields = dict(body.voidpad.model_extra or {})
    if isinstance(body, CompletionBody) and body.fills_gaps:  # a gap ends when it is full
        fields.setdefault("ban", ("ends",) if served.model.roles.void is None else ("ends", "void"))
    for field, value in (("temperature", body.temperature), ("top_p", body.top_p)):
        if value is not None and (field, value) != ("top_p", 1):  # plans without sampling take top_p=1 too
            fields[field] = value
    plan = served.plan(name, fields)
    rows = served.model.net.config.vocab_size
    if outside := [token for token in body.banned if token >= rows]:
        raise RequestError(f"logit_bias: {outside[0]} is no token id below {rows}.", param="logit_bias")
    if body.banned:
        muted = (*plan.mute, *body.banned) if plan.mute == plan.ban and plan.mute else plan.mute
        plan = plan.replace(ban=(*plan.ban, *body.banned), mute=muted)
    return plan


def _canvas_limit(
    ids: Sequence[int], plan: Plan, body: GenerationBody, constraint: Any, served: ServedModel
) -> int:
    """The longest canvas of a row: what the client asked for, in whole blocks, and what the context leaves."""
    try:
        limit = served.model.row_limit(ids, plan, max_tokens=body.most_tokens)
    except ConfigError as error:
        raise RequestError(str(error), param="prompt", code="context_length_exceeded") from None
    if isinstance(constraint, RowConstraint) and constraint.shortest > limit:
        raise RequestError(
            f"the shortest answer that matches takes {constraint.shortest} tokens; max_tokens, the plan and the "
            f"context leave {limit}.",
            param="max_tokens",
        )
    return limit


def _wanted_tools(body: ChatBody) -> list[Function]:
    """The functions among which the answer must choose; empty where it calls none."""
    chosen = body.tool_choice
    if not body.tools or chosen == "none":
        return []
    functions = [tool.function for tool in body.tools]
    if chosen == "required":
        return functions
    named = chosen.get("function") if isinstance(chosen, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if found := [function for function in functions if function.name == name]:
        return found
    raise RequestError("tool_choice: names no function of tools.", param="tool_choice")


def _compiled(
    body: GenerationBody, tools: Sequence[Function], plan: Plan, model: Model
) -> RowConstraint | None:
    """What the answer must match, compiled in a process with limits of time and memory."""
    wanted: dict[str, Callable[[], Any]] = {}  # by the field that asks for it
    if (asked := body.structured_outputs) is not None:
        [kind] = asked.model_fields_set
        makers = {"regex": regex, "choice": choice, "json_": json_schema}
        wanted["structured_outputs"] = partial(makers[kind], getattr(asked, kind))
    if body.form is not None:
        schema = body.form.json_schema
        wanted[body.form_field] = partial(json_schema, schema.schema_) if schema else json_object
    if tools:
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": tool.parameters},
                "required": ["name", "arguments"],
            }
            for tool in tools
        ]
        wanted["tools"] = partial(json_schema, {"anyOf": calls})
    if not wanted:
        return None
    param, *others = wanted
    if others:
        raise RequestError(f"{param} and {others[0]} exclude each other.", param=others[0])
    try:
        return model.constrain(wanted[param](), plan, worker=True)
    except VoidpadError as error:
        keyword = error.keyword or None if isinstance(error, ConstraintError) else None
        raise RequestError(str(error), param=param, code=keyword) from None


def _chat_ids(messages: Sequence[Message], tools: Sequence[Function], served: ServedModel) -> list[int]:
    turns = [{"role": message.role, "content": message.content} for message in messages]
    if tools:
        listed = json.dumps([function.model_dump(exclude_none=True) for function in tools])
        told = f'Call one of these functions as {{"name": ..., "arguments": ...}}: {listed}'
        if turns[0]["role"] in ("system", "developer"):
            turns[0]["content"] += f"\n{told}"
        else:
            turns.insert(0, {"role": "system", "content": told})
    with _bounded(sum(len(turn["content"]) for turn in turns), "messages", served):
        return list(served.model.encode(turns))


def _prompt_ids(prompt: str | tuple[int, ...], body: CompletionBody, served: ServedModel) -> list[int]:
    model = served.model
    with _bounded(len(prompt) if isinstance(prompt, str) else 0, "prompt", served):
        if not isinstance(prompt, str):
            ids = list(prompt)
        elif body.voidpad.special_tokens:
            ids = raw_ids(model.tokenizer, prompt)
        else:
            ids = encode_text(model.tokenizer, prompt, roles=model.roles)
        return list(model.check_prompt(ids))


@contextlib.contextmanager
def _bounded(size: int, param: str, served: ServedModel) -> Any:
    """Inside, a text of `size` characters is encoded; one that no encoding fits into the context is refused before."""
    if size > served.longest_text:
        raise RequestError(
            f"{param}: {size} characters cannot fit the model's context of {served.model.context} tokens; shorten it.",
            param=param,
            code="context_length_exceeded",
        )
    try:
        yield
        if size > LONG_TEXT:
            return_memory()
    except RequestError:
        raise
    except VoidpadError as error:
        code = "context_length_exceeded" if "context" in str(error) else None
        raise RequestError(str(error), param=param, code=code) from None


def return_memory() -> None:
    """Give freed memory back to the system; glibc keeps it for each thread that has allocated."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
