"""Model: a network, its tokenizer and its roles, ready to answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from voidpad.errors import ConfigError
from voidpad.models.card import Card
from voidpad.models.family import Family
from voidpad.models.text import Messages, chat, chat_ids, raw_ids, special_ids
from voidpad.roles import Roles

if TYPE_CHECKING:
    from peft import PeftModel

    from voidpad.decode.denoise import HFDenoiser
    from voidpad.decode.plan import Plan

Prompt = str | Messages


@dataclass(frozen=True)
class Result:
    """One answer and what it cost."""

    text: str
    tokens: list[int]  # the answer's ids, EOS included
    passes_decode: int
    passes_probe: int
    passes_shared: int  # probes that also served as decoding passes
    canvas: int  # final length
    stop_reason: str  # eos, full, limit, stalled or cancelled
    seconds: float
    ids: list[int]  # the whole final canvas
    key: int  # place of the prompt among those given


@dataclass
class Model:
    """What `load` returns. The network is transformers' own, or a PeftModel around it."""

    net: "PreTrainedModel | PeftModel"
    tokenizer: PreTrainedTokenizerBase
    roles: Roles
    family: Family
    card: Card
    name: str

    @property
    def device(self) -> torch.device:
        return self.net.device

    @property
    def context(self) -> int:
        """The most tokens a row may have, prompt and canvas together."""
        return self.net.config.max_position_embeddings

    def encode(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """Prompt ids: through the chat template, or the bare text with `raw`."""
        if not raw:
            return self.admit(chat_ids(self.tokenizer, chat(prompt, system=system)))
        if not isinstance(prompt, str) or system is not None:
            raise ConfigError("raw=True takes plain text; drop the system prompt and the messages, or raw.")
        return self.admit(raw_ids(self.tokenizer, prompt))

    def admit(self, ids: Sequence[int], *, canvas: int = 1) -> list[int]:
        """The prompt ids, unless no canvas of this length could answer them."""
        if not ids:
            raise ConfigError("prompt is empty; give at least one character.")
        if self.roles.mask in ids:
            place = list(ids).index(self.roles.mask)
            raise ConfigError(
                f"prompt token {place} is the mask ({self.roles.mask}); remove it from the prompt."
            )
        if len(ids) + canvas > self.context:
            raise ConfigError(
                f"prompt of {len(ids)} tokens and canvas {canvas} make {len(ids) + canvas}, "
                f"over the model's context of {self.context}; shorten the prompt or the canvas."
            )
        return list(ids)

    def text(self, ids: Sequence[int]) -> str:
        """The text up to the first end, without special tokens."""
        ends = [place for place, token in enumerate(ids) if token in self.roles.ends]
        kept = ids[: ends[0]] if ends else ids
        dropped = special_ids(self.tokenizer) | self.roles.all()
        return self.tokenizer.decode([token for token in kept if token not in dropped])

    def denoiser(self, **fields: Any) -> "HFDenoiser":
        """Aligned logits of this network, as the decoder wants them."""
        from voidpad.decode.denoise import HFDenoiser

        return HFDenoiser(self.net, shift=self.family.shift, **fields)

    def plan(self, name: str = "void", **fields: Any) -> "Plan":
        """A preset with this model's family and calibration."""
        from voidpad.decode.plan import plan

        return plan(name, family=self.family.name, calibration=self.card.calibration, **fields)
