"""Model: a network, its tokenizer and its roles, ready to answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from voidpad.decode.outcome import Outcome, Result
from voidpad.engine.cache_policy import CachePolicy, Caching, FinishedBlocks, check_cacheable
from voidpad.engine.events import Event, Failed, Finished, Wrote
from voidpad.engine.speed import check_speed, with_speed
from voidpad.errors import ConfigError
from voidpad.models.card import Card, default_plan
from voidpad.models.families import Family
from voidpad.models.quantizer import Quantizer
from voidpad.models.text import Messages, chat, encode_chat, raw_ids, special_ids
from voidpad.roles import Roles

if TYPE_CHECKING:
    from voidpad.decode.denoise import HFDenoiser
    from voidpad.decode.loop import Denoiser, Observe, Step
    from voidpad.decode.plan import FamilyDefaults, Plan
    from voidpad.engine.batching import Engine

Prompt = str | Messages


@dataclass
class Model:
    """What `load` returns. The network is transformers' own, or a PeftModel around it."""

    net: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    roles: Roles
    family: Family
    card: Card
    name: str
    # The name and the adapter that `load` read; None for weights that were made or changed in this process.
    source: tuple[str, str | None] | None = None

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
        """The number of weights, those of an adapter included."""
        return Quantizer.count(self.net)

    @property
    def summary(self) -> str:
        """One line: name, device, number format, parameters and the memory of the weights."""
        where = ", ".join(sorted({str(device) for device in _devices(self.net)}))
        size = sum(p.numel() * p.element_size() for p in self.net.parameters())
        form = f"{self.quantized} weights" if self.quantized else str(self.net.dtype).removeprefix("torch.")
        return f"{self.name} on {where}: {form}, {_short(self.parameters)} parameters, {_short(size)}B"

    @property
    def default_plan(self) -> str:
        """The plan that fits this checkpoint's family and the padding it was trained with."""
        return default_plan(self.card, self.family)

    @property
    def decoding(self) -> "FamilyDefaults":
        """The defaults of presets for this checkpoint: its family's, and its own size of causal blocks."""
        return replace(self.family.decoding, causal_block=self.card.causal_block)

    @property
    def context(self) -> int:
        """The most tokens a row may have, prompt and canvas together; a whole number of causal blocks."""
        positions = int(self.net.config.max_position_embeddings)
        return positions - positions % (self.card.causal_block or 1)

    def require_full_attention(self, what: str) -> None:
        """Refuse, for a block-causal model, something that only full attention gives a meaning."""
        if self.card.causal_block:
            raise ConfigError(
                f"{self.name}: {what} has no meaning for family {self.family.name!r}, whose attention is block-causal; "
                "use a model with full attention."
            )

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

        body, head, family = self.base.model, self.base.lm_head, self.family
        block = self.card.causal_block
        return HFDenoiser(body, head, shift=family.shift, narrow=family.narrow, causal_block=block, **fields)

    def plan(self, name: "str | Plan | None" = None, **fields: Any) -> "Plan":
        """A preset with the defaults of this model's family and calibration; a ready plan is taken as it is.

        Without a name it is the preset that fits the padding of this checkpoint.
        """
        from voidpad.decode.plan import describe

        defaults, calibration = self.decoding, self.card.calibration
        chosen, _ = describe(name or self.default_plan, defaults=defaults, calibration=calibration, **fields)
        self.check_plan(chosen)
        return chosen

    def check_plan(self, plan: "Plan") -> None:
        """Refuse a plan that was not made for the attention of this network."""
        ours, theirs = self.card.causal_block, plan.causal.size if plan.causal else 0
        if ours == theirs:
            return
        raise ConfigError(
            f"{self.name}: the plan is for {_attention(theirs)}, but this model has {_attention(ours)}; use one of "
            f"{', '.join(self.decoding.presets)}."
        )

    def fit(self, ids: Sequence[int], plan: "Plan") -> "Plan":
        """The plan with its longest canvas cut to what the context leaves beside this prompt."""
        self.check_plan(plan)
        self.admit(ids, canvas=plan.length.canvas)
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
        self.check_plan(plan)
        unit = 1 if plan.causal else plan.block
        self.admit(ids, canvas=min(unit, plan.length.limit))
        limits = [plan.length.limit, max((self.context - len(ids)) // unit, 1) * unit]
        if max_tokens is not None:
            limits.append(-(-max_tokens // unit) * unit)
        return min(*limits, self.context - len(ids))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        plan: "str | Plan | None" = None,
        *,
        seed: int = 0,
        rows: int = 32,
        tokens: int = 16384,
        raw: bool = False,
        system: str | None = None,
        cache: str | None = None,
        speed: str | None = None,
        progress: Callable[[Result], None] | None = None,
        observe: "Observe | None" = None,
        listen: Callable[[Event], None] | None = None,
        **fields: Any,
    ) -> list[Result]:
        """Answers in the order of the prompts; `progress` is called with each one as it ends.

        Without a plan, the checkpoint's padding chooses it (`default_plan`).

        `rows` and `tokens` (prompts and canvases) bound one forward pass; they change no answer. `cache` does:
        "dual:4" keeps keys and values inside a block and computes them anew every 4 passes, "prompt:4" those of the
        prompt (engine/cache_policy.py has all). `speed` ("fast", "fastest") sets the cache and fields of the plan by a
        name with a known price (engine/speed.py). `listen` is called with every event of the engine, and `observe`
        names canvas slots whose logits its steps must hold.
        """
        fields, cache = self._at(speed, plan, fields, cache)
        chosen = self.plan(plan, **fields)
        engine = self.engine(rows=rows, tokens=tokens, cache=cache, block=chosen.block)
        for index, prompt in enumerate(_listed(prompts)):
            ids = self.encode(prompt, raw=raw, system=system)
            engine.submit(ids, self.fit(ids, chosen), seed=seed, key=index, observe=observe)
        results: list[Result] = []
        for event in _heard(engine, listen):
            if isinstance(event, Finished):
                results.append(self.result(event.outcome, chosen, cache=cache))
                if progress is not None:
                    progress(results[-1])
        return sorted(results, key=lambda result: result.key)

    def stream(
        self,
        prompt: Prompt,
        plan: "str | Plan | None" = None,
        *,
        seed: int = 0,
        raw: bool = False,
        system: str | None = None,
        cache: str | None = None,
        speed: str | None = None,
        observe: "Observe | None" = None,
        listen: Callable[[Event], None] | None = None,
        **fields: Any,
    ) -> "Iterator[Step]":
        """One answer, pass by pass: the one row of each `Step` is the row that `generate` would decode."""
        fields, cache = self._at(speed, plan, fields, cache)
        ids = self.encode(prompt, raw=raw, system=system)
        chosen = self.fit(ids, self.plan(plan, **fields))
        engine = self.engine(cache=cache, block=chosen.block)
        engine.submit(ids, chosen, seed=seed, observe=observe)
        return (event.step for event in _heard(engine, listen) if isinstance(event, Wrote))

    def _at(
        self, speed: str | None, plan: "str | Plan | None", fields: Mapping[str, Any], cache: str | None
    ) -> tuple[dict[str, Any], str | None]:
        """The plan fields and the cache at a named speed."""
        check_speed(speed, plan or self.default_plan)
        return with_speed(speed, fields, cache)

    def exact(self) -> "Denoiser":
        """The fastest denoiser here that computes the same function: rows packed without padding if possible."""
        from voidpad.engine.packed import PackedDenoiser

        packs = self.device.type == "cpu" or self._varlen
        return PackedDenoiser(self.denoiser(), **self._graphed()) if packs else self.denoiser()

    @property
    def _varlen(self) -> bool:
        """Whether the variable-length kernel can run: it takes half precision only, on one GPU."""
        storage = Quantizer.storage_of(self.net)
        whole = (storage is None or storage.packs) and len(_devices(self.net)) == 1
        return self.device.type == "cuda" and self.net.dtype in (torch.float16, torch.bfloat16) and whole

    def _graphed(self) -> dict[str, Any]:
        from voidpad.engine.graphs import Graphs

        # Token adapters send ids from the host: merge to capture. Mixtures of experts have not been captured.
        fits = not self.adapted and not self.family.experts
        return {"bucket": 64, "graphs": Graphs(up_to=1024 if fits else 0)} if self._varlen else {}

    def engine(
        self, *, rows: int = 32, tokens: int = 16384, cache: str | None = None, block: int = 32
    ) -> "Engine":
        """An engine for this network: exact, unless `cache` names a policy; then `block` must be the plan's block.

        A block-causal network keeps the keys of finished blocks, which is exact. `rows` and `tokens` (prompts and
        canvases) bound one forward pass.
        """
        from voidpad.engine.batching import Engine
        from voidpad.engine.cache import CachedDenoiser

        causal, scattered = self.card.causal_block, len(_devices(self.net)) > 1
        if cache is None and (scattered or not causal):
            return Engine(self.exact(), self.roles, rows=rows, tokens=tokens)
        policy: Caching = FinishedBlocks(causal) if cache is None else CachePolicy.parse(cache)
        if cache is not None and causal:
            raise ConfigError(
                f"cache={cache!r} is for full attention; {self.name} has block-causal attention and keeps finished "
                "blocks exactly without it: drop the cache."
            )
        if scattered:
            raise ConfigError(
                f"cache={cache!r} needs the network on one device; drop the cache or device=spread."
            )
        denoise = CachedDenoiser(self.denoiser(), causal or block, policy, **self._graphed())
        room = {"rows": rows, "tokens": tokens}
        return Engine(denoise, self.roles, **room, ended=denoise.forget, accepts=check_cacheable)

    def compiled(self) -> "Model":
        """This model, changed so that torch compiles its layers at their first passes.

        Logits are equal up to rounding; passes are faster after about a minute of compiling.
        """
        from voidpad.engine.compiled import compile_layers

        compile_layers(self.base.model, cached=True, dynamic=True)
        return self

    @property
    def quantized(self) -> str:
        """The quantization of the weights, such as 8bit; empty if there is none."""
        return Quantizer.of(self.net)

    def approximations(self, plan: "Plan", *, cache: str | None = None) -> tuple[str, ...]:
        """What makes answers differ from those of plain decoding with the weights as they were released."""
        storage = Quantizer.storage_of(self.net)
        weights = [f"{self.quantized} {storage.rounds}"] if storage else []
        caches = [CachePolicy.parse(cache).approximation] if cache else []
        return (*weights, *caches, *plan.approximations)

    def result(self, outcome: Outcome, plan: "Plan", *, cache: str | None = None) -> Result:
        """A finished row with its text."""
        return Result(
            **vars(outcome),
            text=self.text(outcome.tokens, cut=plan.cut),
            approximations=self.approximations(plan, cache=cache),
        )


def _attention(causal_block: int) -> str:
    return f"block-causal attention in blocks of {causal_block}" if causal_block else "full attention"


def _short(count: float) -> str:
    """A number in three digits with its unit: 1234567 is 1.23 M."""
    for unit in ("", " k", " M", " G"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} T"


def _heard(engine: "Engine", listen: Callable[[Event], None] | None) -> Iterator[Event]:
    """The engine's events, each given to the listener first; a failed pass raises its error."""
    for event in engine.events():
        if listen is not None:
            listen(event)
        if isinstance(event, Failed):
            raise event.error
        yield event


def _devices(net: torch.nn.Module) -> set[torch.device]:
    return {parameter.device for parameter in net.parameters()}


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One text or one conversation as a list of one; a list of prompts as it is."""
    single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Mapping))
    return [cast(Prompt, prompts)] if single else list(cast(Sequence[Prompt], prompts))
