"""Checkpoint: what the small files of a model say, without its weights.

`open_checkpoint` (load.py) reads config.json, voidpad.json and the tokenizer once each. Everything that needs no
network works on the result: the default plan, plans and their checks, prompts as token ids. So a wrong plan or a prompt
that is too long is refused at once, before gigabytes of weights are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from voidpad.constrain.row import Compiler, RowConstraint, compiler_for
from voidpad.decode.constrained import check_constrained
from voidpad.decode.presets import build_plan
from voidpad.errors import ConfigError
from voidpad.models.card import PLANS, Card
from voidpad.models.device import DeviceConfig
from voidpad.models.families import Family
from voidpad.models.text import Messages, chat, encode_chat, raw_ids, special_ids
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.decode.plan import Plan
    from voidpad.decode.presets import FamilyDefaults
    from voidpad.models.adapter import Adapter
    from voidpad.models.model import Model


@dataclass(frozen=True)
class Source:
    """The folders that the weights of a checkpoint come from."""

    name: str  # of the whole model, as the user or the adapter wrote it
    folder: Path  # of the whole model
    config: Mapping[str, Any]  # its config.json as it stands
    adapter: "Adapter | None" = None


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt that fits: its token ids, and the plan with its longest canvas cut to what the context leaves."""

    ids: tuple[int, ...]
    plan: "Plan"


Prompt = str | Messages | PreparedPrompt


@dataclass
class Checkpoint:
    """An opened checkpoint. `Model` is one with its network."""

    config: PretrainedConfig  # of the stock class of transformers
    tokenizer: PreTrainedTokenizerBase
    roles: Roles
    family: Family
    card: Card
    name: str
    source: Source | None = None  # None for weights that were made or changed in this process

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
    def decoding(self) -> "FamilyDefaults":
        """The defaults of presets for this checkpoint: its family's, and its own size of causal blocks."""
        return replace(self.family.decoding, causal_block=self.card.causal_block)

    @property
    def context(self) -> int:
        """The most tokens a row may have, prompt and canvas together; a whole number of causal blocks."""
        positions = int(self.config.max_position_embeddings)
        return positions - positions % (self.card.causal_block or 1)

    def load_weights(self, device: str = "cpu", dtype: str = "auto", quantize: str | None = None) -> "Model":
        """The model: this checkpoint with its network, an adapter included. `load` explains the options."""
        from voidpad.models.load import load_weights

        return load_weights(self, DeviceConfig(device, dtype, quantize))

    # Plans

    def plan(self, name: "str | Plan | None" = None, **fields: Any) -> "Plan":
        """A preset with the defaults of this checkpoint's family and calibration; a ready plan is taken as it is.

        Without a name it is the preset that fits the padding of this checkpoint. A plan for another kind of attention
        is refused.
        """
        chosen, _ = build_plan(
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
                f"{self.name}: {what} has no meaning for family {self.family.name!r}, whose attention is block-causal; "
                "use a model with full attention."
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
        self, prompt: Prompt, plan: "Plan", *, system: str | None = None, raw: bool = False
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
            index = list(ids).index(self.roles.mask)
            raise ConfigError(
                f"prompt token {index} is the mask ({self.roles.mask}); remove it from the prompt."
            )
        if len(ids) + canvas > self.context:
            raise ConfigError(
                f"prompt of {len(ids)} tokens and canvas {canvas} make {len(ids) + canvas}, "
                f"over the model's context of {self.context}; shorten the prompt or the canvas."
            )
        return list(ids)

    def fit(self, ids: Sequence[int], plan: "Plan") -> "Plan":
        """The plan with its longest canvas cut to what the context leaves beside this prompt."""
        self.check_prompt(ids, canvas=plan.length.canvas)
        return plan.fitted(self.context - len(ids))

    def row_limit(self, ids: Sequence[int], plan: "Plan", *, max_tokens: int | None = None) -> int:
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
        return compiler_for(self.tokenizer, self.roles, int(self.config.vocab_size))

    def constrain(
        self, constraint: Any, plan: "Plan", *, closed: bool = False, worker: bool = False
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
