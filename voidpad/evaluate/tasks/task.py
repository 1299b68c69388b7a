"""What our benchmarks need beyond lm-eval's YAML: data from a folder, shots keyed by item, code in a sandbox.

Run-time options travel as lm-eval task metadata (`TaskManager(metadata=...)`, `--metadata` on its command
line): `data` (folder with local files), `fewshot` ("keyed" or "stream"), `weak_sandbox`, `workers`.
"""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask

from voidpad.errors import ConfigError, DataError, first_line
from voidpad.evaluate.tasks.benchmark_files import ITEM
from voidpad.evaluate.tasks.graders import Doc, shared_processes
from voidpad.sandbox import ProgramTest, Sandbox, SandboxLimits, Verdict


class Benchmark(ConfigurableTask):  # type: ignore[misc]  # lm-eval has no types
    """A YAML task whose few-shot draw for an item depends on the seed and the item alone.

    lm-eval draws from one stream, so an item's shots depend on every item before it, on the limit and on the
    number of processes. `fewshot: stream` brings that back (in one process, the paper's harness's own draws).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.options = dict(config.get("metadata") or {})
        self.shots_seed: int | None = None
        super().__init__(config={key: value for key, value in config.items() if key != "class"})

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        folder = self.options.get("data")
        self.dataset = self.config.custom_dataset(Path(folder) if folder else None)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics, in the order of the YAML; a function has its own name."""
        named = [entry["metric"] for entry in self.config.metric_list]
        return [metric if isinstance(metric, str) else metric.__name__ for metric in named]

    @property
    def primary(self) -> tuple[str, str]:
        """The metric and the grader that a table reports: the first of each. lm-eval names a missing grader `none`."""
        return self.metrics[0], self._filters[0].name

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        self.shots_seed = seed
        super().set_fewshot_seed(seed)

    def set_num_fewshot(self, number: int | None) -> None:
        """Take another number of shots than the YAML's; a task without items to draw them from refuses."""
        own = self.config.num_fewshot or 0
        self.set_config(key="num_fewshot", value=own if number is None else number)
        wanted = self.config.num_fewshot
        if wanted > 0 and not self._has_shots():
            raise ConfigError(
                f"num_fewshot={wanted}: task {self.task_name} has no items to draw shots from, its prompt has 0 shots; "
                "leave num_fewshot out"
            )
        shared = self.fewshot_cfg.split is not None and self.fewshot_cfg.split == self.config.test_split
        most = len(self.sampler.df) - shared if wanted else 0  # an item is no shot of its own prompt
        if wanted > most:
            raise ConfigError(
                f"num_fewshot={wanted}: task {self.task_name} has {most} items for shots; use {most} or fewer"
            )

    def _has_shots(self) -> bool:
        """Whether shots come from elsewhere than the items under test, which lm-eval would fall back to."""
        given = self.fewshot_cfg.split is not None or self.fewshot_cfg.samples is not None
        return given or self.has_training_docs() or (self.has_validation_docs() and self.has_test_docs())

    def fewshot_context(self, doc: Doc, num_fewshot: int, **kwargs: Any) -> str:
        self._seed_shots(doc)
        text: str = super().fewshot_context(doc, num_fewshot=num_fewshot, **kwargs)
        return text

    def _seed_shots(self, doc: Doc) -> None:
        if self.options.get("fewshot") != "stream":
            digest = hashlib.sha256(f"{self.shots_seed}:{doc[ITEM]}".encode()).digest()
            self.sampler.set_rnd(int.from_bytes(digest[:8], "big"))

    def apply_filters(self) -> None:
        with shared_processes():
            super().apply_filters()

    def detail(self, doc: Doc, graded: Any) -> dict[str, Any]:
        """What an example's line records about the primary grader's work."""
        return {"extracted": graded} if isinstance(graded, str) else asdict(graded)


def by_sandbox(doc: Doc, results: list[str]) -> dict[str, float]:
    """Named in the YAML of code tasks, so that lm-eval looks for no metric of its own."""
    raise ConfigError(
        "code tasks are scored by voidpad.evaluate.tasks.task.CodeBenchmark; keep `class` in the YAML"
    )


def program_test(program: str, checks: str, doc: Doc) -> ProgramTest:
    """What the sandbox runs for a program; an item without `entry_point` or `helpers` has none."""
    return ProgramTest(program, checks, doc.get("entry_point"), doc.get("helpers", ""))


class OwnBenchmark(Benchmark):
    """A task from a user's YAML: data, splits and functions are read as lm-eval reads them."""

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        ConfigurableTask.download(self, dataset_kwargs, **options)

    @property
    def eval_docs(self) -> Any:
        """The items with their place among them, which survives lm-eval's renumbering of a selection."""
        if "_items" not in self.__dict__:
            items = super().eval_docs
            self._items = items.add_column(ITEM, list(range(len(items))))
        return self._items

    def fewshot_context(self, doc: Doc, num_fewshot: int, **kwargs: Any) -> str:
        """lm-eval drops an item from its own shots by equality, so its place must not be in the way."""
        try:
            self._seed_shots(doc)
            plain = _without_place(doc)
            text: str = ConfigurableTask.fewshot_context(self, plain, num_fewshot=num_fewshot, **kwargs)
            return text
        except Exception as error:  # the user's functions and templates
            raise DataError(f"{self.task_name}:{doc[ITEM]}: no prompt ({_named(error)})") from error

    def process_results(self, doc: Doc, results: list[str]) -> dict[str, float]:
        where, metric = f"{self.task_name}:{doc[ITEM]}", self.metrics[0]
        try:
            found = super().process_results(_without_place(doc), results)
            scores = {name: float(score) for name, score in found.items()}
        except Exception as error:
            raise DataError(f"{where}: no score ({_named(error)})") from error
        if not 0 <= scores.get(metric, -1) <= 1:
            raise DataError(
                f"{where}: {metric}={scores.get(metric)}, the first metric must score an item from 0 to 1"
            )
        return scores

    def detail(self, doc: Doc, graded: Any) -> dict[str, Any]:
        return {"extracted": str(graded)}


def _without_place(doc: Doc) -> Doc:
    return {name: value for name, value in doc.items() if name != ITEM}


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


class CodeBenchmark(Benchmark):
    """A task whose graders turn answers into programs; those of all graders run in the sandbox together."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.verdicts: dict[ProgramTest, Verdict] = {}
        super().__init__(config)

    def sandbox(self) -> Sandbox:
        return Sandbox(
            limits=SandboxLimits(seconds=self.options["seconds"]),
            weak=bool(self.options.get("weak_sandbox", False)),
            workers=int(self.options.get("workers", 1)),
        )

    def apply_filters(self) -> None:
        super().apply_filters()
        jobs = dict.fromkeys(
            self.program_test(one.doc, program)
            for one in self.instances
            for program in one.filtered_resps.values()
        )
        with self.sandbox() as sandbox:
            self.verdicts = dict(zip(jobs, sandbox.map(jobs), strict=True))

    def process_results(self, doc: Doc, results: list[str]) -> dict[str, float]:
        verdict = self.verdicts[self.program_test(doc, results[0])]
        return {"pass@1": float(verdict.passed), "timeout": float(verdict.reason == "timeout")}

    def detail(self, doc: Doc, graded: str) -> dict[str, Any]:
        return {"reason": self.verdicts[self.program_test(doc, graded)].reason}

    def program_test(self, doc: Doc, program: str) -> ProgramTest:
        return program_test(program, self.doc_to_target(doc), doc)
