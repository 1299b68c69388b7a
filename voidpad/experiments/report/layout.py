"""What a report shows: tables and figures as values, written in a sweep recipe or chosen from the runs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict

SUFFIX = ".sweep.json"  # of the files that list the cells of a sweep, and the layouts of its report


class Metric(NamedTuple):
    """A column's meaning. `better`: +1 where larger wins, -1 where smaller wins, 0 where unranked."""

    title: str
    decimals: int
    better: int
    combine: Callable[[Sequence[float]], float] = fmean


METRICS: Mapping[str, Metric] = {
    "score": Metric("Score (%)", 2, +1),
    "nfe": Metric("NFE", 2, -1),
    "nfe_reduction": Metric("NFE reduction (%)", 1, +1),
    "probes": Metric("Probes", 2, -1),
    "passes": Metric("All passes", 2, -1),
    "canvas": Metric("Canvas", 1, 0),
    "answer": Metric("Answer tokens", 1, 0),
    "slot_passes": Metric("Slot-passes", 0, -1),
    "tokens_per_pass": Metric("Tokens a pass", 2, +1),
    "at_cap": Metric("At cap (%)", 1, -1),
    "without_eos": Metric("Without EOS (%)", 1, -1),
    "wall": Metric("Wall (s)", 1, -1),
    "speedup": Metric("Wall speed-up", 2, +1, geometric_mean),
}


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"no metric {name!r}; use one of {', '.join(METRICS)}")
    return name


MetricName = Annotated[str, AfterValidator(_known)]
Aggregate = Literal["mean", "best", "worst", "min", "max", "difference"]


class Layout(BaseModel):
    """What every table and figure has: a title, the paper's item it mirrors, and the runs it reads.

    A name of a column is `model`, `method`, `task`, `setting` (the plan fields that differ between the runs), a label
    of the recipe, a field of the plan or a field of the evaluation's config.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    reference: str = ""
    where: dict[str, Any] = {}  # column -> value or list of values
    grader: str = ""  # score by another of the task's graders; the reported one if empty


class TableLayout(Layout):
    """A pivot table. A cell is the mean over the runs of each task, then the unweighted mean over tasks."""

    index: tuple[str, ...] = ("model", "metric", "method")  # `metric`: a row for each of `values`
    columns: str | None = "task"  # a column for each value of this; None: one for each metric
    values: tuple[MetricName, ...] = ("score",)
    aggregate: tuple[Aggregate, ...] = ("mean",)  # over the columns
    only_aggregates: bool = False  # leave the columns themselves out
    extra: tuple[MetricName, ...] = ()  # further metrics, one column each
    exact: bool = False  # a column with the paired difference to the run without approximations
    baseline: str = "daedal"  # the method that a speed-up is measured against


class FigureLayout(Layout):
    """Grouped bars or lines of a metric along `x`, one for each value of `by`; or heat maps over `x` and `by`."""

    kind: Literal["bars", "lines", "heat"]
    metric: MetricName = "score"
    x: str = "task"
    by: str = "method"
    log: bool = False
