"""Answers of the built-in models to their test problems, judged, with every verdict kept.

    python -m studies.builtin.score answer --out runs/score --device cuda --workers 12    # goes on where it stopped
    python -m studies.builtin.score judge --out runs/score                                # where there is a sandbox
    python -m studies.builtin.score keep --out runs/score                                 # into docs/results
    python -m studies.builtin.score time --device cuda --out runs/score                   # wall time, one process

A cell is one way to answer the problems of a task: whose weights, which plan, block size and commit rule, and under a
constraint or not. `cells` lists them, the most wanted first; each is answered in pieces, one JSON line a problem, in a
file of its own. `--runs` takes the weights of a training (`studies.builtin.train`) in place of those that ship. On a
GPU the networks compute in float16, the format in which their weights are stored; a few cells do in float32, to
compare. `--only` chooses cells by a part of their names, `--count` how many problems each has.
"""

import argparse
import gzip
import hashlib
import json
import re
import subprocess
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, astuple, dataclass
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import torch

from studies.builtin.chat import CHAT, TRAINED
from studies.structured import RULES, constraint_of, tail_of_weight_one, valid
from voidpad.builtin.problems import GAP, Problem
from voidpad.builtin.tasks import CANVAS, TASKS, check, heldout
from voidpad.builtin.words import PEOPLE, PLACES, THINGS, VERBS
from voidpad.commands.prompts import builtin_prompts
from voidpad.engine.speed import SPEEDS
from voidpad.experiments import calibrate
from voidpad.files import store
from voidpad.models import Model, load, merge
from voidpad.models.fill import lay_out
from voidpad.models.locate import BUILT_IN_FAMILIES, locate
from voidpad.sandbox import Sandbox

KEPT = Path(__file__).parents[2] / "docs" / "results" / "tiny-answers.jsonl.gz"
PLANS = {"instruct": "original", "eos": "original", "rainbow": "original", "void": "void", "void-gap": "void"}
BLOCKS = (16, 32, 64, 128, CANVAS)
COUNT = 512
SHORT = {"canvas": 48, "limit": CANVAS, "block": 16}  # of methods that find the length themselves
MIRRORED = ("tiny_steps", "tiny_expr", "tiny_complete", "tiny_write")  # tasks like those of the paper
SEARCH = calibrate.Search(start=48, limit=CANVAS, block=16)  # of VoidExpansion's thresholds
OPEN = frozenset(word for words in (PEOPLE, PLACES, THINGS, VERBS) for word in words)
WORD = re.compile(r"[A-Za-z]{3,}")
Line = dict[str, Any]


# ------------------------------------------------------------------------------------------------------------- cells
@dataclass(frozen=True)
class Cell:
    """One way to answer the problems of a task."""

    family: str
    arm: str  # whose weights
    plan: str  # of a text with gaps: how their lengths are chosen; `calibrate`: VoidExpansion's thresholds
    task: str
    block: int = 32
    rule: str = "one token"  # or a named speed
    tail: str = "free"  # `free`: no constraint; otherwise as studies.structured says
    dtype: str = "float16"  # on a GPU

    @property
    def name(self) -> str:
        return "_".join(map(str, astuple(self))).replace(" ", "-")


def cells() -> Iterator[tuple[Cell, int]]:
    """Every cell and into how many pieces it is divided, the most wanted first."""
    families = tuple(BUILT_IN_FAMILIES)

    def plain(arms: Sequence[str], blocks: Sequence[int], tasks: Iterable[str]) -> Iterator[Cell]:
        for block, arm, task, family in product(blocks, arms, tasks, families):
            yield Cell(family, arm, PLANS[arm], task, block)

    chat = [name for name in TRAINED if name != "tiny_fill"]  # asked in a chat
    yield from ((Cell(family, "void", "calibrate", "tiny_steps"), 1) for family in families)
    yield from ((cell, 1) for cell in plain(("instruct", "void"), (32, CANVAS), chat))
    yield from ((Cell(family, "instruct", "true", "tiny_fill"), 4) for family in families)
    yield from ((cell, 1) for cell in plain(("eos", "rainbow"), (32, CANVAS), chat))
    for task, family in product(("tiny_search", "tiny_turns", *TASKS), families):
        yield Cell(family, "instruct", "eos-last", task, CANVAS), 1
    for rule, block, arm, tail, family in product(
        ("threshold 0.9",), (32, CANVAS), ("void", "eos"), ("padding", "free", "one"), families
    ):
        yield Cell(family, arm, PLANS[arm], "tiny_json", block, rule, tail), 4
    yield from ((cell, 2) for cell in plain(("instruct", "void", "rainbow"), (16, 64, 128), TASKS))
    yield from (
        (Cell(family, "void", "void-expansion", task, 16), 2) for task, family in product(TASKS, families)
    )
    lengths = ("true", "cal", "bounds", "fixed 8", "fixed 16", "fixed 32")
    yield from ((Cell(family, "instruct", how, "tiny_fill"), 4) for how, family in product(lengths, families))
    gaps = ("true", "void-gap", "void-gap bounds")
    yield from ((Cell(family, "void-gap", how, "tiny_fill"), 4) for how, family in product(gaps, families))
    for task, family in product(("tiny_search", "tiny_turns"), families):
        yield Cell(family, "instruct", "eos-last", task, 32), 2
        yield Cell(family, "eos", "eos-last", task, CANVAS), 2
    for task, family in product(("tiny_steps", "tiny_expr", "tiny_json"), families):
        yield Cell(family, "void", "void", task, 32, dtype="float32"), 2
    for rule, block, arm, tail, family in product(
        ("entropy 0.1", "one token"), (32, CANVAS), ("void", "eos"), ("padding", "free", "one"), families
    ):
        if (rule, tail) != ("one token", "free"):  # that is a cell of the criteria
            yield Cell(family, arm, PLANS[arm], "tiny_json", block, rule, tail), 4
    for rule, task, family in product(("fast", "fastest", "threshold 0.9"), TASKS, families):
        if (rule, task) != ("threshold 0.9", "tiny_json"):  # that is a cell of structured output
            yield Cell(family, "void", "void", task, 32, rule), 4
    for plan, task, family in product(("daedal", "rho-eos"), MIRRORED, families):
        yield Cell(family, "instruct", plan, task, 16), 2


# ----------------------------------------------------------------------------------------------------------- answers
@cache
def opened(given: tuple[str | None, str, str], family: str, arm: str, dtype: str) -> tuple[Model, str]:
    """The model with its adapter merged, and a checksum of its weights' files."""
    runs, device, _ = given
    name = str(Path(runs) / family / arm / "model") if runs else f"{BUILT_IN_FAMILIES[family]}-{arm}"
    model = load(name, device=device, dtype="float32")
    if arm != "instruct":
        model = merge(model)
    if device != "cpu" and dtype == "float16":
        for parameter in model.net.parameters():  # not the buffers: rotary frequencies stay float32
            parameter.data = parameter.data.half()
    (file,) = locate(name).glob("*.safetensors")
    return model, hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def answered(model: Model, cell: Cell, problems: Sequence[Problem], thresholds: Path) -> list[Line]:
    """The answers of a cell to these problems."""
    if cell.task == "tiny_fill":
        return filled(model, cell.plan, problems)
    if cell.plan == "calibrate":
        return [calibrated(model, len(problems))]
    speed = cell.rule if cell.rule in SPEEDS else None
    rule = {} if speed else RULES[cell.rule]
    fields: dict[str, Any] = {"canvas": CANVAS, "block": cell.block, "stop": "eos", **rule}
    if cell.plan == "void-expansion":
        fields = json.loads(thresholds.read_text())["fields"] | {"stop": "eos"}
    elif cell.plan in ("daedal", "rho-eos"):
        fields = SHORT
    constraint = None if cell.tail == "free" else [constraint_of(problem) for problem in problems]
    with tail_of_weight_one() if cell.tail == "one" else nullcontext():
        results = model.generate(
            [problem.messages for problem in problems],
            cell.plan,
            rows=COUNT,
            tokens=1 << 19,
            speed=speed,
            constraint=constraint,
            **fields,
        )
    return [
        {
            "text": one.text,
            "tokens": sum(token not in model.roles.all() for token in one.tokens),
            "passes": one.passes,
            "canvas": len(one.ids),
        }
        for one in results
    ]


def filled(model: Model, how: str, problems: Sequence[Problem]) -> list[Line]:
    """Texts with their gaps filled as `model.fill` does. `true` has the lengths of what was cut out, `bounds` half of
    them to twice as many."""
    plan, engine = model.plan("original", ban=("ends", "void")), model.engine(rows=COUNT, tokens=1 << 19)
    layouts, lines = [], list[Line]()
    for problem in problems:
        text = problem.prompt
        for gap in problem.gaps:
            size = len(model.tokenizer.backend_tokenizer.encode(gap).ids)
            bounds = {"true": f":{size}"}.get(how, f":{-(-size // 2)}-{2 * size}" if "bounds" in how else "")
            text = text.replace(GAP, f"[[gap{bounds}]]", 1)
        rule: Any = "void-gap" if "void-gap" in how else "fixed" if "fixed" in how else "cal"
        slots = int(how.removeprefix("fixed ")) if "fixed" in how else 16
        layouts.append(lay_out(model, text, plan, length=rule, slots=slots))
    for number, layout in enumerate(layouts):
        engine.submit(layout.ids, layout.plan, key=number)
    outcomes = {outcome.key: outcome for _, outcome in engine.outcomes()}
    for number, layout in enumerate(layouts):
        gaps = layout.written(model, outcomes[number])
        line = {"text": layout.whole(gaps), "tokens": sum(layout.slots), "probes": layout.passes_probe}
        lines.append({**line, "passes": outcomes[number].passes_decode})
    return lines


def calibrated(model: Model, count: int) -> Line:
    """VoidExpansion's thresholds from prompts of training problems."""
    prompts = [model.encode(prompt) for prompt in builtin_prompts(count)]
    seen = calibrate.survey(model, prompts, SEARCH)
    chosen = calibrate.choose(calibrate.settings(seen, SEARCH), SEARCH.fit)
    return {"fields": calibrate.fields(chosen, SEARCH), **asdict(chosen), "prompts": count}


def piece(job: tuple[Cell, int, int, Path, tuple[str | None, str, str]]) -> str:
    """Answer some problems of a cell; what was done, in words. A failure costs this piece alone."""
    cell, first, last, path, given = job
    begun = time.monotonic()
    try:
        model, weights = opened(given, cell.family, cell.arm, cell.dtype)
        thresholds = path.parent / f"{Cell(cell.family, 'void', 'calibrate', 'tiny_steps').name}.0.jsonl"
        problems = heldout(TRAINED[cell.task], last)[first:]
        with torch.inference_mode():
            lines = answered(model, cell, problems, thresholds)
    except Exception:
        return f"{path.name}: {traceback.format_exc()}"
    about = {
        **asdict(cell),
        "dtype": str(model.net.dtype).removeprefix("torch."),
        "control": cell.dtype == "float32",
        "weights": weights,
        "commit": given[2],
        "seconds": round(time.monotonic() - begun, 2),
    }
    made = [{**about, "index": first + k, **line} for k, line in enumerate(lines)]
    store(path, [json.dumps(line) + "\n" for line in made])
    return f"{path.name}: {len(lines)}, {time.monotonic() - begun:.1f} s"


def answer(options: argparse.Namespace) -> None:
    """Answer what has no file yet, several pieces at a time, in the order of `cells`."""
    options.out.mkdir(parents=True, exist_ok=True)
    commit = options.commit
    if not commit:
        found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
        commit = found.stdout.strip()
    given = (str(options.runs) if options.runs else None, options.device, commit)
    jobs = {}
    for cell, pieces in cells():
        if not any(part in cell.name for part in options.only):
            continue
        size = -(-options.count // pieces)
        for number, first in enumerate(range(0, options.count, size)):
            path = options.out / f"{cell.name}.{number}.jsonl"
            if not path.exists():
                jobs[path] = (cell, first, min(first + size, options.count), path, given)
    print(f"{time.strftime('%H:%M:%S')} {len(jobs)} pieces", flush=True)
    if not jobs:
        return
    # Spawned: CUDA does not survive a fork.
    with get_context("spawn").Pool(options.workers) as pool:
        for number, done in enumerate(pool.imap_unordered(piece, jobs.values()), 1):
            print(time.strftime("%H:%M:%S"), number, done, flush=True)


def wall_time(options: argparse.Namespace) -> None:
    """One process, one batch of problems of the four mirrored tasks, each method twice; the second time counts."""
    asked = [p.messages for task in MIRRORED for p in heldout(task, options.count // len(MIRRORED))]
    given = (str(options.runs) if options.runs else None, options.device, options.commit)
    file = options.out / f"{Cell(options.family, 'void', 'calibrate', 'tiny_steps').name}.0.jsonl"
    growing = json.loads(file.read_text())["fields"] if file.exists() else SHORT
    fixed = {"canvas": CANVAS, "block": 32}
    methods: dict[str, tuple[str, str, dict[str, Any]]] = {
        "original": ("instruct", "original", fixed),
        "original, stopped at EOS": ("instruct", "original", {**fixed, "stop": "eos"}),
        "Rainbow, stopped at EOS": ("rainbow", "original", {**fixed, "stop": "eos"}),
        "VOID": ("void", "void", {**fixed, "stop": "eos"}),
        "VOID, expanding": ("void", "void-expansion", {**growing, "stop": "eos"}),
        "DAEDAL": ("instruct", "daedal", SHORT),
        "rho-EOS": ("instruct", "rho-eos", SHORT),
    }
    for again, (method, (arm, plan, fields)) in product((0, 1), methods.items()):
        model, weights = opened(given, options.family, arm, "float16")
        begun = time.perf_counter()
        results = model.generate(asked, plan, rows=options.count, tokens=1 << 19, **fields)
        line = {
            "method": method, "family": options.family, "again": again, "weights": weights, "rows": len(asked),
            "seconds": round(time.perf_counter() - begun, 3),
            "passes": sum(one.passes for one in results) / len(results),
        }  # fmt: skip
        with (options.out / "wall-time.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        print(line, flush=True)


# ---------------------------------------------------------------------------------------------------------- verdicts
def copied(problem: Problem, text: str, known: frozenset[str]) -> bool:
    """Whether every word of an answer is a known one (of the tasks' own phrases) or stands in what was asked."""
    given = set(WORD.findall(problem.whole))
    return all(word in given or word in known for word in WORD.findall(text))


def phrases(count: int = 400) -> frozenset[str]:
    """Words of the tasks' own phrases: those that stand in many answers and are no names."""
    rng, seen = Random("phrases"), defaultdict[str, set[int]](set)
    for name, task in TRAINED.items():
        for number in range(count):
            problem = task.sample(rng)
            given = set(WORD.findall(problem.whole))
            for word in WORD.findall(task.answer(problem, rng)):
                if word not in given:
                    seen[word].add(hash((name, number)))
    return frozenset(word for word, where in seen.items() if len(where) > 1 or word not in OPEN)


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def judge(options: argparse.Namespace) -> None:
    """Add the verdicts that are missing, file by file."""
    known, sandbox = phrases(), Sandbox()
    problems = cache(lambda task: heldout(TRAINED[task], COUNT))
    wanted = cache(lambda index: constraint_of(problems("tiny_json")[index]))

    @cache  # many cells give a problem the same answer
    def right(task: str, index: int, text: str) -> int:
        problem = problems(task)[index]
        return int(CHAT.right(problem, text) if task == CHAT.name else check(problem, text, sandbox))

    for path in sorted(options.out.glob("*.jsonl")):
        lines = read(path)
        if "index" not in lines[0] or "text" not in lines[0] or "right" in lines[-1]:
            continue
        for one in lines:
            problem, text = problems(one["task"])[one["index"]], one["text"]
            one["right"] = right(one["task"], one["index"], text)
            one["copied"] = int(copied(problem, text, known))
            if one["task"] == "tiny_json":
                constraint = wanted(one["index"])
                one["valid"] = int(valid(problem, text))
                one["matched"] = int(constraint.matches(text))
        store(path, [json.dumps(one) + "\n" for one in lines])
        print(f"{path.name}: {sum(one['right'] for one in lines)} of {len(lines)}", flush=True)


LISTS = ("right", "copied", "valid", "matched", "passes", "tokens", "probes", "canvas")  # of a verdict


def keep(options: argparse.Namespace) -> None:
    """One record a cell: what its verdicts share, and a list for each number. Wall times are kept as they are.

    Cells that were kept before and are not answered anew stay, unless `--fresh` says that other weights have shipped.
    """
    groups = defaultdict[str, list[Line]](list)
    records = []
    for path in sorted(options.out.glob("*.jsonl")):
        lines = read(path)
        if "right" in lines[0]:
            groups[path.name.rsplit(".", 2)[0]] += lines
        elif "text" not in lines[0]:
            records += lines
    for lines in groups.values():
        lines.sort(key=lambda one: one["index"])
        shared = {k: v for k, v in lines[0].items() if k not in (*LISTS, "text", "index", "seconds")}
        index = [one["index"] for one in lines]
        if index != list(range(len(lines))):
            shared["index"] = index
        records.append(shared | {name: [one[name] for one in lines] for name in LISTS if name in lines[0]})
    if KEPT.exists() and not options.fresh:
        new = {_identity(one) for one in records}
        records = [one for one in kept() if _identity(one) not in new] + records
    KEPT.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in records).encode(), mtime=0))
    print(f"{KEPT}: {len(records)} records, {KEPT.stat().st_size} bytes")


def _identity(one: Line) -> tuple[Any, ...]:
    """What two records of the same thing have in common."""
    names = ("family", "arm", "plan", "task", "block", "rule", "tail", "control", "method", "again")
    return tuple(one.get(name) for name in names)


def kept() -> list[Line]:
    return [json.loads(line) for line in gzip.decompress(KEPT.read_bytes()).splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.builtin.score", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=["answer", "judge", "keep", "time", "list"])
    parser.add_argument("--out", type=Path, default=Path("runs/score"))
    parser.add_argument("--runs", type=Path, help="a folder of studies.builtin.train")
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--family", choices=BUILT_IN_FAMILIES, default="llada", help="of `time`")
    parser.add_argument("--fresh", action="store_true", help="`keep`: forget what was kept before")
    parser.add_argument("--commit", default="", help="the commit of the code, where git cannot say it")
    options = parser.parse_args()
    if options.what == "list":
        names = dict.fromkeys(cell.name for cell, _ in cells())
        print("\n".join(names), f"\n{len(names)} cells")
    else:
        {"answer": answer, "judge": judge, "keep": keep, "time": wall_time}[options.what](options)


if __name__ == "__main__":
    main()
