"""Model: an opened checkpoint with its network, ready to answer."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from peft import PeftModel
from safetensors.torch import save
from transformers import PreTrainedModel

from voidpad.decode.denoise import HFDenoiser
from voidpad.decode.loop import Denoiser, Observe, Step
from voidpad.decode.outcome import Outcome, Result
from voidpad.decode.plan import Plan
from voidpad.engine.batching import Engine
from voidpad.engine.cache import CachedDenoiser
from voidpad.engine.cache_policy import CachePolicy, Caching, FinishedBlocks
from voidpad.engine.captured import CapturedPass
from voidpad.engine.events import Event, Failed, Wrote
from voidpad.engine.graphs import Graphs
from voidpad.engine.packed import PackedDenoiser, compile_body
from voidpad.engine.speed import with_speed
from voidpad.errors import ConfigError
from voidpad.models.checkpoint import Checkpoint, PreparedPrompt, Prompt
from voidpad.models.decide import decide
from voidpad.models.device import QuantScheme
from voidpad.models.fill import fill


@dataclass
class Model(Checkpoint):
    """What `load` returns. The network is transformers' own, or a PeftModel around it."""

    net: PreTrainedModel | PeftModel = field(kw_only=True)
    scheme: QuantScheme | None = field(default=None, kw_only=True)  # how the weights are quantized

    def __repr__(self) -> str:
        return f"Model({self.summary})"

    @property
    def fingerprint(self) -> str:
        """The identity of the weights: that of the files they were read from, or of the tensors themselves.

        Merging an adapter keeps it. A model that was trained after loading must be made with `source=None`.
        """
        if self.source is not None:
            return self.source.fingerprint
        tensors = {name: tensor.clone() for name, tensor in self.net.state_dict().items()}
        return hashlib.sha256(save(tensors)).hexdigest()

    @property
    def device(self) -> torch.device:
        return self.net.device

    @property
    def adapted(self) -> bool:
        """Whether an adapter is around the network, not merged into it."""
        return isinstance(self.net, PeftModel)

    @property
    def parameters(self) -> int:
        """The number of weights, those of an adapter included; several quantized ones may share a stored byte."""
        return int(self.base.num_parameters())

    @property
    def summary(self) -> str:
        """One line: name, device, number format, parameters and the memory of the weights."""
        where = ", ".join(sorted({str(device) for device in _devices(self.net)}))
        size = self.base.get_memory_footprint(return_buffers=False)
        form = f"{self.scheme.name} weights" if self.scheme else str(self.net.dtype).removeprefix("torch.")
        counts = f"{self.parameters / 1e6:,.2f} M parameters, {size / 1e6:,.1f} MB"
        return f"{self.name} on {where}: {form}, {counts}"

    @property
    def base(self) -> Any:
        """transformers' own network. An adapter lives inside its modules, so its body and head carry that too."""
        return self.net.get_base_model() if isinstance(self.net, PeftModel) else self.net

    def denoiser(self, **fields: Any) -> HFDenoiser:
        """Aligned logits of this network, as the decoder wants them."""
        body, head, family = self.base.model, self.base.lm_head, self.family
        block = self.card.causal_block
        return HFDenoiser(body, head, shift=family.shift, causal_block=block, **fields)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        plan: str | Plan | None = None,
        *,
        seed: int = 0,
        rows: int = 32,
        tokens: int = 16384,
        raw: bool = False,
        system: str | None = None,
        cache: str | None = None,
        speed: str | None = None,
        progress: Callable[[Result], None] | None = None,
        observe: Observe | None = None,
        listen: Callable[[Event], None] | None = None,
        constraint: Any = None,
        **fields: Any,
    ) -> list[Result]:
        """Answers in the order of the prompts; `progress` is called with each one as it ends.

        Without a plan, the checkpoint's padding chooses it (`default_plan`); prompts that `prepare` made bring their
        own.

        `rows` and `tokens` (prompts and canvases) bound one forward pass; they change no answer. `cache` does:
        "dual:4" keeps keys and values inside a block and computes them anew every 4 passes, "prompt:4" those of the
        prompt (engine/cache_policy.py has all). `speed` ("fast", "fastest") sets the cache and fields of the plan by a
        name with a known price (engine/speed.py). `listen` is called with every event of the engine, and `observe`
        names canvas slots whose logits its steps must hold.

        With `constraint`, every answer matches it: `voidpad.choice`, `regex` or `json_schema`, a pydantic model class,
        or a list with one (or None) for each prompt. Each result's `constraint` says what became of it.
        """
        single = isinstance(prompts, str | PreparedPrompt) or (prompts and isinstance(prompts[0], Mapping))
        several = [cast(Prompt, prompts)] if single else list(cast(Sequence[Prompt], prompts))
        engine, prepared, cache = self._start(
            several, plan, seed=seed, rows=rows, tokens=tokens, raw=raw, system=system, cache=cache, speed=speed,
            observe=observe, constraint=constraint, **fields,
        )  # fmt: skip
        results: list[Result] = []
        for _, outcome in engine.outcomes(listen):
            results.append(self.result(outcome, prepared[outcome.key].plan, cache=cache))
            if progress is not None:
                progress(results[-1])
        return sorted(results, key=lambda result: result.key)

    def stream(
        self,
        prompt: Prompt,
        plan: str | Plan | None = None,
        *,
        listen: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> Iterator[Step]:
        """One answer, pass by pass: the one row of each `Step` is the row that `generate` would decode.

        The options are those of `generate`.
        """
        engine, _, _ = self._start([prompt], plan, **options)

        def steps() -> Iterator[Step]:
            for event in engine.events():
                if listen is not None:
                    listen(event)
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Wrote):
                    yield event.step

        return steps()

    def _start(
        self,
        prompts: Sequence[Prompt],
        plan: str | Plan | None,
        *,
        seed: int = 0,
        rows: int = 32,
        tokens: int = 16384,
        raw: bool = False,
        system: str | None = None,
        cache: str | None = None,
        speed: str | None = None,
        observe: Observe | None = None,
        constraint: Any = None,
        **fields: Any,
    ) -> tuple[Engine, list[PreparedPrompt], str | None]:
        """An engine with all prompts submitted, the prompts as prepared, and the cache that the speed chose."""
        fields, cache = with_speed(speed, plan or self.default_plan, fields, cache)
        prepared = [prompt for prompt in prompts if isinstance(prompt, PreparedPrompt)]
        if prepared and (plan is not None or fields):
            raise ConfigError("prepared prompts bring their own plan; drop the plan and its fields.")
        if len(prepared) < len(prompts) or not prompts:
            chosen = self.plan(plan, **fields)
            prepared = [self.prepare(prompt, chosen, raw=raw, system=system) for prompt in prompts]
        constraints = constraint if isinstance(constraint, list | tuple) else [constraint] * len(prepared)
        if len(constraints) != len(prepared):
            raise ConfigError(
                f"constraint: {len(constraints)} for {len(prepared)} prompts; give one for each."
            )
        block = prepared[0].plan.block if prepared else 32
        engine = self.engine(cache=cache, block=block, rows=rows, tokens=tokens)
        for key, (one, wanted) in enumerate(zip(prepared, constraints, strict=True)):
            held = None if wanted is None else self.constrain(wanted, one.plan)
            engine.submit(list(one.ids), one.plan, seed=seed, key=key, observe=observe, constraint=held)
        return engine, prepared, cache

    fill = fill
    decide = decide

    def default_denoiser(self) -> Denoiser:
        """The fastest denoiser here that computes the same function: rows packed without padding if possible."""
        if self.device.type == "cpu" or self._varlen:
            return PackedDenoiser(self.denoiser(), **self._graphed())
        return self.denoiser()

    @property
    def _varlen(self) -> bool:
        """Whether the variable-length kernel can run: it takes half precision only, on one GPU."""
        whole = (self.scheme is None or self.scheme.packs) and len(_devices(self.net)) == 1
        return self.device.type == "cuda" and self.net.dtype in (torch.float16, torch.bfloat16) and whole

    def _graphed(self) -> dict[str, Any]:
        # Token adapters send ids from the host: merge to capture. Mixtures of experts have not been captured.
        fits = not self.adapted and not self.family.experts
        return {"bucket": 32, "graphs": Graphs(up_to=1024 if fits else 0)} if self._varlen else {}

    def engine(
        self, *, rows: int = 32, tokens: int = 16384, cache: str | None = None, block: int = 32
    ) -> Engine:
        """An engine for this network: exact, unless `cache` names a policy; then `block` must be the plan's block.

        A block-causal network keeps the keys of finished blocks, which is exact. `rows` and `tokens` (prompts and
        canvases) bound one forward pass.
        """
        causal, scattered = self.card.causal_block, len(_devices(self.net)) > 1
        if cache is not None and causal:
            raise ConfigError(
                f"cache={cache!r} is for full attention; {self.name} has block-causal attention and keeps finished "
                "blocks exactly without it: drop the cache."
            )
        if cache is not None and scattered:
            raise ConfigError(
                f"cache={cache!r} needs the network on one device; drop the cache or device=spread."
            )
        options: dict[str, Any] = {"rows": rows, "tokens": tokens, "parameters": self.parameters}
        denoise: Any
        if cache is not None or (causal and not scattered):
            policy: Caching = FinishedBlocks(causal) if cache is None else CachePolicy.parse(cache)
            denoise = CachedDenoiser(self.denoiser(), causal or block, policy, **self._graphed())
            options["ended"] = denoise.forget
        else:
            denoise = self.default_denoiser()
        if self._varlen:
            options["captured"] = CapturedPass(denoise)
        return Engine(denoise, self.roles, **options)

    def compiled(self) -> "Model":
        """This model, changed so that torch compiles its layers at their first passes.

        Logits are equal up to rounding; passes are faster after about a minute of compiling.
        """
        compile_body(self.base.model)
        return self

    def approximations(self, plan: Plan, *, cache: str | None = None) -> tuple[str, ...]:
        """What makes answers differ from those of plain decoding with the weights as they were released."""
        weights = [f"{self.scheme.name} {self.scheme.rounds}"] if self.scheme else []
        caches = [CachePolicy.parse(cache).approximation] if cache else []
        return (*weights, *caches, *plan.approximations)

    def result(self, outcome: Outcome, plan: Plan, *, cache: str | None = None) -> Result:
        """A finished row with its text."""
        return Result(
            **vars(outcome),
            text=self.text(outcome.tokens, cut=plan.cut),
            approximations=self.approximations(plan, cache=cache),
        )


def _devices(net: torch.nn.Module) -> set[torch.device]:
    return {parameter.device for parameter in net.parameters()}
