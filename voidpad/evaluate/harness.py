"""The lm-eval model `voidpad`: for lm-eval's own command line. All requests go to the engine as one pool."""

import dataclasses
from typing import Any

import lm_eval.models  # noqa: F401  before registering ours, or lm-eval's own models vanish from its registry
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from voidpad.errors import ConfigError
from voidpad.evaluate.answer import Answering
from voidpad.evaluate.likelihood import Bound
from voidpad.evaluate.prepare import requests_of
from voidpad.evaluate.texts import READERS
from voidpad.models import load


@dataclasses.dataclass(frozen=True)
class _ModelArgs:
    """`--model_args` of lm-eval's command line; what is not listed here is a field of the plan."""

    pretrained: str = "tiny-void"
    plan: str | None = None  # None: the one that fits the checkpoint's padding
    adapter: str | None = None
    device: str = "cpu"
    dtype: str = "auto"
    quantize: str | None = None
    parity: str | None = None
    system: str | None = None
    raw: bool = False
    cache: str | None = None
    seed: int = 0
    rows: int = 32
    tokens: int = 16384
    mc_samples: int = 128  # Monte Carlo samples of the likelihood bound
    check_greedy: bool = True  # decode each continuation to see whether it is the greedy one


@register_model("voidpad")
class VoidpadLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """Generation through the engine; likelihoods through `bound`."""

    def __init__(self, answering: Answering, *, bound: Bound | None = None, show: bool = False) -> None:
        super().__init__()
        self.answering = answering
        self.bound = bound
        self.show = show  # a progress bar the way lm-eval's own models have one
        self.rendered: set[str] = set()

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> "VoidpadLM":
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "VoidpadLM":
        """From lm-eval's options. Its default batch size of 1 leaves `rows` alone: it changes no answer. Its
        default device is a GPU, whether there is one or not."""
        extra = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if str(extra.get("device")).startswith("cuda") and not torch.cuda.is_available():
            extra["device"] = "cpu"
        given = {**extra, **arg_dict}
        batch = given.pop("batch_size", None)
        given.pop("max_batch_size", None)
        if str(batch).isdigit() and int(batch) > 1:
            given.setdefault("rows", int(batch))
        names = {field.name for field in dataclasses.fields(_ModelArgs)}
        args = _ModelArgs(**{name: value for name, value in given.items() if name in names})
        return cls._built(args, {name: value for name, value in given.items() if name not in names})

    @classmethod
    def _built(cls, args: _ModelArgs, fields: dict[str, Any]) -> "VoidpadLM":
        if args.parity not in READERS:
            raise ConfigError(f"parity={args.parity!r} is unknown; use llada or dream, or leave it out")
        model = load(
            args.pretrained, args.adapter, device=args.device, dtype=args.dtype, quantize=args.quantize
        )
        answering = Answering(
            model,
            model.plan(args.plan, **fields),
            seed=args.seed,
            rows=args.rows,
            tokens=args.tokens,
            read=READERS[args.parity],
            system=args.system,
            raw=args.raw,
            cache=args.cache,
        )
        bound = Bound(
            model, samples=args.mc_samples, seed=args.seed, tokens=args.tokens, greedy=args.check_greedy
        )
        return cls(answering, bound=bound, show=True)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """lm-eval's use of the template; the text is remembered, so that the template is not applied twice."""
        text = self.answering.model.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        self.rendered.add(str(text))
        return str(text)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        template: str | None = self.answering.model.tokenizer.chat_template
        return template

    @property
    def tokenizer_name(self) -> str:
        return self.answering.model.name.replace("/", "__")

    def generate_until(self, requests: list[Instance]) -> list[str]:
        wanted = requests_of(requests, self.rendered)
        outputs: dict[str, str] = {}
        with tqdm(total=len(wanted), desc="Answering", disable=not self.show) as bar:
            for done in self.answering.run(wanted):
                outputs |= {record.name: record.output for record in done}
                bar.update(len(done))
        return [outputs[request.name] for request in wanted]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return self._bound().pairs([request.args for request in requests])

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return self._bound().texts([request.args[0] for request in requests])

    def _bound(self) -> Bound:
        if self.bound is None:
            raise ConfigError("this model generates only; give it a likelihood bound (`bound=Bound(model)`).")
        return self.bound
