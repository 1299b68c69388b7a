"""The laws of the engine: whoever shares a pass, each row is what it would be alone."""

import gc
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import psutil
import pytest
import torch

import reference
from cases import Case, case, steps_of
from toys import LOW, SEPARATOR, Chaos, Toy, World
from voidpad.commands.calibrate import own_prompts
from voidpad.decode import Outcome, decode, plan
from voidpad.engine.batching import Engine
from voidpad.engine.packed import Packed
from voidpad.errors import ConfigError, RoleError
from voidpad.models import Model, load
from voidpad.roles import Roles

RESULT = ("ids", "tokens", "passes_decode", "passes_probe", "canvas", "stop_reason")
WORDS = plan("void", canvas=8, block=4)  # 8 passes, unless EOS comes earlier
CALM = Chaos(LOW, 1, lean=((LOW.eos, -9.0),))  # never ends early


def prompt(size: int) -> list[int]:
    return [6 + n % 5 for n in range(size - 1)] + [SEPARATOR[LOW]]


@dataclass
class Pool:
    """One denoiser for many toys: a row is answered by the toy of its key. Sizes of the passes are kept."""

    toys: dict[int, Toy] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)  # tokens of each pass
    rows: list[int] = field(default_factory=list)
    calls: Counter = field(default_factory=Counter)

    def __call__(self, canvas, where):
        self.sizes.append(int(canvas.stop.sum()))
        self.rows.append(len(canvas))
        self.calls.update(canvas.key.tolist())
        parts = []
        for row, key in enumerate(canvas.key.tolist()):
            alone = torch.tensor([row])
            one = canvas.select(alone)
            parts.append(self.toys[key](one, where[alone][:, : one.ids.shape[1]]))
        return torch.cat(parts)


@dataclass(frozen=True)
class Job:
    """One row of a generated case, with a key of its own."""

    key: int
    case: Case
    prompt: list[int]

    def alone(self) -> reference.Result:
        c = self.case
        return reference.decode(c.logits, self.prompt, c.roles, c.settings, seed=c.seed, key=self.key)

    def after(self, calls: int) -> list[int]:
        """The canvas after so many passes alone."""
        steps = steps_of(
            Toy(self.case.logits), [self.prompt], LOW, self.case.plan, seed=self.case.seed, keys=[self.key]
        )
        canvas = [LOW.mask] * self.case.plan.length.canvas
        for _ in range(calls):
            canvas = next(steps).after.canvas.answer(0)
        return canvas


def jobs(count: int, *, first: int = 0, plans: int | None = None) -> list[Job]:
    """Rows of generated cases: toys and prompts of all, settings of the first `plans` of them."""
    found: list[Job] = []
    number, kept = first, []
    while len(found) < count:
        c, number = case(number), number + 1
        if c.roles != LOW:
            continue
        kept.append(c.settings)
        if plans is not None:
            c = replace(c, settings=kept[len(found) % min(plans, len(kept))])
        found += [Job(len(found) + n, c, ids) for n, ids in enumerate(c.prompts)]
    return found[:count]


def pool_of(some: list[Job]) -> Pool:
    return Pool({job.key: Toy(job.case.logits) for job in some})


def submit(engine: Engine, job: Job) -> None:
    engine.submit(job.prompt, job.case.plan, seed=job.case.seed, key=job.key)


def drain(engine: Engine) -> list[Outcome]:
    found: list[Outcome] = []
    while engine.busy:
        found += engine.step()
    return found


def result(row) -> dict:
    return {name: getattr(row, name) for name in RESULT}


def idle(engine: Engine) -> bool:
    return not (engine.busy or engine.live or engine.waiting or engine.since or engine.cancelled)


# ------------------------------------------------------------------------------------- equal to one row
@pytest.mark.parametrize(("rows", "tokens"), [(1, 10**6), (3, 10**6), (64, 60), (7, 100), (64, 10**6)])
def test_every_row_of_a_mixed_pool_is_its_one_row_decode(rows, tokens):
    some = jobs(60, first=1000 * rows)
    pool = pool_of(some)
    engine = Engine(pool, LOW, rows=rows, tokens=tokens)
    for job in some:
        submit(engine, job)
    done = drain(engine)
    assert sorted(row.key for row in done) == [job.key for job in some]
    assert idle(engine)
    for row in done:
        assert result(row) == result(some[row.key].alone()), row.key
        assert pool.calls[row.key] == row.passes_probe + row.passes_decode - row.passes_shared
        assert row.seconds > 0
    assert sum(row.passes_shared for row in done)
    assert max(pool.rows) <= rows
    for size, count in zip(pool.sizes, pool.rows, strict=True):
        assert size <= tokens or count == 1


def test_the_limits_are_used():
    """Rows join as soon as others leave: short answers do not wait for long ones."""
    pool = Pool({key: Toy(CALM) for key in range(40)})
    engine = Engine(pool, LOW, rows=4, tokens=10**6)
    for key in range(40):
        engine.submit(prompt(3), plan("original", canvas=4 * (1 + key % 5), block=4), key=key)
    done = drain(engine)
    work = sum(row.passes_decode for row in done)
    assert work == sum(pool.rows) == sum(4 * (1 + key % 5) for key in range(40))
    assert len(pool.rows) <= work / 4 + 20  # full but for the last rows
    assert (engine.passes, engine.took_part, engine.tokens_read) == (
        len(pool.rows),
        pool.rows[-1],
        pool.sizes[-1],
    )


def test_rows_may_be_submitted_while_others_run():
    some = jobs(30, first=77)
    engine = Engine(pool_of(some), LOW, rows=5)
    done: list[Outcome] = []
    for job in some:
        submit(engine, job)
        done += engine.step()
    done += drain(engine)
    assert sorted(row.key for row in done) == [job.key for job in some]
    for row in done:
        assert result(row) == result(some[row.key].alone())


# ------------------------------------------------------------------------------------- order and keys
def test_run_keys_rows_by_their_place():
    prompts = [prompt(size) for size in (5, 2, 9, 4)]
    world = World(LOW, 3)
    engine = Engine(Toy(world), LOW, rows=2)
    done = {row.key: row for row in engine.run(prompts, WORDS)}
    assert sorted(done) == [0, 1, 2, 3]
    again = {row.key: row for row in engine.run(prompts[::-1], WORDS)}  # keys are free again
    for key, row in done.items():
        assert row.ids == again[3 - key].ids  # greedy: the key has no say


def test_keys_are_counted_and_never_given_twice():
    engine = Engine(Toy(CALM), LOW)
    assert [engine.submit(prompt(2), WORDS) for _ in range(3)] == [0, 1, 2]
    assert engine.submit(prompt(2), WORDS, key=7) == 7
    assert engine.submit(prompt(2), WORDS) == 8
    for moment in ("waiting", "live"):
        with pytest.raises(ConfigError, match="key=7 is in use"):
            engine.submit(prompt(2), WORDS, key=7)
        if moment == "waiting":
            engine.step()
    assert sorted(row.key for row in drain(engine)) == [0, 1, 2, 7, 8]
    assert engine.submit(prompt(2), WORDS, key=7) == 7


def test_randomness_hangs_on_seed_and_key_alone():
    warm = plan("void", canvas=8, block=4, temperature=1.0)

    def texts(engine: Engine, keys, seed: int) -> dict[int, list[int]]:
        for key in keys:
            engine.submit(prompt(4), warm, seed=seed, key=key)
        return {row.key: row.ids for row in drain(engine)}

    wide, narrow = (texts(Engine(Toy(CALM), LOW, rows=rows), range(6), 5) for rows in (6, 1))
    some = texts(Engine(Toy(CALM), LOW), (4, 2), 5)
    assert wide == narrow
    assert some == {key: wide[key] for key in (4, 2)}
    assert len({tuple(ids) for ids in wide.values()}) > 1
    assert texts(Engine(Toy(CALM), LOW), range(6), 6) != wide


# ---------------------------------------------------------------------------------------- limits
def test_a_row_larger_than_the_token_limit_still_runs():
    sizes = [30, 3, 40, 3]
    pool = Pool({key: Toy(CALM) for key in range(4)})
    engine = Engine(pool, LOW, tokens=20)
    for key, size in enumerate(sizes):
        engine.submit(prompt(size), WORDS, key=key)
    done = {row.key: row for row in drain(engine)}
    assert sorted(done) == [0, 1, 2, 3]
    assert [
        size for size, count in zip(pool.sizes, pool.rows, strict=True) if count > 1
    ] == []  # 11 + 38 > 20
    assert {size for size in pool.sizes if size > 20} == {38, 48}


GROWING = plan("void-expansion", canvas=4, limit=24, block=4, window=4, tau_nonvoid=0.0, tau_gap=-1.0)


def test_rows_that_outgrow_the_limit_rest_and_finish():
    pool = Pool({key: Toy(CALM) for key in range(6)})
    engine = Engine(pool, LOW, tokens=48)
    for key in range(6):
        engine.submit(prompt(2), GROWING, key=key)
    engine.step()
    assert pool.rows == [6]  # 6 x (2 + 4) tokens fit
    done = drain(engine)
    assert sorted(row.key for row in done) == list(range(6))
    assert min(pool.rows) == 1  # 26 tokens a row: one at a time, the others rest
    assert max(pool.sizes) <= 48
    assert {row.canvas for row in done} == {24}
    for row in done:
        assert pool.calls[row.key] == row.passes_probe + row.passes_decode - row.passes_shared
        assert (row.passes_probe, row.passes_decode, row.passes_shared) == (6, 24, 1)


def test_resting_rows_take_turns():
    pool = Pool({key: Toy(CALM) for key in range(6)})
    engine = Engine(pool, LOW, tokens=48)
    for key in range(6):
        engine.submit(prompt(2), GROWING if key % 2 else replace(GROWING, cut=False), key=key)
    for _ in range(60):
        engine.step()
    calls = [pool.calls[key] for key in range(6)]
    assert max(calls) - min(calls) <= 2


@pytest.mark.parametrize("limits", [{"rows": 0}, {"tokens": 0}, {"rows": -3}])
def test_limits_without_room_are_refused(limits):
    with pytest.raises(ConfigError, match="leaves no room for a row; use at least 1"):
        Engine(Toy(CALM), LOW, **limits)


# ---------------------------------------------------------------------------------------- cancelling
def test_a_waiting_row_is_cancelled_before_it_starts():
    engine = Engine(Toy(CALM), LOW, rows=1)
    for _ in range(3):
        engine.submit(prompt(3), WORDS)
    engine.cancel(2)
    [gone] = engine.step()
    assert gone == Outcome(2, [], [], 0, 0, 0, "cancelled")
    rest = drain(engine)
    assert [row.key for row in rest] == [0, 1]
    assert {row.stop_reason for row in rest} == {"full"}
    assert idle(engine)


@pytest.mark.parametrize("number", range(12))
def test_a_live_row_comes_out_with_what_it_has(number):
    some = jobs(5, first=40 * number)
    pool = pool_of(some)
    told: list[int] = []
    engine = Engine(pool, LOW, ended=told.append)
    for job in some:
        submit(engine, job)
    passes = number % 4
    done = [row for _ in range(passes) for row in engine.step()]
    over = {row.key for row in done}
    engine.cancel(3)
    done += drain(engine)
    assert sorted(told) == sorted(row.key for row in done if row.passes_decode + row.passes_probe)
    for row in done:
        if row.key != 3 or 3 in over:
            assert result(row) == result(some[row.key].alone())
            continue
        assert row.stop_reason == "cancelled"
        assert row.ids == (some[3].after(passes) if passes else [])
        assert pool.calls[3] == row.passes_probe + row.passes_decode - row.passes_shared == passes
    assert idle(engine)


def test_cancelling_what_is_over_or_unknown_changes_nothing():
    engine = Engine(Toy(CALM), LOW)
    engine.submit(prompt(3), WORDS)
    [done] = drain(engine)
    engine.submit(prompt(3), WORDS)
    engine.cancel(done.key)
    engine.cancel(99)
    [other] = drain(engine)
    assert (other.key, other.ids, other.stop_reason) == (1, done.ids, "full")
    assert idle(engine)


def test_a_cancelled_row_makes_room():
    engine = Engine(pool := Pool({key: Toy(CALM) for key in range(3)}), LOW, rows=1)
    for key in range(3):
        engine.submit(prompt(3), WORDS, key=key)
    engine.step()
    engine.cancel(0)
    [gone] = engine.step()
    assert (gone.key, gone.passes_decode, gone.stop_reason) == (0, 1, "cancelled")
    assert pool.calls == {0: 1, 1: 1}


# ------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("ids", "roles", "error", "message"),
    [
        ([], LOW, ConfigError, "the prompt is empty"),
        ([6, LOW.mask, 7], LOW, ConfigError, "the prompt holds the mask token 0; remove it"),
        ([6, 7], Roles(mask=0, eos=1), RoleError, "role 'void': this checkpoint has none"),
    ],
)
def test_impossible_prompts_are_refused_at_the_door(ids, roles, error, message):
    engine = Engine(Toy(CALM), roles)
    with pytest.raises(error, match=message):
        engine.submit(ids, WORDS)
    assert idle(engine)


def test_a_failing_pass_loses_no_row():
    pool = Pool({0: Toy(CALM)})  # no toy for the second row
    engine = Engine(pool, LOW)
    engine.submit(prompt(3), WORDS, key=0)
    engine.submit(prompt(4), WORDS, key=1)
    with pytest.raises(KeyError):
        engine.step()
    pool.toys[1] = Toy(CALM)
    done = drain(engine)
    assert sorted(row.key for row in done) == [0, 1]
    assert {row.passes_decode for row in done} == {8}


# --------------------------------------------------------------------------------------------- soak
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_soak(count):
    """Random lengths, canvases and plans through one engine, rows cancelled on the way."""
    rng = random.Random(count)
    some = jobs(count, plans=24)
    pool = pool_of(some)
    engine = Engine(pool, LOW, rows=24, tokens=400)
    waiting, done, asked = some[::-1], [], set()
    memory: list[tuple[int, int]] = []
    while waiting or engine.busy:
        while waiting and len(engine.waiting) < 40:
            submit(engine, waiting.pop())
        if rng.random() < 0.1:
            key = rng.choice([*engine.since, rng.randrange(count)])  # waiting, live, over or unknown
            engine.cancel(key)
            asked.add(key)
        done += [(row, pool.calls[row.key]) for row in engine.step()]
        if len(done) * 4 > count * (1 + len(memory)):  # at a quarter, a half and three quarters
            memory.append(footprint())
    assert idle(engine)
    assert sorted(row.key for row, _ in done) == list(range(count))
    cancelled = [(row, calls) for row, calls in done if row.stop_reason == "cancelled"]
    assert {row.key for row, _ in cancelled} <= asked
    assert len(cancelled) > count / 100
    for row, calls in done:
        assert calls == row.passes_probe + row.passes_decode - row.passes_shared
        if row.stop_reason != "cancelled":
            assert result(row) == result(some[row.key].alone()), row.key
        elif calls:
            assert row.ids == some[row.key].after(calls), row.key
    assert flat([size for size, _ in memory])
    assert flat([tensors for _, tensors in memory], slack=300)  # of the rows in flight


def footprint() -> tuple[int, int]:
    gc.collect()
    alive = sum(type(thing) is torch.Tensor for thing in gc.get_objects())
    return psutil.Process().memory_info().rss, alive


def flat(sizes: list[int], slack: int = 0) -> bool:
    return max(sizes) <= 1.05 * sizes[0] + slack


@pytest.mark.slow
def test_soak_on_the_built_in_model():
    """Float32 on a CPU: every row is its one-row decode, or leaves it at a decision that was all but a tie."""
    model = load("tiny-void")
    prompts = [model.encode(text) for text in own_prompts(200)]
    small = {"canvas": 16, "block": 16}  # 200 one-row decodes on a CPU: room for part of an answer is enough
    plans = [model.plan("void", **small), model.plan("void", canvas=32, block=8)]
    plans.append(model.plan("void-expansion", limit=48, **small))
    engine = Engine(Packed(model.denoiser()), model.roles, rows=16, tokens=2000)
    for key, ids in enumerate(prompts):
        engine.submit(ids, plans[key % 3], key=key)
    engine.cancel(7)
    done = drain(engine)
    assert sorted(row.key for row in done) == list(range(200))
    ties = 0
    for row in done:
        chosen = plans[row.key % 3]
        alone = [
            one
            for step in decode(model.denoiser(), [prompts[row.key]], model.roles, chosen, keys=[row.key])
            for one in step.finished.values()
        ]
        if row.key == 7 or result(row) == result(alone[0]):
            continue
        margin = closest(model, prompts[row.key], chosen, row)
        print(f"near-tie: row {row.key}, margin {margin:.1e}")
        assert margin < 1e-4, row.key
        ties += 1
    assert ties < 10


def closest(model: Model, ids: list[int], chosen, other: Outcome) -> float:
    """The narrowest decision of a one-row decode, between slots or tokens, until it leaves the other's canvas."""
    margin = math.inf
    for step in decode(model.denoiser(), [ids], model.roles, chosen, keys=[other.key]):
        if not step.frontier.any():
            continue
        scores = step.score[0][step.frontier[0]].sort(descending=True).values
        logits = step.logits[step.chosen[step.where]].double().topk(3, dim=1).values
        gaps = [*(scores[:-1] - scores[1:])[:1].tolist(), *(logits[:, 0] - logits[:, 1]).tolist()]
        margin = min(margin, *gaps)
        slots = (step.chosen[0].nonzero()[:, 0] - len(ids)).tolist()
        if any(
            slot >= other.canvas or int(step.tokens[0, slot + len(ids)]) != other.ids[slot] for slot in slots
        ):
            break
    return margin
