"""Model: a network, its tokenizer and its roles, ready to answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from voidpad.engine.cache_policy import cache_name
from voidpad.errors import ConfigError
from voidpad.models.card import Card, default_plan
from voidpad.models.families import Family
from voidpad.models.place import Quantizer
from voidpad.models.text import Messages, chat, encode_chat, raw_ids, special_ids
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.decode.denoise import HFDenoiser
    from voidpad.decode.loop import Denoiser, Observe, Outcome, Step
    from voidpad.decode.plan import Plan
    from voidpad.engine.batching import Engine

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
    accelerated: tuple[str, ...]  # approximations that were on; none by default
    ids: list[int]  # the whole final canvas
    key: int  # place of the prompt among those given


@dataclass
class Model:
    """What `load` returns. The network is transformers' own, or a PeftModel around it."""

    net: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    roles: Roles
    family: Family
    card: Card
    name: str
    source: tuple[str, str | None] | None = (
        None  # (name, adapter) that `load` read; None for weights made here
    )

    @property
    def fingerprint(self) -> str:
        """The identity of the weights: that of the files they were read from, or of the tensors themselves.

        Merging an adapter keeps it. A model that was trained after loading must be made with `source=None`.
        """
        from voidpad.models.fingerprint import fingerprint, tensors_fingerprint

        if self.source is not None:
            return fingerprint(*self.source)
        return tensors_fingerprint(self.net.state_dict().items())

    @property
    def device(self) -> torch.device:
        return self.net.device

    @property
    def adapted(self) -> bool:
        """Whether an adapter is around the network, not merged into it."""
        return isinstance(self.net, PeftModel)

    @property
    def parameters(self) -> int:
        """The number of weights, those of an adapter included; two 4-bit weights share a stored byte."""
        packed = 2 if self.quantized == "4bit" else 1
        return sum(p.numel() * (packed if p.dtype == torch.uint8 else 1) for p in self.net.parameters())

    @property
    def summary(self) -> str:
        """One line: name, device, number format, parameters and the memory of the weights."""
        where = ", ".join(sorted({str(device) for device in devices(self.net)}))
        size = sum(p.numel() * p.element_size() for p in self.net.parameters())
        form = f"{self.quantized} weights" if self.quantized else str(self.net.dtype).removeprefix("torch.")
        return f"{self.name} on {where}: {form}, {_short(self.parameters)} parameters, {_short(size)}B"

    @property
    def default_plan(self) -> str:
        """The plan that fits the padding this checkpoint was trained with."""
        return default_plan(self.card)

    @property
    def context(self) -> int:
        """The most tokens a row may have, prompt and canvas together."""
        return self.net.config.max_position_embeddings

    def encode(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """Prompt ids: through the chat template, or the bare text with `raw`.

        Special tokens that are spelled in messages stay text; in `raw` text they become their ids.
        """
        if not raw:
            turns = chat(prompt, system=system)
            return self.admit(encode_chat(self.tokenizer, turns, roles=self.roles))
        if not isinstance(prompt, str) or system is not None:
            raise ConfigError("raw=True takes plain text; drop the system prompt and the messages, or raw.")
        return self.admit(raw_ids(self.tokenizer, prompt))

    def admit(self, ids: Sequence[int], *, canvas: int = 1) -> list[int]:
        """The prompt ids, unless no canvas of this length could answer them."""
        if not ids:
            raise ConfigError("prompt is empty; give at least one character.")
        rows = self.net.config.vocab_size
        outside = next((token for token in ids if not 0 <= token < rows), None)
        if outside is not None:
            raise ConfigError(
                f"prompt holds the id {outside}, outside the embedding (0 to {rows - 1}); "
                "use the model's own tokenizer."
            )
        if self.roles.mask in ids:
            index = list(ids).index(self.roles.mask)
            raise ConfigError(
                f"prompt token {index} is the mask ({self.roles.mask}); remove it from the prompt."
            )
        if len(ids) + canvas > self.context:
            if len(ids) >= self.context:
                raise ConfigError(
                    f"prompt of {len(ids)} tokens fills the model's context of {self.context}; shorten it."
                )
            raise ConfigError(
                f"prompt of {len(ids)} tokens and canvas {canvas} make {len(ids) + canvas}, "
                f"over the model's context of {self.context}; shorten the prompt or the canvas."
            )
        return list(ids)

    def text(self, ids: Sequence[int], *, cut: bool = True) -> str:
        """The text up to the first end (all of it without `cut`), special tokens left out."""
        ends = [index for index, token in enumerate(ids) if token in self.roles.ends]
        kept = ids[: ends[0]] if cut and ends else ids
        dropped = special_ids(self.tokenizer) | self.roles.all()
        return str(self.tokenizer.decode([token for token in kept if token not in dropped]))

    @property
    def base(self) -> Any:
        """transformers' own network. An adapter lives inside its modules, so its body and head carry that too."""
        return self.net.get_base_model() if isinstance(self.net, PeftModel) else self.net

    def denoiser(self, **fields: Any) -> "HFDenoiser":
        """Aligned logits of this network, as the decoder wants them."""
        from voidpad.decode.denoise import HFDenoiser

        return HFDenoiser(self.base.model, self.base.lm_head, shift=self.family.shift, **fields)

    def plan(self, name: "str | Plan" = "void", **fields: Any) -> "Plan":
        """A preset with this model's family and calibration; a ready plan is taken as it is."""
        from voidpad.decode.plan import plan

        if isinstance(name, str):
            return plan(name, family=self.family.name, calibration=self.card.calibration, **fields)
        if fields:
            raise ConfigError(f"a ready plan takes no fields, got {', '.join(fields)}; set them in the plan.")
        return name

    def fit(self, ids: Sequence[int], plan: "Plan") -> "Plan":
        """The plan with its longest canvas cut to what the context leaves beside this prompt."""
        from voidpad.decode.length import Daedal, RhoEos, Trimmed, VoidExpansion

        trimmed = isinstance(plan.length, Trimmed)
        length = plan.length.inner if isinstance(plan.length, Trimmed) else plan.length
        self.admit(ids, canvas=length.canvas)
        room = (self.context - len(ids)) // plan.block * plan.block
        if not isinstance(length, VoidExpansion | Daedal | RhoEos) or length.limit <= room:
            return plan
        bounded = replace(length, limit=max(room, length.canvas))
        return replace(plan, length=Trimmed(bounded) if trimmed else bounded)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        plan: "str | Plan" = "void",
        *,
        seed: int = 0,
        rows: int = 32,
        tokens: int = 16384,
        raw: bool = False,
        system: str | None = None,
        cache: str | None = None,
        progress: Callable[[Result], None] | None = None,
        **fields: Any,
    ) -> list[Result]:
        """Answers in the order of the prompts; `progress` sees each one as it ends.

        `rows` and `tokens` (prompts and canvases) bound one forward pass; they change no answer. `cache` does:
        "prefix" or "dual" keeps keys and values inside a block, "dual:4" computes them anew every 4 passes.
        """
        chosen = self.plan(plan, **fields)
        engine = self.engine(rows=rows, tokens=tokens, cache=cache, block=chosen.block)
        for key, prompt in enumerate(listed(prompts)):
            ids = self.encode(prompt, raw=raw, system=system)
            engine.submit(ids, self.fit(ids, chosen), seed=seed, key=key)
        results: list[Result] = []
        while engine.busy:
            for outcome in engine.step():
                results.append(self.result(outcome, chosen, cache=cache))
                if progress is not None:
                    progress(results[-1])
        return sorted(results, key=lambda result: result.key)

    def stream(
        self,
        prompt: Prompt,
        plan: "str | Plan" = "void",
        *,
        seed: int = 0,
        raw: bool = False,
        system: str | None = None,
        observe: "Observe | None" = None,
        **fields: Any,
    ) -> "Iterator[Step]":
        """One answer, pass by pass."""
        from voidpad.decode.loop import decode

        ids = self.encode(prompt, raw=raw, system=system)
        chosen = self.fit(ids, self.plan(plan, **fields))
        return decode(self.denoiser(), [ids], self.roles, chosen, seed=seed, observe=observe)

    def exact(self) -> "Denoiser":
        """The fastest denoiser here that computes the same function: rows packed without padding if possible."""
        from voidpad.engine.packed import Packed

        packs = self.device.type == "cpu" or self._varlen
        return Packed(self.denoiser(), **self._graphed()) if packs else self.denoiser()

    @property
    def _varlen(self) -> bool:
        """Whether the variable-length kernel can run: it takes half precision only, on one GPU."""
        whole = not self.quantized and len(devices(self.net)) == 1
        return self.device.type == "cuda" and self.net.dtype in (torch.float16, torch.bfloat16) and whole

    def _graphed(self) -> dict[str, Any]:
        from voidpad.engine.graphs import Graphs

        bare = not isinstance(self.net, PeftModel)  # token adapters send ids from the host: merge to capture
        return {"bucket": 64, "graphs": Graphs(up_to=1024 if bare else 0)} if self._varlen else {}

    def engine(
        self, *, rows: int = 32, tokens: int = 16384, cache: str | None = None, block: int = 32
    ) -> "Engine":
        """Many rows at once, exact unless a cache is asked for."""
        from voidpad.engine.batching import Engine
        from voidpad.engine.cache import Cached
        from voidpad.engine.cache_policy import read_cache

        if cache is None:
            return Engine(self.exact(), self.roles, rows=rows, tokens=tokens)
        asked = read_cache(cache)
        if len(devices(self.net)) > 1:
            raise ConfigError(
                f"cache={cache!r} needs the network on one device; drop the cache or device=auto."
            )
        kept = Cached(self.denoiser(), block, asked.keep_suffix, asked.every, **self._graphed())
        return Engine(kept, self.roles, rows=rows, tokens=tokens, ended=kept.forget)

    def compiled(self) -> "Model":
        """The same model, its layers compiled at their first passes: the same function, faster after a minute."""
        from voidpad.engine.packed import compiled

        compiled(self.denoiser())
        return self

    @property
    def quantized(self) -> str:
        """The quantization of the weights, such as 8bit; empty if there is none."""
        return Quantizer.of(self.net)

    def approximations(self, plan: "Plan", *, cache: str | None = None) -> tuple[str, ...]:
        """What makes answers differ from those of plain decoding with the weights as they were released."""
        weights = [f"{self.quantized} weights"] if self.quantized else []
        return (*weights, *cache_name(cache), *plan.approximations)

    def result(self, outcome: "Outcome", plan: "Plan", *, cache: str | None = None) -> Result:
        """A finished row with its text."""
        return Result(
            text=self.text(outcome.tokens, cut=plan.cut),
            tokens=outcome.tokens,
            passes_decode=outcome.passes_decode,
            passes_probe=outcome.passes_probe,
            passes_shared=outcome.passes_shared,
            canvas=outcome.canvas,
            stop_reason=outcome.stop_reason,
            seconds=outcome.seconds,
            accelerated=self.approximations(plan, cache=cache),
            ids=outcome.ids,
            key=outcome.key,
        )


def _short(count: float) -> str:
    """A number in three digits with its unit: 1234567 is 1.23 M."""
    for unit in ("", " k", " M", " G"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} T"


def devices(net: torch.nn.Module) -> set[torch.device]:
    return {parameter.device for parameter in net.parameters()}


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One text or one conversation as a list of one; a list of prompts as it is."""
    single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Mapping))
    return [cast(Prompt, prompts)] if single else list(cast(Sequence[Prompt], prompts))
