"""`voidpad generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typer import Argument, Option

from voidpad.commands.options import (
    AsJson,
    ModelOptions,
    Raw,
    SamplingOptions,
    Seed,
    SpeedOptions,
    SystemPrompt,
    grouped,
    say_plan,
)
from voidpad.commands.prompts import gather, read
from voidpad.commands.ui import bar, err, note, out, print_json, warn
from voidpad.errors import ConfigError, format_validation_error
from voidpad.files import atomic_file, read_json, refuse_own_source
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.constrain import Constraint
    from voidpad.engine.events import Event
    from voidpad.models import Model, Result
    from voidpad.models.fill import Filled

JSON_FIELDS = (
    *("text", "tokens", "passes_decode", "passes_probe", "passes_shared"),
    *("canvas", "stop_reason", "seconds", "approximations"),
)


class OtherSettings(BaseModel):
    """What --set reaches beside the fields of the plan: seldom needed, so without options of their own."""

    model_config = ConfigDict(extra="forbid")
    rows: int = Field(default=32, ge=1)  # most rows in one forward pass
    tokens: int = Field(default=16384, ge=1)  # most tokens of these rows
    trace_detail: Literal["commits", "probs", "top5"] = "probs"
    family: str | None = None  # of a checkpoint whose config does not say it
    causal_block: int | None = Field(default=None, ge=1)  # of a block-causal checkpoint that does not say it
    roles: str = ""  # token ids by role, such as void=56940
    length: Literal["fixed", "cal", "void-gap"] = "cal"  # of --fill: how the length of a gap is chosen
    slots: int = Field(default=16, ge=1, le=2048)  # of --fill with length=fixed

    @classmethod
    def taken_from(cls, fields: dict[str, Any]) -> OtherSettings:
        """These settings, removed from the values of --set."""
        try:
            return cls(**{name: fields.pop(name) for name in cls.model_fields if name in fields})
        except ValidationError as error:
            raise ConfigError(f"--set {format_validation_error(error)}.") from None


@grouped
def generate(
    source: ModelOptions,
    decoding: SamplingOptions,
    fast: SpeedOptions,
    prompt: list[str] | None = Argument(None, help="one or more prompts"),
    file: Path | None = Option(None, help="prompts: text or JSON lines; - is standard input"),
    messages: Path | None = Option(None, help="JSON file with the turns of a conversation"),
    system: SystemPrompt = None,
    raw: Raw = False,
    seed: Seed = 0,
    as_json: AsJson = False,
    trace: Path | None = Option(None, help="record every pass to this file"),
    live: bool = Option(False, "--live", help="watch the canvas fill"),
    regex: str | None = Option(None, help="every answer matches this regular expression as a whole"),
    json_schema: Path | None = Option(None, help="every answer is JSON that the schema in this file allows"),
    choice: str | None = Option(None, help="every answer is one of these texts, separated by commas"),
    fill: Path | None = Option(
        None, help=r"write the gaps of this text: [\[gap]], [\[gap:12]], [\[gap:4-32]]"
    ),
) -> None:
    """Answer prompts with a masked diffusion language model, or fill the gaps of a text.

    --set also takes rows, tokens, trace_detail, family, causal_block and roles, and, to fill gaps, length and
    slots.
    """
    plan, fields = decoding.named(), decoding.fields()
    others = OtherSettings.taken_from(fields)
    constraint = _constraint(regex, json_schema, choice)
    if trace is not None:
        refuse_own_source(trace, file, messages, fill)
    if fill is None:
        prompts = gather(prompt, file=file, messages=messages, examples=source.model.startswith("tiny-"))
    elif prompt or file or messages:
        raise ConfigError("--fill has the whole text; leave out prompts, --file and --messages.")
    else:
        template = read(fill)
    opened = source.open(family=others.family, roles=others.roles.split(), causal_block=others.causal_block)
    about = {"seed": seed, "detail": others.trace_detail}
    if fill is not None:
        model = source.load(opened)
        with _watched(model, trace, live, plan_name=decoding.plan or "original", **about) as watchers:
            filled = model.fill(
                template,
                plan,
                length=others.length,
                slots=others.slots,
                constraint=constraint,
                seed=seed,
                **watchers,
                **fields,
            )
        _show_filled(filled, as_json=as_json)
        return
    from voidpad.diagnose.overflow import overflown

    name, many = decoding.plan or opened.default_plan, len(prompts) > 1
    fields, cache = fast.apply(plan or name, fields)
    plan = opened.plan(plan, **fields)
    ready = []
    for number, one in enumerate(prompts):
        try:
            ready.append(opened.prepare(one, plan, raw=raw, system=system))
        except ConfigError as error:
            raise ConfigError(f"prompt {number}: {error}" if many else str(error)) from None
    unknown = opened.tokenizer.unk_token_id
    unreadable = [key for key, one in enumerate(ready) if unknown is not None and unknown in one.ids]
    if unreadable:
        warn(f"prompt {unreadable[0]} holds characters or words that the tokenizer does not know")
    if constraint is not None:
        opened.constrain(constraint, plan)  # refused before weights are read
    model = source.load(opened)
    for text in plan.length.warnings(model.card.padding):
        warn(text)
    with (
        _watched(model, trace, live, plan_name=name, cache=cache, **about) as watchers,
        bar(len(prompts), shown=many and not live) as tick,
    ):
        results = model.generate(
            ready,
            seed=seed,
            rows=others.rows,
            tokens=others.tokens,
            cache=cache,
            constraint=constraint,
            progress=tick,
            **watchers,
        )
    if decoding.plan is None:
        say_plan(name, model.card.padding)
    for result in results:
        show(result, model.roles, as_json=as_json, many=many)
    free = [one for one in results if one.constraint is None and one.key not in unreadable]
    if drowned := [one for one in free if not one.text.strip() or overflown(one.ids, model.roles)]:
        state = "mostly EOS" if drowned[0].text.strip() else "empty"
        helps = "" if name == "eos-last" else "; --plan eos-last may help"
        why = "`voidpad analyze overflow` with the same prompt and options says why"
        err.print(f"answer {drowned[0].key} is {state}{helps}; {why}", style="yellow", markup=False)


@contextmanager
def _watched(model: Model, trace: Path | None, live: bool, **about: Any) -> Iterator[dict[str, Any]]:
    """The arguments `observe` and `listen` for a decode that is recorded, shown, both or neither."""
    with ExitStack() as views:
        listeners: list[Any] = []
        watchers: dict[str, Any] = {}
        if trace is not None:
            from voidpad.diagnose.trace import Recorder

            draft = views.enter_context(atomic_file(trace))  # opened before the work, not after it
            listeners.append(recorder := Recorder(model, **about))
            watchers["observe"] = recorder.observe
        if live:
            from voidpad.commands.chat import LiveView

            listeners.append(views.enter_context(LiveView(model, err)))

        def listen(event: Event) -> None:
            for one in listeners:
                one(event)

        yield watchers | ({"listen": listen} if listeners else {})
        if trace is not None:
            recorder.write(draft)


def _constraint(expression: str | None, schema: Path | None, choices: str | None) -> Constraint | None:
    """The constraint that the options ask for, if any."""
    from voidpad.constrain import choice, json_schema, regex

    if sum(option is not None for option in (expression, schema, choices)) > 1:
        raise ConfigError("--regex, --json-schema and --choice exclude each other; give one of them.")
    if expression is not None:
        return regex(expression)
    if schema is not None:
        return json_schema(read_json(schema, ConfigError))
    return choice(choices.split(",")) if choices is not None else None


def _show_filled(filled: Filled, *, as_json: bool) -> None:
    """The whole text; with --json also each gap, its slots and the passes."""
    passes, probes = filled.result.passes_decode, filled.passes_probe
    if as_json:
        values = {name: getattr(filled, name) for name in ("text", "gaps", "slots", "passes_probe")}
        print_json({**values, "passes_decode": passes})
        return
    print(filled.text, end="" if filled.text.endswith("\n") else "\n", flush=True)
    note(f"gaps of {', '.join(map(str, filled.slots))} tokens, {passes} passes + {probes} probes")


def show(result: Result, roles: Roles, *, as_json: bool, many: bool) -> None:
    if as_json:
        values = {name: getattr(result, name) for name in JSON_FIELDS}
        if result.constraint is not None:
            values["constraint"] = asdict(result.constraint)
        print_json(values)
        return
    if many:
        out.print(f"--- {result.key}", style="bold")
    print(result.text, flush=True)  # as it is: a console would turn :names: into pictures
    probes = f" + {result.passes_probe} probes" if result.passes_probe else ""
    shared = f" ({result.passes_shared} shared)" if result.passes_shared else ""
    size = sum(token not in roles.all() for token in result.tokens)  # as evaluation counts: without the EOS
    note(
        ("" if result.text.strip() else "empty answer; ")
        + ("" if result.constraint is None or result.constraint.matched else "does not match; ")
        + f"{size} tokens, {result.passes_decode} passes{probes}{shared}, "
        f"canvas {result.canvas}, stopped: {result.stop_reason}, {result.seconds:.2f} s"
        + (f"; approximate: {', '.join(result.approximations)}" if result.approximations else "")
    )
