"""The server under load against the engine alone, in one run. Prints ratios.

    python studies/benchmarks/serve.py                                             # built-in model, two idle cores
    python studies/benchmarks/serve.py --shape llada-8b --device cuda --rows 64    # one H200, random weights

The engine first decodes every prompt by itself (`model.generate`'s way). Then a server over the same model answers the
same prompts for many streaming clients, which run in a process of their own. Some clients leave in the middle, some
send nonsense, some read slowly. Every completed answer is compared with the engine's own.

On two cores both sides use one thread for the network, so that the clients have a core of their own. On a machine that
does other work too, `ratio` compares two moments; `cpu_ratio` compares processor time and says what the server costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import queue
import random
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]


@dataclass(frozen=True)
class LoadRequest:
    """One request of the load: token ids, how many tokens to answer, and how its client behaves."""

    ids: list[int]
    max_tokens: int
    seed: int
    kind: str = "normal"  # normal, leaves, malformed or slow


@dataclass
class LoadReport:
    """What the clients saw."""

    texts: dict[int, str] = field(default_factory=dict)  # by place among the requests
    tokens: int = 0
    refused: int = 0  # malformed requests answered with 4xx
    left: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


def make_load(vocab: range, count: int, *, prompts: tuple[int, int], answers: tuple[int, int], seed: int,
              leaves: float = 0.1, malformed: float = 0.05, slow: float = 0.02) -> list[LoadRequest]:  # fmt: skip
    """Requests of mixed length with mixed manners."""
    rng = random.Random(seed)
    load = []
    for place in range(count):
        draw = rng.random()
        kind = "leaves" if draw < leaves else "malformed" if draw < leaves + malformed else "normal"
        if kind == "normal" and rng.random() < slow:
            kind = "slow"
        ids = [rng.choice(vocab) for _ in range(rng.randint(*prompts))]
        load.append(LoadRequest(ids, rng.randint(*answers), place, kind))
    return load


async def run_clients(url: str, model: str, load: list[LoadRequest], clients: int) -> LoadReport:
    """Send every request once, `clients` at a time, streaming."""
    import httpx

    report, places = LoadReport(), iter(range(len(load)))
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    begun = time.perf_counter()

    async def client(http: httpx.AsyncClient) -> None:
        for place in places:
            try:
                await asyncio.wait_for(ask(http, place), 900)
            except Exception as error:
                report.failed.append(f"{place}: {type(error).__name__}: {error}")

    async def ask(http: httpx.AsyncClient, place: int) -> None:
        one = load[place]
        body = {"model": model, "prompt": one.ids, "max_tokens": one.max_tokens, "seed": one.seed, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        if one.kind == "malformed":
            body["max_tokens"] = -1
        text, start = "", time.perf_counter()
        async with http.stream("POST", url + "/v1/completions", json=body) as reply:
            if reply.status_code != 200:
                await reply.aread()
                if one.kind == "malformed" and reply.status_code == 400:
                    report.refused += 1
                else:
                    report.failed.append(f"{place}: status {reply.status_code}: {reply.text[:200]}")
                return
            pieces = 0
            async for line in reply.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    report.failed.append(f"{place}: {chunk['error']}")
                    return
                for choice in chunk["choices"]:
                    text += choice["text"]
                    pieces += 1
                if chunk.get("usage"):
                    report.tokens += chunk["usage"]["completion_tokens"]
                if one.kind == "leaves" and pieces >= 2:
                    report.left += 1
                    return
                if one.kind == "slow":
                    await asyncio.sleep(0.02)
        report.texts[place] = text
        report.latencies.append(time.perf_counter() - start)

    async with httpx.AsyncClient(timeout=900, limits=limits) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
    report.seconds = time.perf_counter() - begun
    return report


def clients_process(url: str, model: str, load: list[LoadRequest], clients: int, back: Any) -> None:
    back.put(asyncio.run(run_clients(url, model, load, clients)))


def engine_alone(
    model: Any, load: list[LoadRequest], plan: Any, *, rows: int, tokens: int
) -> tuple[dict[int, str], float, float]:
    """The same rows through the engine by itself: their texts, and the seconds and processor seconds they took."""
    from voidpad.serve.answer_text import AnswerText, text_rules

    rules, engine = text_rules(model), model.engine(rows=rows, tokens=tokens, block=plan.block)
    places = {}
    begun, used = time.perf_counter(), time.process_time()
    for place, one in enumerate(load):
        limit = model.row_limit(one.ids, plan, max_tokens=one.max_tokens)
        places[engine.submit(one.ids, plan, seed=one.seed, limit=limit)] = place
    texts = {}
    for handle, outcome in engine.outcomes():
        choice = AnswerText(rules, limit=load[places[handle]].max_tokens)
        choice.feed(outcome.tokens)
        choice.end()
        texts[places[handle]] = choice.text
    return texts, time.perf_counter() - begun, time.process_time() - used


def peak_memory() -> float:
    """The most memory this process has had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(model: Any, load: list[LoadRequest], *, plan: str, fields: dict[str, Any], clients: int, rows: int,
            tokens: int) -> dict[str, Any]:  # fmt: skip
    """Engine alone, then the server, on the same well-formed requests; everything in one run."""
    from serving import serving

    chosen = model.plan(plan, **fields)
    places = [place for place, one in enumerate(load) if one.kind != "malformed"]
    wanted = [load[place] for place in places]
    engine_alone(model, wanted[: 2 * rows], chosen, rows=rows, tokens=tokens)  # warm
    alone, alone_seconds, alone_cpu = engine_alone(model, wanted, chosen, rows=rows, tokens=tokens)
    expected = {place: alone[k] for k, place in enumerate(places)}
    context = multiprocessing.get_context("spawn")
    back = context.Queue()
    with serving(
        model, plan=plan, fields=fields, rows=rows, tokens=tokens, queue=4096, timeout=900.0
    ) as running:
        process = context.Process(target=clients_process, args=(running.url, model.name, load, clients, back))
        used, early = time.process_time(), None
        process.start()
        report: LoadReport | None = None
        while report is None:
            try:
                report = back.get(timeout=0.5)
            except queue.Empty:
                assert process.is_alive(), "the clients' process has ended without a report"
            answered = running.state.metrics.registry.get_sample_value(
                "voidpad_requests_total", {"route": "/v1/completions", "status": "200"}
            )
            if early is None and (answered or 0) >= len(load) / 4:
                early = peak_memory()
        used = time.process_time() - used
        process.join(60)
        end = time.monotonic() + 30
        while running.engine.rows and time.monotonic() < end:
            time.sleep(0.05)
        left = len(running.engine.rows)
    wrong = [place for place, text in report.texts.items() if text != expected[place]]
    missing = [place for place in places if load[place].kind != "leaves" and place not in report.texts]
    latencies = sorted(report.latencies)
    return {
        "requests": len(load),
        "completed": len(report.texts),
        "refused": report.refused,
        "left": report.left,
        "failed": report.failed[:5],
        "wrong": len(wrong),
        "missing": len(missing),
        "rows_left": left,
        "engine_seconds": alone_seconds,
        "server_seconds": report.seconds,
        "engine_requests_per_second": len(wanted) / alone_seconds,
        "server_requests_per_second": len(report.texts) / report.seconds,
        "ratio": (len(report.texts) / report.seconds) / (len(wanted) / alone_seconds),
        "engine_cpu_seconds": alone_cpu,
        "server_cpu_seconds": used,
        "cpu_ratio": (len(report.texts) / used) / (len(wanted) / alone_cpu),
        "latency_p50": latencies[len(latencies) // 2] if latencies else None,
        "latency_p95": latencies[int(len(latencies) * 0.95)] if latencies else None,
        "peak_memory_at_a_quarter_mib": early,
        "peak_memory_at_the_end_mib": peak_memory(),
    }


def one_client(
    model: Any, prompt: str, *, plan: str, fields: dict[str, Any], rounds: int
) -> dict[str, float]:
    """Time to the last token of one answer: `model.generate` and one streaming client, in turns."""
    import httpx

    from serving import serving

    times: dict[str, list[float]] = {"generate": [], "server": []}
    with serving(model, plan=plan, fields=fields) as running, httpx.Client(timeout=300) as http:
        body = {
            "model": model.name,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
        }
        for _ in range(rounds + 1):
            begun = time.perf_counter()
            model.generate([prompt], plan, **fields)
            times["generate"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            with http.stream("POST", running.url + "/v1/chat/completions", json=body) as reply:
                reply.read()
            times["server"].append(time.perf_counter() - begun)
    medians = {name: sorted(values[1:])[rounds // 2] for name, values in times.items()}
    return {**medians, "ratio": medians["server"] / medians["generate"]}


def shaped_model(shape: str, device: str, layers: int | None) -> Any:
    """Random weights in the shape of a released model, with a character tokenizer and its first ids as roles."""
    from decode import ROLES, network  # studies/benchmarks/decode.py

    from voidpad.models import Card, Model
    from voidpad.models.fresh import character_tokenizer

    net = network(shape, device, layers)
    tokenizer = character_tokenizer(64)
    Model.fingerprint = property(
        lambda self: f"random {shape}"
    )  # hashing 16 GB of random numbers says nothing
    card = Card("dream" if shape == "dream-7b" else "llada", ROLES)
    return Model(net.config, tokenizer, card, f"random {shape}", net=net)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", help="random weights of this shape: llada-8b or dream-7b")
    parser.add_argument("--model", default="tiny-void")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, help="fewer layers, for a rehearsal")
    parser.add_argument("--threads", type=int, default=1, help="of the network on a CPU, on both sides")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--canvas", type=int, default=48)
    parser.add_argument("--prompts", default="", help="shortest and longest prompt in tokens, such as 32,256")
    parser.add_argument("--answers", default="", help="shortest and longest answer in tokens, such as 16,64")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    from voidpad.commands.process import prepare_process

    prepare_process()  # as `voidpad serve` does
    import torch

    torch.set_num_threads(given.threads)
    if given.shape:
        model = shaped_model(given.shape, given.device, given.layers)
        plan, fields = "original", {"canvas": given.canvas, "block": 32, "threshold": 0.9}
        lengths: dict[str, Any] = {"prompts": (64, 1024), "answers": (32, given.canvas)}
    else:
        from voidpad.models import load

        model = load(given.model, device=given.device)
        plan, fields = "void", {"canvas": given.canvas, "block": 16, "threshold": 0.9}
        lengths = {"prompts": (8, 48), "answers": (8, given.canvas)}
    for name in ("prompts", "answers"):
        if text := getattr(given, name):
            lengths[name] = tuple(map(int, text.split(",")))
    special = model.roles.all()
    vocab = (
        range(max(special) + 1, model.net.config.vocab_size)
        if not given.shape
        else range(100, min(50_000, model.net.config.vocab_size))
    )
    load = make_load(vocab, given.requests, seed=1, **lengths)
    figures = measure(
        model, load, plan=plan, fields=fields, clients=given.clients, rows=given.rows, tokens=given.tokens
    )
    if not given.shape:
        prompt = "Tom has 13 cards.\n(1) Tom makes it 5 times as many.\n(2) Ann brings 21.\nCount the cards after (2)."
        figures["one_client"] = one_client(model, prompt, plan=plan, fields=fields, rounds=15)
    text = json.dumps(figures, indent=1)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
