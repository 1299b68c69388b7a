"""Checkpoint: what the small files of a model say, without its weights.

`open_checkpoint` reads config.json, voidpad.json and the tokenizer once each. Everything that needs no network works
on the result: the default plan, plans and their checks, prompts as token ids. So a wrong plan or a prompt that is too
long is refused at once, before gigabytes of weights are read. `Checkpoint.load_weights` reads those; `load` does both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from voidpad.constrain.row import Compiler, RowConstraint
from voidpad.decode.constrained import check_constrained
from voidpad.decode.plan import Plan
from voidpad.decode.presets import FamilyDefaults, describe
from voidpad.errors import ConfigError, WeightsError, warn_assumed
from voidpad.files import readable
from voidpad.models.adapter import attach, has_released_names
from voidpad.models.card import PLANS, Card, read_card
from voidpad.models.device import DeviceConfig
from voidpad.models.families import FAMILIES, Family, recognise
from voidpad.models.locate import Adapter, Source, find_source, is_adapter, locate
from voidpad.models.text import Messages, chat, encode_chat, raw_ids, read_tokenizer, special_ids
from voidpad.models.weights import headers, open_tensors, quiet_transformers, refuse_misfits, stored_dtype
from voidpad.roles import Roles, build, resolve

if TYPE_CHECKING:
    from voidpad.models.model import Model


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt that fits: its token ids, and the plan with its longest canvas cut to what the context leaves."""

    ids: tuple[int, ...]
    plan: Plan


Prompt = str | Messages | PreparedPrompt


@dataclass
class Checkpoint:
    """An opened checkpoint. `Model` is one with its network."""

    config: PretrainedConfig  # of the stock class of transformers
    tokenizer: PreTrainedTokenizerBase
    card: Card  # family, token roles, padding, calibration
    name: str
    source: Source | None = None  # None for weights that were made or changed in this process

    @property
    def family(self) -> Family:
        return FAMILIES[self.card.family]

    @property
    def roles(self) -> Roles:
        return self.card.roles

    @property
    def default_plan(self) -> str:
        """The plan to decode with when the user names none.

        A block-causal family has plans of its own. A checkpoint of another family whose card names no padding was not
        trained with VOID: it gets the plan of its release.
        """
        if self.family.causal_block:
            return next(iter(self.family.decoding.presets))
        return PLANS[self.card.padding] if self.card.padding is not None else self.family.default_plan

    @property
    def decoding(self) -> FamilyDefaults:
        """The defaults of presets for this checkpoint: its family's, and its own size of causal blocks."""
        return replace(self.family.decoding, causal_block=self.card.causal_block)

    @property
    def context(self) -> int:
        """The most tokens a row may have, prompt and canvas together; a whole number of causal blocks."""
        positions = int(self.config.max_position_embeddings)
        return positions - positions % (self.card.causal_block or 1)

    def load_weights(self, device: str = "cpu", dtype: str = "auto", quantize: str | None = None) -> "Model":
        """The model: this checkpoint with its network, an adapter included. `load` explains the options."""
        from voidpad.models.model import Model

        place, source, family = DeviceConfig(device, dtype, quantize), self.source, self.family
        assert source is not None, "made in this process: there are no files to load"
        if quantize is not None and family.experts:
            raise ConfigError(
                f"{self.name}: quantize={quantize!r} reaches linear layers only, not the experts; drop quantize."
            )
        where, found = str(source.folder), headers(source.folder)
        if self.config.num_hidden_layers > len(found):  # building such a network would take all memory
            raise WeightsError(f"{where}: config.json asks for more layers than the files have tensors.")
        stored = stored_dtype(found)
        place.check_memory(sum(tensor.numel() for tensor in found.values()), stored, where=where)
        with (
            readable(source.folder, "checkpoint"),
            quiet_transformers(),
            open_tensors(source.folder, family, self.config) as tensors,
        ):
            loaded: Any = family.net_class.from_pretrained(
                None,
                config=self.config,
                state_dict=tensors,
                generation_config=GenerationConfig(),  # a release's own is about its remote decoding code
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **place.options(stored),
            )
        net, placed = loaded
        misshapen = [f"{name} {list(file)} for {list(own)}" for name, file, own in placed["mismatched_keys"]]
        missing, surplus = placed["missing_keys"], placed["unexpected_keys"]
        refuse_misfits(where, missing=missing, surplus=surplus, misshapen=misshapen)
        net.name_or_path = source.name  # peft and the hub quote it
        # Forget the old names, or a later save_pretrained by a trainer writes them beside our config.
        net.__dict__.pop("_weight_conversions", None)
        net = place.move(net)
        if source.adapter is not None:
            net = attach(net, source.adapter, family, source.name, quantized=quantize is not None)
        model = Model(**vars(self), net=net, scheme=place.scheme)
        if place.scheme is not None and place.scheme.convert is not None:
            place.scheme.convert(model.base)
        return model

    # Plans

    def plan(self, name: str | Plan | None = None, **fields: Any) -> Plan:
        """A preset with the defaults of this checkpoint's family and calibration; a ready plan is taken as it is.

        Without a name it is the preset that fits the padding of this checkpoint. A plan for another kind of attention
        is refused.
        """
        chosen, _ = describe(
            name or self.default_plan, fields, defaults=self.decoding, calibration=self.card.calibration
        )
        theirs = chosen.causal.size if chosen.causal else 0
        if theirs != self.card.causal_block:
            raise ConfigError(
                f"{self.name}: the plan is for attention in blocks of {theirs}, but this model has "
                f"{self.card.causal_block} (0 is full attention); use one of {', '.join(self.decoding.presets)}."
            )
        return chosen

    def require_full_attention(self, what: str) -> None:
        """Refuse, for a block-causal model, something that only full attention gives a meaning."""
        if self.card.causal_block:
            raise ConfigError(
                f"{self.name}: {what} needs a model with full attention, and this one's attention is block-causal."
            )

    # Prompts

    def encode(
        self, prompt: str | Messages, *, system: str | None = None, raw: bool = False, canvas: int = 1
    ) -> list[int]:
        """Prompt ids: through the chat template, or the bare text with `raw`; they leave room for the canvas.

        Special tokens that are spelled in messages stay text; in `raw` text they become their ids.
        """
        if not raw:
            ids = encode_chat(self.tokenizer, chat(prompt, system=system), roles=self.roles)
        elif isinstance(prompt, str) and system is None:
            ids = raw_ids(self.tokenizer, prompt)
        else:
            raise ConfigError("raw=True takes plain text; drop the system prompt and the messages, or raw.")
        return self.check_prompt(ids, canvas=canvas)

    def prepare(
        self, prompt: Prompt, plan: Plan, *, system: str | None = None, raw: bool = False
    ) -> PreparedPrompt:
        """The prompt as checked ids with the plan that fits beside it; `generate` takes the result."""
        if isinstance(prompt, PreparedPrompt):
            return prompt
        ids = self.encode(prompt, system=system, raw=raw, canvas=plan.length.canvas)
        return PreparedPrompt(tuple(ids), plan.fitted(self.context - len(ids)))

    def check_prompt(self, ids: Sequence[int], *, canvas: int = 1) -> list[int]:
        """The prompt ids, unless no canvas of this length could answer them."""
        if not ids:
            raise ConfigError("prompt is empty; give at least one character.")
        outside = next((token for token in ids if not 0 <= token < self.config.vocab_size), None)
        if outside is not None:
            raise ConfigError(
                f"prompt holds the id {outside}, outside the embedding; use the model's tokenizer."
            )
        if self.roles.mask in ids:
            raise ConfigError(f"prompt holds a token that is the mask ({self.roles.mask}); remove it.")
        if len(ids) + canvas > self.context:
            raise ConfigError(
                f"prompt of {len(ids)} tokens: the model's context of {self.context} leaves room for "
                f"{max(self.context - canvas, 0)} at most beside an answer of canvas {canvas}; shorten the prompt or "
                "the canvas."
            )
        return list(ids)

    def fit(self, ids: Sequence[int], plan: Plan) -> Plan:
        """The plan with its longest canvas cut to what the context leaves beside this prompt."""
        self.check_prompt(ids, canvas=plan.length.canvas)
        return plan.fitted(self.context - len(ids))

    def row_limit(self, ids: Sequence[int], plan: Plan, *, max_tokens: int | None = None) -> int:
        """The longest canvas that a row with this prompt may have: what `Engine.submit` takes as `limit`.

        It is the plan's limit, cut to the whole blocks that the context leaves beside the prompt, and to `max_tokens`
        rounded up to whole blocks. A canvas that starts longer starts at this limit instead. An answer may be longer
        than `max_tokens` by less than a block, so callers cut it. A prompt that leaves no room for a block is refused.
        Rows of a block-causal plan are rounded up when they begin, not here, and need room for one slot only.
        """
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"max_tokens={max_tokens} leaves no room for an answer; use at least 1.")
        unit = 1 if plan.causal else plan.block
        self.check_prompt(ids, canvas=min(unit, plan.limit))
        room = self.context - len(ids)
        limits = [plan.limit, room, max(room // unit, 1) * unit]
        if max_tokens is not None:
            limits.append(-(-max_tokens // unit) * unit)
        return min(limits)

    @property
    def compiler(self) -> Compiler:
        """Compiles constraints for this checkpoint's vocabulary."""
        return Compiler(self.tokenizer, self.roles, int(self.config.vocab_size))

    def constrain(
        self, constraint: Any, plan: Plan, *, closed: bool = False, worker: bool = False
    ) -> RowConstraint:
        """A constraint, compiled for rows of this plan: what `Engine.submit` takes.

        `constraint` comes from `voidpad.choice`, `regex` or `json_schema`, or is a pydantic model class. With `closed`,
        the text fills its slots exactly, as in a gap of a template (see `GapConstraints`). With `worker`, compiling
        happens in a process with limits of time and memory. What the plan does that cannot be had beside a constraint
        is refused by name.
        """
        check_constrained(plan, self.roles)
        ban = self.roles.ids([*plan.ban, *self.roles.never])
        return self.compiler(constraint, ban=ban, closed=closed, worker=worker)

    def text(self, ids: Sequence[int], *, cut: bool = True) -> str:
        """The text up to the first end (all of it without `cut`), special tokens left out."""
        end = next((at for at, token in enumerate(ids) if cut and token in self.roles.ends), len(ids))
        dropped = special_ids(self.tokenizer) | self.roles.all()
        return str(self.tokenizer.decode([token for token in ids[:end] if token not in dropped]))


# Opening


def load(
    name: str | Path,
    adapter: str | Path | None = None,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quantize: str | None = None,
    family: str | None = None,
    roles: Mapping[str, Any] | None = None,
    causal_block: int | None = None,
) -> "Model":
    """A model by built-in name, folder or hub id, with or without a LoRA adapter.

    `device` is cpu, cuda, cuda:<n>, mps, auto (the best of this machine) or spread (over all GPUs). `dtype` is
    float32, bfloat16 or auto (float32 on a CPU, else bfloat16 where the weights are). `quantize` is a name of
    `SCHEMES` in models/device.py, such as 8bit. `open_checkpoint` explains the other options.
    """
    DeviceConfig(device, dtype, quantize)  # refused, if at all, before a file is read
    opened = open_checkpoint(name, adapter, family=family, roles=roles, causal_block=causal_block)
    return opened.load_weights(device, dtype, quantize)


def open_checkpoint(
    name: str | Path,
    adapter: str | Path | None = None,
    *,
    family: str | None = None,
    roles: Mapping[str, Any] | None = None,
    causal_block: int | None = None,
    download: bool = True,
) -> Checkpoint:
    """Config, card, tokenizer and roles of a model and its adapter; no weights are read, and each file is read once.

    `name` is a built-in name, a folder or a hub id; a folder that holds an adapter leads to its base. `family` is
    needed only where config.json does not show it. `roles` gives ids by role, such as {"void": 56940}; they override
    those of the checkpoint and of the adapter. `causal_block` is the block size of block-causal attention, where
    the checkpoint does not say it or says it wrong. Without `download` a hub id must be on this machine already.
    """
    source = find_source(name, adapter, download=download)
    opened = _open_base(source, family, causal_block)
    if source.adapter is not None:
        opened = replace(opened, card=_adapted_card(opened, source.adapter, roles or {}))
    given = build({**vars(opened.roles), **(roles or {})}, rows=opened.config.vocab_size)
    title = str(name) if adapter is None else f"{name}+{adapter}"
    return replace(opened, card=replace(opened.card, roles=given), name=title)


def vocabulary(name: str) -> tuple[PreTrainedTokenizerBase, Roles]:
    """Tokenizer and roles of a model, an adapter, or a folder that holds a tokenizer alone."""
    folder = locate(name)
    if not is_adapter(folder) and not (folder / "config.json").is_file():
        tokenizer = read_tokenizer(folder)
        return tokenizer, resolve(tokenizer, {}, rows=len(tokenizer))
    opened = open_checkpoint(name)
    return opened.tokenizer, opened.roles


def _open_base(source: Source, family: str | None, causal_block: int | None) -> Checkpoint:
    """The whole model of a source, released or saved by voidpad, without the adapter."""
    name, folder, values = source.name, source.folder, source.config
    card, where = read_card(folder), str(folder)
    known = FAMILIES[card.family] if card else recognise(values, where=where, name=name, given=family)
    if family not in (None, known.name):
        raise ConfigError(f"{folder}: is of family {known.name!r}, not {family!r}; drop family.")
    released = card is None or str(values.get("model_type")).lower() in known.model_types
    config = known.read_config(values, where=where, released=released)
    tokenizer = read_tokenizer(folder, known.tokenizer_class)
    if causal_block is None:
        causal_block = card.causal_block if card else known.stated_block(values, name)
    if causal_block is None:
        causal_block = known.causal_block
        # There are checkpoints with other sizes, and a wrong size is a wrong network.
        if known.block_field is not None:
            warn_assumed(
                f"{where}: does not say in which blocks its attention runs; {causal_block} is the usual size "
                "(--set causal_block=N of generate, --causal-block N of merge)."
            )
    known.check_causal_block(causal_block, where=where)
    if card is None:
        roles = resolve(tokenizer, values, rows=config.vocab_size, names=known.role_names, ids=known.role_ids)
        card = Card(known.name, roles)
    return Checkpoint(config, tokenizer, replace(card, causal_block=causal_block), name, source)


def _adapted_card(base: Checkpoint, adapter: Adapter, given: Mapping[str, Any]) -> Card:
    """The adapter's card; one without gets its base's, with what its tensors and the given roles show."""
    own, card, family = adapter.card, base.card, base.family
    if own is not None:
        if own.family != family.name:
            raise WeightsError(
                f"{adapter.folder}: an adapter of family {own.family!r}, but {base.name} is of {family.name!r}."
            )
        # An adapter inherits its base's canvases, but not its thresholds, which were chosen for its probabilities.
        kept = ("canvas", "limit", "block")
        calibration = {
            plan: {field: value for field, value in said.items() if field in kept}
            for plan, said in card.calibration.items()
        }
        return replace(own, calibration={**calibration, **own.calibration}, causal_block=card.causal_block)
    roles = replace(card.roles, void=given.get("void", card.roles.void))
    if "void" not in given and family.adapter_roles is not None and has_released_names(adapter, family):
        ids = family.adapter_roles(base.tokenizer)
        if not ids:
            raise ConfigError(
                f"{adapter.folder}: was trained by the original {family.name} code, and its VOID id cannot be "
                'recognised with this tokenizer; give it: roles={"void": <id>} '
                "(--set roles=void=<id> of generate, --roles void=<id> of merge)."
            )
        roles = replace(roles, **ids)
    padding, others = card.padding, set(roles.rainbow) - {roles.void}
    if "void" in given or (roles.void in adapter.trained_tokens and not others & adapter.trained_tokens):
        padding = "void"
        warn_assumed(
            f"{adapter.folder}: has no voidpad.json; its VOID id {roles.void} chooses the plan void."
        )
    elif padding is None and not card.causal_block:
        warn_assumed(
            f"{adapter.folder}: has no voidpad.json, so its padding is unknown and VOID is not banned; if it was "
            "trained with VOID, use --plan void."
        )
    return replace(card, roles=roles, padding=padding)
