"""The lm-eval model `voidpad`: every request of every task goes to the engine as one pool."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import lm_eval.models  # noqa: F401  before registering ours, or lm-eval's own models vanish from its registry
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from voidpad.errors import ConfigError, DataError
from voidpad.evaluate.answers import Answering, Job
from voidpad.evaluate.journal import Journal, Record
from voidpad.evaluate.likelihood import Bound
from voidpad.evaluate.tasks.benchmark_files import ITEM
from voidpad.evaluate.texts import READERS
from voidpad.models import load

Progress = Callable[[int, int], None]  # (examples done, examples in all)
HARMLESS = {"do_sample": False, "temperature": 0.0}  # greedy is the plan's affair, and its default
IGNORED = {"until", "max_gen_toks"}  # stop strings are cut from the text; the plan sets the canvas


@dataclasses.dataclass(frozen=True)
class ModelArgs:
    """`--model_args` of lm-eval's command line; what is not listed here is a field of the plan."""

    pretrained: str = "tiny-void"
    plan: str = "void"
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
class VoidpadLM(LM):
    """Without `answering` it only replays its journal."""

    def __init__(
        self,
        answering: Answering | None,
        journal: Journal | None = None,
        *,
        bound: Bound | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.answering = answering
        self.journal = journal
        self.bound = bound
        self.progress = progress or (lambda done, total: None)
        self.rendered: set[str] = set()

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict | None = None) -> "VoidpadLM":
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict, additional_config: dict | None = None) -> "VoidpadLM":
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
        names = {field.name for field in dataclasses.fields(ModelArgs)}
        args = ModelArgs(**{name: value for name, value in given.items() if name in names})
        return cls._built(args, {name: value for name, value in given.items() if name not in names})

    @classmethod
    def _built(cls, args: ModelArgs, fields: dict[str, Any]) -> "VoidpadLM":
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
        return cls(answering, bound=bound, progress=tqdm_bar())

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """lm-eval's use of the template; the text is remembered, so that it is not put in a turn again."""
        text = self._model().tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        self.rendered.add(str(text))
        return str(text)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self._model().tokenizer.chat_template

    @property
    def tokenizer_name(self) -> str:
        return self._model().name.replace("/", "__")

    def _model(self) -> Any:
        if self.answering is None:
            raise DataError("this run has no model: it replays a journal")
        return self.answering.model

    def generate_until(self, requests: list[Instance]) -> list[str]:
        jobs = self.jobs(requests)
        found = self._replayed(jobs)
        missing = [job for job in jobs if job.name not in found]
        if missing and self.answering is None:
            raise DataError(f"{len(missing)} examples are missing, the first is {missing[0].name}")
        self.progress(len(found), len(jobs))
        for done in self.answering.run(missing) if self.answering and missing else ():
            if self.journal is not None:
                done = [dataclasses.replace(one, attempt=self.journal.attempt) for one in done]
                self.journal.append(done)
            found |= {one.name: one for one in done}
            self.progress(len(found), len(jobs))
        return [found[job.name].output for job in jobs]

    def jobs(self, requests: Sequence[Instance]) -> list[Job]:
        """Requests by name; the same example asked for again (lm-eval's repeats) is another job."""
        seen: Counter[str] = Counter()
        jobs = []
        for request in requests:
            prompt, options = request.args
            name = f"{request.task_name}:{request.doc.get(ITEM, request.doc_id)}"
            repeat = f":{seen[name]}" if seen[name] else ""
            seen[name] += 1
            jobs.append(Job(name + repeat, prompt, stop_strings(options), prompt in self.rendered))
        return jobs

    def _replayed(self, jobs: Sequence[Job]) -> dict[str, Record]:
        """What the journal has of these jobs; another prompt under the same name is another run's."""
        if self.journal is None:
            return {}
        found = {job.name: self.journal.records[job.name] for job in jobs if job.name in self.journal.records}
        for job in jobs:
            if job.name in found and found[job.name].prompt_sha256 != job.prompt_sha256:
                raise DataError(f"{self.journal.path}: {job.name} has another prompt; use another folder")
        return found

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return self._bound().pairs([request.args for request in requests])

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return self._bound().texts([request.args[0] for request in requests])

    def _bound(self) -> Bound:
        if self.bound is None:
            raise ConfigError(
                "this run generates only; loglikelihood tasks go through python -m voidpad.evaluate.lm_eval"
            )
        return self.bound


def tqdm_bar() -> Progress:
    """Progress the way lm-eval's own models show it."""
    bar = tqdm(total=0, desc="Answering")

    def show(done: int, total: int) -> None:
        if bar.total != total:
            bar.reset(total)
        bar.update(done - bar.n)

    return show


def stop_strings(options: dict[str, Any]) -> tuple[str, ...]:
    """lm-eval's generation options: only stop strings mean something to a plan."""
    for name, value in options.items():
        if name not in IGNORED and not (name in HARMLESS and value == HARMLESS[name]):
            raise ConfigError(
                f"gen_kwargs {name}={value!r}: decoding is set by the plan; pass it in model_args"
            )
    stops = options.get("until") or []
    return (stops,) if isinstance(stops, str) else tuple(stops)
