"""Training speed and memory against plain code, in one run. Prints ratios, one JSON object per line.

python studies/benchmarks/train.py collate                     # any machine: seconds
python studies/benchmarks/train.py small --device cuda         # 7M parameters, the real loop: about two minutes
python studies/benchmarks/train.py large --device cuda         # LLaDA-8B shape, LoRA, against a plain loop: two minutes
python studies/benchmarks/train.py rows                        # the built-in model on rows as long as GSM8K's: minutes
python studies/benchmarks/train.py rows --device cuda          # the paper's recipe at Dream-7B shape: minutes
python studies/benchmarks/train.py small large rows --rehearse # tiny shapes on a CPU: does it run?
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model

from voidpad import models
from voidpad.engine.host import keep_freed_memory
from voidpad.models import LLADA, character_tokenizer
from voidpad.recipes import find_recipe
from voidpad.roles import Roles
from voidpad.training import prepared as data
from voidpad.training.batches import BatchShare, PaddedRows, PassLimit, UpdatePasses
from voidpad.training.losses import Objective, Pass, SlotLoss
from voidpad.training.prepared import Example, Pairs
from voidpad.training.recipe import PaddingPart, check, read
from voidpad.training.train import Run

EPS = 1e-3


def report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def examples(count: int, ids: range, *, prompt: tuple[int, int], response: tuple[int, int]) -> list[Example]:
    rng = random.Random(0)

    def some(low: int, high: int) -> list[int]:
        return [rng.choice(ids) for _ in range(rng.randint(low, high))]

    return [Example(some(*prompt), some(*response)) for _ in range(count)]


# Collation: 1,000 examples padded, noised and turned into loss slots, in one mini-batch and in many.


def plain_collate(rows: list[Example], roles: Roles, rng: random.Random) -> dict[str, torch.Tensor]:
    """A mini-batch written token by token, as data collators of the field do it."""
    width = max(len(row.prompt) + len(row.response) + 1 for row in rows)
    ids, noisy, labels, weights = [], [], [], []
    for row in rows:
        rate = (1 - EPS) * rng.random() + EPS
        tokens, hidden, weight = list(row.prompt), [False] * len(row.prompt), [0.0] * len(row.prompt)
        end = len(row.prompt) + len(row.response)
        for place in range(len(row.prompt), width):
            token = (
                row.response[place - len(row.prompt)]
                if place < end
                else roles.eos
                if place == end
                else roles.void
            )
            chosen = place == end or rng.random() < rate
            tokens.append(token)
            hidden.append(chosen)
            weight.append(1.0 if place == end else rate)
        ids.append(tokens)
        noisy.append([roles.mask if h else t for t, h in zip(tokens, hidden, strict=True)])
        labels.append([t if h else -100 for t, h in zip(tokens, hidden, strict=True)])
        weights.append(weight)
    parts = {"ids": ids, "noisy": noisy, "labels": labels, "weights": weights}
    return {name: torch.tensor(value) for name, value in parts.items()}


def collate(_: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # processor time adds up over threads
    roles = Roles(mask=0, eos=1, void=2)
    rows = examples(1000, range(10, 30_000), prompt=(20, 400), response=(20, 600))
    store = PaddedRows(Pairs.of(rows), roles, PaddingPart(), seed=42)

    def ours(batch: int) -> None:
        asked = Objective(roles.mask, forced=True)
        everything = PassLimit(10**9)
        batches = UpdatePasses(store, asked, BatchShare(batch, batch), everything)
        for k in range(len(rows) // batch):
            batches[k]

    def plain(batch: int) -> None:
        rng = random.Random(0)
        for k in range(0, len(rows), batch):
            plain_collate(rows[k : k + batch], roles, rng)

    for batch in (1000, 50, 6):
        slow, fast = (least(functools.partial(run, batch)) for run in (plain, ours))
        wanted = 20 if batch == 1000 else None
        report(bench="collate", rows=batch, plain_s=slow, ours_s=fast, ratio=slow / fast, wanted=wanted)


def least(run: Callable[[], Any]) -> float:
    """Seconds of processor time, the best of four: other programs on the machine do not count."""
    found = []
    for _ in range(4):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found)


def seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


# The small model: the real loop from one prepared file.


class Stopwatch:
    """Wall time, processor time, tokens and compiled graphs at two updates of a run, the device caught up at both.

    The run ends after the second, without a checkpoint.
    """

    def __init__(self, run: Run, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.at, self.processor, self.tokens, self.graphs = {}, {}, {}, {}
        run.save_every = 10**9
        self.began = time.perf_counter()
        for _ in run.updates():
            if run.update not in (first, last):
                continue
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.at[run.update] = time.perf_counter()
            self.processor[run.update] = time.process_time()
            self.tokens[run.update] = run.tokens + int(run._sums[0, 1])
            self.graphs[run.update] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            if run.update == last:
                return

    @property
    def seconds(self) -> float:
        return self.at[self.last] - self.at[self.first]

    def grown(self, values: dict[int, float]) -> float:
        return values[self.last] - values[self.first]


SMALL = {"hidden": 256, "layers": 8, "heads": 4, "intermediate": 768, "context": 512}


def small(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = character_tokenizer(100)
        tokenizer.save_pretrained(f"{folder}/tokenizer")
        roles = models.random_model(vocab=100).roles
        rows = examples(20_000, range(20, 100), prompt=(20, 80), response=(20, 170))
        data.write(f"{folder}/data.safetensors", Pairs.of(rows), roles)
        for stage in ("pretrain", "void"):
            small_run(Path(folder), stage, options)


def small_run(folder: Path, stage: str, options: argparse.Namespace) -> None:
    batch, steps = (
        (8, 4) if options.rehearse else (1024, 120)
    )  # 512 rows leave the device waiting for launches
    shape = SMALL | ({"hidden": 64, "layers": 2} if options.rehearse else {})
    recipe = check(
        {
            "model": {"tokenizer": f"{folder}/tokenizer", "scratch": shape},
            "data": {"path": f"{folder}/data.safetensors"}
            | ({"layout": "packed", "length": 256} if stage == "pretrain" else {}),
            "padding": {"policy": "void", "width": "window"},
            "noise": {"stratified": True},
            "optim": {"name": "muon", "lr": 1e-3, "clip": 1.0},
            "run": {"output": f"{folder}/out", "steps": 10**6, "global_batch": batch, "micro_batch": batch}
            | {"log_every": 50, "save_every": 10**6, "report_to": []}
            | {"compile": not options.rehearse},
        }
    )
    run = Run(recipe)
    watch = Stopwatch(run, steps // 4, steps)
    rate = watch.grown(watch.tokens) / watch.seconds
    parameters = sum(p.numel() for p in run.module.parameters())
    facts = {
        "start_s": watch.at[watch.first] - watch.began,
        "step_ms": watch.seconds / (watch.last - watch.first) * 1e3,
    }
    report(bench="small", stage=stage, parameters=parameters, tokens_per_s=rate, **facts, wanted=4e6)
    if options.profile and torch.cuda.is_available():
        profile(run)


def profile(run: Run) -> None:
    """Where the device's time goes, over ten steps."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        spent = seconds(lambda: [run._make_update() for _ in range(10)] and None)
    events = found.key_averages()
    busy = sum(event.self_device_time_total for event in events) / 1e6
    report(bench="profile", wall_s=spent, device_s=busy)
    print(events.table(sort_by="self_device_time_total", row_limit=25, max_name_column_width=70))


# The large shape: LoRA on 6 x 1024 tokens, against a loop that computes all logits in float32.

LARGE = {
    "vocab_size": 126464,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}
REHEARSAL = LARGE | {"vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


def large_net(options: argparse.Namespace, *, rows: list[int]) -> torch.nn.Module:
    shape = REHEARSAL | {"num_attention_heads": 4, "num_key_value_heads": 4} if options.rehearse else LARGE
    dtype = torch.float32 if options.rehearse else torch.bfloat16
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    with torch.device(options.device):
        net = LLADA.net_class(LLADA.config(shape))
    torch.set_default_dtype(before)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    tokens = {"embed_tokens": rows, "lm_head": rows} if rows else None
    config = LoraConfig(
        r=32, lora_alpha=64, lora_dropout=0.0, target_modules=targets, trainable_token_indices=tokens
    )
    net = get_peft_model(net, config)
    net.gradient_checkpointing_enable({"use_reentrant": False})
    return net.train()


def plain_loss(net: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """All logits, in float32, then the loss where slots are hidden."""
    logits = net(input_ids=batch["ids"]).logits.float()
    chosen = batch["hidden"]
    entropy = F.cross_entropy(logits[chosen], batch["clean"][chosen], reduction="none")
    return (
        entropy / batch["rate"][chosen] / batch["target"].sum(1).repeat_interleave(chosen.sum(1))
    ).sum() / len(logits)


def large(options: argparse.Namespace) -> None:
    rows, width = (2, 64) if options.rehearse else (6, 1024)
    roles = Roles(mask=0, eos=1, void=2)
    vocabulary = range(10, 2000 if options.rehearse else 126_000)
    store = examples(rows * 8, vocabulary, prompt=(width // 8, width // 4), response=(width // 4, width // 2))
    part = PaddingPart(width=width)
    padded = PaddedRows(Pairs.of(store), roles, part, seed=42, device=options.device)
    asked = Objective(roles.mask, forced=True)
    whole = PassLimit(rows * width)
    ours = UpdatePasses(padded, asked, BatchShare(rows, rows), whole)
    found = {}
    net = large_net(options, rows=[roles.void])
    inputs = [full_batch(padded, asked, k, rows) for k in range(8)]
    module = SlotLoss(net)
    found["plain"] = measure(lambda k: plain_loss(net, inputs[k]), net, options)
    found["eager"] = measure(lambda k: slot_loss(module, *ours[k]), net, options)
    if not options.rehearse:
        compile_layers(net, rounded=True)
    found["compiled, rounding as eager"] = measure(lambda k: slot_loss(module, *ours[k]), net, options)
    if not options.rehearse:
        compile_layers(net, rounded=False)
    found["ours"] = measure(lambda k: slot_loss(module, *ours[k]), net, options)
    plain, fast = found["plain"], found["ours"]
    report(
        bench="large",
        tokens_per_s={name: rows * width / value["s"] for name, value in found.items()},
        peak_gib={name: value["peak"] / 2**30 for name, value in found.items()},
        loss={name: value["loss"] for name, value in found.items()},
        speed_ratio=plain["s"] / fast["s"],
        speed_ratios={name: plain["s"] / value["s"] for name, value in found.items()},
        memory_ratio=fast["peak"] / plain["peak"] if plain["peak"] else None,
        loss_differences={name: abs(plain["loss"] - value["loss"]) for name, value in found.items()},
        wanted={"speed_ratio": 1.2, "memory_ratio": 0.85, "loss_difference": 1e-3},
    )


def compile_layers(net: Any, *, rounded: bool) -> None:
    """As `run.compile` does; or so that fused kernels round where separate ones would."""
    torch._dynamo.reset()
    for layer in net.get_decoder().layers:
        layer.compile(options={"emulate_precision_casts": rounded})


def full_batch(padded: PaddedRows, asked: Objective, k: int, rows: int) -> dict[str, torch.Tensor]:
    position = torch.arange(k * rows, (k + 1) * rows)
    batch, origin = padded.batch(0, position, padded.lengths(0, position, rows)[0])
    noised = asked.noise(batch, origin)
    rate = torch.where(batch.eos, 1.0, noised.rate[:, None])
    return {
        "ids": noised.ids,
        "clean": batch.ids,
        "hidden": noised.hidden,
        "rate": rate,
        "target": batch.target,
    }


def slot_loss(module: SlotLoss, one: Pass) -> torch.Tensor:
    slots = one.slots
    return (module(one.ids, slots.where, slots.label, one.inside, one.segments) * slots.weight).sum()


def measure(
    run: Callable[[int], torch.Tensor], net: torch.nn.Module, options: argparse.Namespace
) -> dict[str, float]:
    """Mean loss of the eight batches, seconds of a step and peak memory, after warming up."""
    cuda, steps = torch.cuda.is_available(), 1 if options.rehearse else 10
    trained = [p for p in net.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=0.0)  # the weights stay: both sides see the same model

    def step(k: int) -> float:
        with torch.autocast(options.device, torch.bfloat16, enabled=cuda):
            loss = run(k % 8)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.item()

    losses = [step(k) for k in range(8)]
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    spent = seconds(lambda: [step(k) for k in range(steps)] and None)
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    return {"loss": sum(losses) / len(losses), "s": spent / steps, "peak": peak}


# Real rows: the paper's recipe as it is shipped, on rows as long as GSM8K's under Dream's tokenizer and chat template.

DREAM = {"vocab": 152064, "hidden": 3584, "layers": 28, "heads": 28, "kv_heads": 4, "intermediate": 18944}
TINY = {"vocab": 512, "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 128}
PROMPT = (31, 55, 61, 65, 70, 75, 80, 86, 94, 108, 231)  # deciles, in tokens, of the 7,473 training problems
RESPONSE = (29, 63, 77, 87, 98, 111, 125, 141, 161, 195, 453)


def from_deciles(deciles: tuple[int, ...], rng: random.Random) -> int:
    place = rng.random() * (len(deciles) - 1)
    below = int(place)
    return round(deciles[below] + (deciles[below + 1] - deciles[below]) * (place - below))


def real_rows(count: int, ids: range) -> list[Example]:
    rng = random.Random(0)
    return [
        Example(*(rng.choices(ids, k=from_deciles(part, rng)) for part in (PROMPT, RESPONSE)))
        for _ in range(count)
    ]


def rows(options: argparse.Namespace) -> None:
    """The shipped recipe and variants of it, one after the other, from one checkpoint."""
    cuda = options.device == "cuda"
    torch.set_num_threads(torch.get_num_threads() if cuda else 1)
    with tempfile.TemporaryDirectory() as folder:
        if cuda or options.rehearse:
            shape, dtype = (DREAM, torch.bfloat16) if cuda else (TINY, torch.float32)
            model = models.random_model("dream", **shape, context=2048, dtype=dtype, device=options.device)
        else:
            model = models.load("tiny-instruct")
        models.save(model, Path(folder) / "start")
        ids = range(max(model.roles.all()) + 1, len(model.tokenizer))
        store = [row for row in real_rows(7473, ids) if len(row.prompt) + len(row.response) < 500]
        data.write(f"{folder}/data.safetensors", Pairs.of(store), model.roles)
        del model
        for number, changes in enumerate([[], *(variant.split() for variant in options.variants)]):
            gc.collect()
            torch.cuda.empty_cache()
            torch._dynamo.reset()
            here = [f"model.name={folder}/start", f"data.path={folder}/data.safetensors"]
            here += [f"run.output={folder}/out-{number}", "run.report_to=[]"]
            rows_run([*options.changes, *changes], here, cuda=cuda, updates=options.updates)


def rows_run(changes: list[str], here: list[str], *, cuda: bool, updates: int) -> None:
    """Tokens a second, peak memory and recompilations of the recipe with these changes."""
    settled, steps = (updates * 5 // 8, updates) if cuda else (1, 3)
    recipe = read(find_recipe("paper/dream-7b-instruct-void", "train"), [*here, *changes])
    run = Run(recipe)
    limit, planned = run.passes.limit, [lengths for k in range(20) for lengths in run.passes.planned(k)]
    computed = sum(limit.size(len(lengths), max(lengths), sum(lengths)) for lengths in planned)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    watch = Stopwatch(run, settled, steps)
    spent, done = watch.seconds, steps - settled
    report(
        bench="rows",
        changes=changes,
        tokens_per_s=watch.grown(watch.tokens) / spent,
        update_s=spent / done,
        processor_s=watch.grown(watch.processor) / done,
        hours_of_7000=spent / done * 7000 / 3600,
        first_updates_s=watch.at[settled] - watch.began,
        computed_per_real_token=computed / sum(map(sum, planned)),
        tokens_per_pass=limit.tokens,
        passes=len(run.passes.planned(0)),
        end_to_end=limit.end_to_end,
        checkpointed=run.recomputing,
        compiled=run.compiled,
        recompilations=watch.grown(watch.graphs),
        peak_gib=torch.cuda.max_memory_reserved() / 2**30 if cuda else None,
        device_gib=torch.cuda.mem_get_info()[1] / 2**30 if cuda else None,
        wanted={"tokens_per_s": 14_000, "recompilations": 0},
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benches", nargs="+", choices=("collate", "small", "large", "rows"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes: does it run?")
    parser.add_argument(
        "--profile", action="store_true", help="after each small run, where the device's time goes"
    )
    parser.add_argument(
        "--set", dest="changes", action="append", default=[], help="rows: change the recipe, part.field=value"
    )
    parser.add_argument(
        "--variant",
        dest="variants",
        action="append",
        default=[],
        help="rows: one more run, with further changes",
    )
    parser.add_argument(
        "--updates", type=int, default=80, help="rows on a GPU: updates, of which the last 3/8 are timed"
    )
    options = parser.parse_args()
    keep_freed_memory()  # as the command does
    for name in options.benches:
        {"collate": collate, "small": small, "large": large, "rows": rows}[name](options)


if __name__ == "__main__":
    main()
