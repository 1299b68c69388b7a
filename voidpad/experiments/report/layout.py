"""What a report shows: tables and figures as values, written in a sweep recipe or chosen from the runs."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MetricName = Literal[
    "score",
    "nfe",
    "nfe_reduction",
    "probes",
    "passes",
    "canvas",
    "answer",
    "slot_passes",
    "at_cap",
    "without_eos",
    "wall",
    "speedup",
]
Selection = dict[str, Any]  # name -> value or list of values; names are model, method, task or a plan field


class Item(BaseModel):
    """What every table and figure has: a title, the paper's item it mirrors, and the runs it reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    reference: str = ""
    where: Selection = {}
    grader: str = ""  # score by another of the task's graders; the reported one if empty


class Blocks(Item):
    """Table 1 and the appendix: a row per task and method, a column per value of a setting, summaries."""

    kind: Literal["blocks"] = "blocks"
    metric: MetricName = "score"
    across: str = "block"
    summary: tuple[Literal["mean", "best", "worst"], ...] = ("mean",)


class Tasks(Item):
    """Tables 2, 3 and 4: a row per metric and method, a column per task, then the mean over tasks."""

    kind: Literal["tasks"] = "tasks"
    metrics: tuple[MetricName, ...] = ("score",)
    baseline: str = "daedal"  # the method a speed-up is measured against
    split: tuple[str, ...] = ()  # settings that make rows of their own; the others are averaged over


class Stopping(Item):
    """Table 5: each padding under both stopping rules, averaged over tasks and settings."""

    kind: Literal["stopping"] = "stopping"
    pairs: dict[str, tuple[str, str]]  # row -> (method that decodes to the end, method that terminates)


class Spread(Item):
    """Table 6: the range of mean score and mean NFE while one factor moves and the rest stays at the base."""

    kind: Literal["spread"] = "spread"
    base: dict[str, Any]
    factors: dict[str, tuple[str, ...]]  # row -> settings that move together


class Methods(Item):
    """A row per method and setting: the mean score, every task's score, and what the answers cost."""

    kind: Literal["methods"] = "methods"
    split: tuple[str, ...] = ("block",)  # settings that make rows of their own
    metrics: tuple[MetricName, ...] = ("answer", "nfe", "probes", "canvas", "slot_passes")
    exact: bool = False  # a column with the paired difference to the run without approximations


class Details(Item):
    """One row per run and task with everything else that was measured."""

    kind: Literal["details"] = "details"


class Bars(Item):
    """Grouped bars: one group per value of `across`, one bar per value of `by`."""

    kind: Literal["bars"] = "bars"
    metric: MetricName = "score"
    across: str = "task"
    by: str = "method"
    log: bool = False


class Lines(Item):
    """One line per value of `by` along a setting."""

    kind: Literal["lines"] = "lines"
    metric: MetricName = "score"
    across: str = "canvas"
    by: str = "task"


class Heat(Item):
    """One heat map per task and one of the mean, over two settings."""

    kind: Literal["heat"] = "heat"
    metric: MetricName = "score"
    x: str = "tau_nonvoid"
    y: str = "tau_gap"


TableLayout = Annotated[Blocks | Tasks | Stopping | Spread | Methods | Details, Field(discriminator="kind")]
FigureLayout = Annotated[Bars | Lines | Heat, Field(discriminator="kind")]
