"""What our benchmarks need beyond lm-eval's YAML: data from a folder, the number of shots, programs in a sandbox.

Run-time options travel as lm-eval task metadata (`TaskManager(metadata=...)`, `--metadata` on its command line): `data`
(folder with local files), `weak_sandbox`, `workers`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from voidpad.errors import ConfigError
from voidpad.evaluate.tasks import Doc
from voidpad.sandbox import ProgramTest, Sandbox, SandboxLimits


class Benchmark(ConfigurableTask):  # type: ignore[misc]  # lm-eval has no types
    """A task of a YAML file. Its filters are its graders, and the first one's first metric is its score."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.options = dict(config.get("metadata") or {})
        super().__init__(config={key: value for key, value in config.items() if key != "class"})

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        if callable(self.config.custom_dataset):
            folder = self.options.get("data")
            self.dataset = self.config.custom_dataset(
                Path(folder) if folder else None, **dataset_kwargs or {}
            )
        else:
            super().download(dataset_kwargs, **options)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics, in the order of the YAML; a function has its own name."""
        named = [entry["metric"] for entry in self.config.metric_list]
        return [metric if isinstance(metric, str) else metric.__name__ for metric in named]

    @property
    def primary(self) -> tuple[str, str]:
        """The metric and the grader that a table reports: the first of each. lm-eval names a missing grader `none`."""
        return self.metrics[0], self._filters[0].name

    def shots(self, wanted: int | None) -> int:
        """The wanted number of shots, or without one the YAML's.

        Refused where the task names no items to draw them from: lm-eval would draw from those under test.
        """
        number = self.config.num_fewshot or 0 if wanted is None else wanted
        source = self.fewshot_cfg
        if number and not (source.split or source.samples or self.has_training_docs()):
            raise ConfigError(f"num_fewshot={number}: task {self.task_name} has no items to draw shots from")
        return number

    def grade(self, docs: Sequence[Doc], answers: Sequence[str]) -> list[dict[str, Any]]:
        """For each answer, what each grader makes of it; `process_results` turns that into metrics."""
        self._instances = [
            Instance("generate_until", doc, (), number, (self.task_name, number, 1), resps=[answer])
            for number, (doc, answer) in enumerate(zip(docs, answers, strict=True))
        ]
        self.apply_filters()
        return [instance.filtered_resps for instance in self._instances]


class CodeBenchmark(Benchmark):
    """A task whose graders turn answers into programs, which run in the sandbox, those of all graders together.

    What is graded is then the verdict on each program: whether it passed, the reason, and details of the reason.
    """

    def apply_filters(self) -> None:
        super().apply_filters()
        jobs: dict[ProgramTest, list[tuple[Instance, str]]] = {}  # equal programs run once
        for one in self.instances:
            for grader, program in one.filtered_resps.items():
                test = program_test(program, self.doc_to_target(one.doc), one.doc)
                jobs.setdefault(test, []).append((one, grader))
        sandbox = Sandbox(
            limits=SandboxLimits(seconds=self.options["seconds"]),
            weak=bool(self.options.get("weak_sandbox", False)),
            workers=int(self.options.get("workers", 1)),
        )
        with sandbox:
            for said, places in zip(sandbox.map(jobs), jobs.values(), strict=True):
                verdict = {"passed": said.passed, "reason": said.reason, "detail": said.detail}
                for one, grader in places:
                    one.filtered_resps[grader] = verdict


def program_test(program: str, checks: str, doc: Doc) -> ProgramTest:
    """What the sandbox runs for a program; an item without `entry_point` or `helpers` has none."""
    return ProgramTest(program, checks, doc.get("entry_point"), doc.get("helpers", ""))


def pass_at_1(doc: Doc, verdicts: list[dict[str, Any]]) -> dict[str, float]:
    """The metrics of a `CodeBenchmark`, for `process_results` in its YAML."""
    verdict = verdicts[0]
    return {"pass@1": float(verdict["passed"]), "timeout": float(verdict["reason"] == "timeout")}
