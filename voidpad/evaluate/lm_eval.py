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
from tqdm import tqdm

from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.answer import Answerer, load_model
from voidpad.evaluate.config import DEFAULT_RESOURCES, EvalConfig, Resources
from voidpad.evaluate.folder import AnswerRequest
from voidpad.evaluate.likelihood import Bound
from voidpad.evaluate.prepare import stop_strings
from voidpad.evaluate.tasks import FOLDER
from voidpad.models import Model

# Fields of `EvalConfig` that `--model_args` takes; lm-eval itself decides about tasks, shots and limits.
_CONFIG = {"seed", "parity", "system", "raw", "cache", "hide_eos", "adapter", "merge", "dtype", "quantize"}


@register_model("voidpad")
class VoidpadLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """Generation through the engine, all requests as one pool; likelihoods by the masked bound."""

    def __init__(
        self,
        pretrained: str | Model = "tiny-void",
        *,
        plan: str | None = None,
        device: str = "cpu",
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        tokens: int = DEFAULT_RESOURCES.tokens,
        mc_samples: int = 128,
        check_greedy: bool = True,
        **options: Any,
    ) -> None:
        """Takes what `--model_args` gives, and lm-eval's device and batch size.

        `options` are fields of `EvalConfig` named above, and fields of the plan. Without a plan it is the one that fits
        the checkpoint's padding. lm-eval's default batch size of 1 stands for ours, because it changes no answer, and
        its default device is a GPU, whether there is one or not.
        """
        super().__init__()
        if device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"
        rows = DEFAULT_RESOURCES.rows
        if str(batch_size).isdigit() and int(batch_size) > 1:
            rows = int(batch_size)
        resources = Resources(device=device, rows=rows, tokens=tokens)
        settings = {name: options.pop(name) for name in _CONFIG & options.keys()}
        name = pretrained if isinstance(pretrained, str) else pretrained.name
        config = EvalConfig(model=name, **settings, fields=options)
        model = load_model(config, resources) if isinstance(pretrained, str) else pretrained
        self.answerer = Answerer(model, model.plan(plan, **options), config, resources)
        self.bound = Bound(model, mc_samples, config.seed, tokens, greedy=check_greedy)
        self.rendered: set[str] = set()  # what `apply_chat_template` made

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """lm-eval's use of the template; the text is remembered, so that the template is not applied twice."""
        text = self.answerer.model.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        self.rendered.add(str(text))
        return str(text)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        template: str | None = self.answerer.model.tokenizer.chat_template
        return template

    @property
    def tokenizer_name(self) -> str:
        return self.answerer.model.name.replace("/", "__")

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """The answers, in the order of the requests; a repeated example has a name of its own each time."""
        seen: Counter[str] = Counter()
        wanted = []
        for instance in requests:
            prompt, options = instance.args
            item = f"{instance.task_name}:{instance.doc_id}"
            name = f"{item}:{seen[item]}" if seen[item] else item
            seen[item] += 1
            stop, rendered = stop_strings(item, options), prompt in self.rendered
            wanted.append(AnswerRequest(name=name, prompt=prompt, stop=stop, rendered=rendered))
        outputs: dict[str, str] = {}
        with tqdm(total=len(wanted), desc="Answering") as bar:
            for done in self.answerer.run(wanted):
                outputs |= {record.name: record.output for record in done}
                bar.update(len(done))
        return [outputs[request.name] for request in wanted]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return self.bound.pairs([request.args for request in requests])

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return self.bound.texts([request.args[0] for request in requests])


def with_our_tasks(arguments: list[str]) -> list[str]:
    """The arguments, with our task folder unless the user names one."""
    named = any(word.startswith("--include_path") for word in arguments)
    return arguments if named or not arguments else [*arguments, "--include_path", str(FOLDER)]


def main() -> None:
    sys.argv[1:] = with_our_tasks(sys.argv[1:])
    try:
        cli_evaluate()
    except VoidpadError as error:
        print(f"voidpad: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    main()
