"""What our benchmarks need beyond lm-eval's YAML: data from a folder, shots keyed by item, code in a sandbox.

Run-time options travel as lm-eval task metadata (`TaskManager(metadata=...)`, `--metadata` on its command
line): `data` (folder with local files), `fewshot` ("keyed" or "stream"), `weak_sandbox`, `workers`.
"""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask

from voidpad.errors import ConfigError
from voidpad.evaluate.tasks import FEWSHOT
from voidpad.evaluate.tasks.benchmark_files import ITEM
from voidpad.evaluate.tasks.graders import Doc, shared_processes
from voidpad.sandbox import ProgramTest, Sandbox, SandboxLimits, Verdict


class Benchmark(ConfigurableTask):
    """A YAML task whose few-shot draw for an item depends on the seed and the item alone.

    lm-eval draws from one stream, so an item's shots depend on every item before it, on the limit and on the
    number of processes. `fewshot: stream` brings that back (in one process, the paper's harness's own draws).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.options = dict(config.get("metadata") or {})
        self.shots_seed: int | None = None
        if self.options.get("fewshot", "keyed") not in FEWSHOT:
            raise ConfigError(f"fewshot: {self.options['fewshot']!r} is not one of {', '.join(FEWSHOT)}")
        super().__init__(config={key: value for key, value in config.items() if key != "class"})

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        folder = self.options.get("data")
        self.dataset = self.config.custom_dataset(Path(folder) if folder else None)

    @property
    def primary(self) -> tuple[str, str]:
        """The metric and the grader that a table reports: the first of each in the YAML."""
        return self.config.metric_list[0]["metric"], self.config.filter_list[0]["name"]

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        self.shots_seed = seed
        super().set_fewshot_seed(seed)

    def fewshot_context(self, doc: Doc, num_fewshot: int, **kwargs: Any) -> str:
        if self.options.get("fewshot", "keyed") == "keyed":
            self.sampler.set_rnd(_item_seed(self.shots_seed, doc[ITEM]))
        return super().fewshot_context(doc, num_fewshot=num_fewshot, **kwargs)

    def apply_filters(self) -> None:
        with shared_processes():
            super().apply_filters()

    def detail(self, doc: Doc, graded: Any) -> dict[str, Any]:
        """What an example's line records about the primary grader's work."""
        return {"extracted": graded} if isinstance(graded, str) else asdict(graded)


def _item_seed(seed: int | None, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest()[:8], "big")


def by_sandbox(doc: Doc, results: list[str]) -> dict[str, float]:
    """Named in the YAML of code tasks, so that lm-eval looks for no metric of its own."""
    raise ConfigError(
        "code tasks are scored by voidpad.evaluate.tasks.task.CodeBenchmark; keep `class` in the YAML"
    )


def program_test(program: str, checks: str, doc: Doc) -> ProgramTest:
    """What the sandbox runs for a program; an item without `entry_point` or `helpers` has none."""
    return ProgramTest(program, checks, doc.get("entry_point"), doc.get("helpers", ""))


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
