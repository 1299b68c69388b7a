"""`python -m voidpad.evaluate.lm_eval`: lm-evaluation-harness with its own options, our model and our tasks.

lm-eval discovers no models or tasks from outside, so this module registers the model `voidpad` and adds our task folder
before it hands over. Our `gsm8k`, `humaneval` and `mbpp` then stand in for lm-eval's tasks of the same names.

    python -m voidpad.evaluate.lm_eval --model voidpad --model_args pretrained=tiny-void,plan=void --tasks tiny_expr
"""

import sys
from collections import Counter
from typing import Any

import lm_eval.models  # noqa: F401  before registering ours, or lm-eval's own models vanish from its registry
import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.answer import Answering, load_model
from voidpad.evaluate.config import EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRequest
from voidpad.evaluate.likelihood import Bound
from voidpad.evaluate.prepare import stop_strings
from voidpad.evaluate.tasks import FOLDER

# Fields of `EvalConfig` and `Resources` that `--model_args` takes; lm-eval itself decides about tasks, shots, limits.
_CONFIG = {"plan", "seed", "parity", "system", "raw", "cache", "hide_eos"}
_CONFIG |= {"adapter", "merge", "dtype", "quantize"}
_RESOURCES = {"device", "rows", "tokens"}


@register_model("voidpad")
class VoidpadLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """Generation through the engine, all requests as one pool; likelihoods through `bound`.

    `--model_args` takes `pretrained`, the names above, `mc_samples` and `check_greedy` of the likelihood bound, and the
    fields of the plan.
    """

    def __init__(self, answering: Answering, *, bound: Bound | None = None, show: bool = False) -> None:
        super().__init__()
        self.answering = answering
        self.bound = bound or Bound(answering.model)
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
        samples, greedy = given.pop("mc_samples", 128), given.pop("check_greedy", True)
        resources = Resources(**{name: given.pop(name) for name in _RESOURCES & given.keys()})
        values = {name: given.pop(name) for name in _CONFIG & given.keys()}
        plan = values.pop("plan", None)  # None: the one that fits the checkpoint's padding
        config = EvalConfig(model=given.pop("pretrained", "tiny-void"), **values, fields=given)
        model = load_model(config, resources)
        answering = Answering(model, model.plan(plan, **config.fields), config, resources)
        bound = Bound(model, samples=samples, seed=config.seed, tokens=resources.tokens, greedy=greedy)
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
        wanted = self._requests(requests)
        outputs: dict[str, str] = {}
        with tqdm(total=len(wanted), desc="Answering", disable=not self.show) as bar:
            for done in self.answering.run(wanted):
                outputs |= {record.name: record.output for record in done}
                bar.update(len(done))
        return [outputs[request.name] for request in wanted]

    def _requests(self, instances: list[Instance]) -> list[AnswerRequest]:
        """lm-eval's requests by name; a repeated request for the same example has a name of its own."""
        seen: Counter[str] = Counter()
        requests = []
        for instance in instances:
            prompt, options = instance.args
            name = f"{instance.task_name}:{instance.doc_id}"
            repeat = f":{seen[name]}" if seen[name] else ""
            seen[name] += 1
            request = AnswerRequest(
                name=name + repeat,
                prompt=prompt,
                stop=stop_strings(name, options),
                rendered=prompt in self.rendered,
            )
            requests.append(request)
        return requests

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return self.bound.pairs([request.args for request in requests])

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return self.bound.texts([request.args[0] for request in requests])


def with_our_tasks(arguments: list[str]) -> list[str]:
    """The arguments, with our task folder unless the user names one."""
    named = any(word.split("=")[0] == "--include_path" for word in arguments)
    asks_for_help = not arguments or {"-h", "--help"} & set(arguments)
    return arguments if named or asks_for_help else [*arguments, "--include_path", str(FOLDER)]


def main() -> None:
    sys.argv[1:] = with_our_tasks(sys.argv[1:])
    try:
        cli_evaluate()
    except VoidpadError as error:
        print(f"voidpad: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    main()
