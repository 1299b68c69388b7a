"""The laws of the engine: whoever shares a pass, each row is what it would be alone."""

import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import psutil
import pytest
import torch

import reference
from cases import Case, case, watch
from test_laws import result
from toys import LOW, SEPARATOR, Chaos, Toy
from voidpad.decode import Outcome, decode, plan, wanted
from voidpad.decode.length import Fixed as FixedLength
from voidpad.engine.batching import Engine
from voidpad.engine.events import Event, Failed, Finished, Started, Wrote
from voidpad.errors import ConfigError, RoleError, VoidpadError
from voidpad.roles import Roles

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
        steps = decode(
            Toy(self.case.logits), [self.prompt], LOW, self.case.plan, seed=self.case.seed, keys=[self.key]
        )
        canvas = [LOW.mask] * self.case.plan.length.canvas
        for _ in range(calls):
            canvas = next(steps).after.answer(0)
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


def submit(engine: Engine, job: Job) -> int:
    return engine.submit(job.prompt, job.case.plan, seed=job.case.seed, key=job.key)


def ended(events: list[Event]) -> list[Outcome]:
    assert not [event for event in events if isinstance(event, Failed)]
    return [event.outcome for event in events if isinstance(event, Finished)]


def drain(engine: Engine) -> list[Outcome]:
    return ended(list(engine.events()))


def idle(engine: Engine) -> bool:
    return not (engine.busy or engine.live or engine.waiting or engine.handles)


# ------------------------------------------------------------------------------------- equal to one row
LARGE = [(200, 24, 400), pytest.param(2000, 24, 400, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("count", "rows", "tokens"), [(30, 1, 10**6), (40, 64, 60), (40, 7, 100), *LARGE])
def test_every_row_of_a_mixed_pool_is_its_one_row_decode(count, rows, tokens):
    """Random lengths, canvases and plans. In a large pool, rows are cancelled while they wait and while they decode."""
    rng, large = random.Random(count), count >= 200
    some = jobs(count, first=0 if large else 1000 * rows, plans=24 if large else None)
    pool = pool_of(some)
    told: list[int] = []
    engine = Engine(pool, LOW, rows=rows, tokens=tokens, ended=told.append)
    waiting, done, asked = some[::-1], [], set()
    memory: list[tuple[int, int]] = []
    while waiting or engine.busy:
        while waiting and engine.waiting < 40:
            submit(engine, waiting.pop())
        if large and rng.random() < 0.3:
            key = rng.choice([*engine.handles, rng.randrange(count)])  # waiting, live, over or unknown
            engine.cancel(key)
            asked.add(key)
        done += [(row, pool.calls[row.key]) for row in ended(engine.step())]
        if large and len(done) * 4 > count * (1 + len(memory)):  # at a quarter, a half and three quarters
            memory.append(footprint())
    assert idle(engine)
    assert sorted(row.key for row, _ in done) == list(range(count))
    assert sorted(told) == sorted(row.key for row, calls in done if calls)
    assert max(pool.rows) <= rows
    assert all(size <= tokens or number == 1 for size, number in zip(pool.sizes, pool.rows, strict=True))
    for row, calls in done:
        assert calls == row.passes
        if row.stop_reason != "cancelled":
            assert result(row) == result(some[row.key].alone()), row.key
            assert row.seconds > 0
        else:
            assert row.ids == (some[row.key].after(calls) if calls else []), row.key
            assert row.tokens == row.ids[: len(row.tokens)]
            assert LOW.mask not in row.tokens
    assert sum(row.passes_shared for row, _ in done)
    cancelled = Counter(calls > 0 for row, calls in done if row.stop_reason == "cancelled")
    assert {row.key for row, _ in done if row.stop_reason == "cancelled"} <= asked
    if large:
        assert min(cancelled[live] for live in (False, True)) > count / 100
        assert flat([size for size, _ in memory])
        assert flat([tensors for _, tensors in memory], slack=300)  # of the rows in flight


def footprint() -> tuple[int, int]:
    gc.collect()
    alive = sum(type(thing) is torch.Tensor for thing in gc.get_objects())
    return psutil.Process().memory_info().rss, alive


def flat(sizes: list[int], slack: int = 0) -> bool:
    return max(sizes) <= 1.05 * sizes[0] + slack


# ------------------------------------------------------------------------------------- order and keys


def test_equal_seeds_and_draw_keys_give_equal_rows_whatever_the_handle_and_the_company():
    warm = plan("void", canvas=8, block=4, temperature=1.0)
    alone = Engine(Toy(CALM), LOW)
    alone.submit(prompt(4), warm, seed=3, key=2)
    [wanted] = drain(alone)
    crowd = Engine(Toy(CALM), LOW, rows=5)
    handles = [crowd.submit(prompt(size), warm, seed=size, key=2**40) for size in (3, 9, 4)]
    twins = [crowd.submit(prompt(4), warm, seed=3, key=2) for _ in range(4)]
    other = crowd.submit(prompt(4), warm, seed=3, key=1)
    assert [*handles, *twins, other] == list(range(8))
    done = {event.handle: event.outcome for event in crowd.events() if isinstance(event, Finished)}
    assert crowd.submit(prompt(4), warm) == 8  # never given twice
    for handle in twins:
        assert result(done[handle]) == result(wanted)
    assert done[other].ids != wanted.ids


# ---------------------------------------------------------------------------------------- limits


GROWING = plan("void-expansion", canvas=4, limit=24, block=4, window=4, tau_nonvoid=0.0, tau_gap=-1.0)


def test_rows_that_outgrow_the_limit_rest_in_turn_and_finish():
    pool = Pool({key: Toy(CALM) for key in range(6)})
    engine = Engine(pool, LOW, tokens=48)
    for key in range(6):
        engine.submit(prompt(2), GROWING if key % 2 else GROWING.replace(cut=False), key=key)
    done = ended(engine.step())
    assert pool.rows == [6]  # 6 x (2 + 4) tokens fit
    for _ in range(59):
        done += ended(engine.step())
    calls = [pool.calls[key] for key in range(6)]
    assert max(calls) - min(calls) <= 2
    done += drain(engine)
    assert sorted(row.key for row in done) == list(range(6))
    assert min(pool.rows) == 1  # 26 tokens a row: one at a time, the others rest
    assert max(pool.sizes) <= 48
    assert {row.canvas for row in done} == {24}
    for row in done:
        assert pool.calls[row.key] == row.passes
        assert (row.passes_probe, row.passes_decode, row.passes_shared) == (6, 24, 1)


# ------------------------------------------------------------------------------- the budget and fairness
@pytest.mark.parametrize(("tokens", "fits"), [(40, 4), (49, 4), (50, 5), (59, 5)])
def test_the_token_budget_counts_prompt_and_canvas_of_every_row(tokens, fits):
    """Rows of 2 + 8 tokens: as many are live as fit, from the first pass on and while others take their places."""
    pool = Pool({key: Toy(CALM) for key in range(12)})
    engine = Engine(pool, LOW, tokens=tokens)
    for key in range(12):
        engine.submit(prompt(2), plan("original", canvas=8 if key else 4, block=4), key=key)
    counts = []
    while engine.busy:
        engine.step()
        counts.append(sum(len(rows) for rows in engine.live.values()))
    assert counts[0] == fits + (tokens % 10 >= 4)  # the first row has 6 tokens
    assert counts[4] == fits  # and is over after 4 passes
    assert max(pool.rows) == counts[0]
    assert max(pool.sizes) <= tokens


@pytest.mark.parametrize("size", [30, 100])
def test_a_long_row_does_not_keep_short_ones_out(size):
    """A row of more than half the budget, or of more than all of it, is live; short rows come one after another."""
    pool = Pool({key: Toy(CALM) for key in range(12)})
    engine = Engine(pool, LOW, tokens=48, rows=4)
    long = engine.submit(prompt(2), plan("original", canvas=size, block=size), key=0)
    engine.step()
    waits, ends = [], {}
    for key in range(1, 12):
        handle, before = engine.submit(prompt(3), WORDS, key=key), engine.passes
        while handle in engine.handles:
            ends |= {event.handle: engine.passes for event in engine.step() if isinstance(event, Finished)}
        waits.append(engine.passes - before)
    assert max(waits) <= 2 * 8  # 8 passes of its own, one of the long row between two of them at most
    while long in engine.handles:
        ends |= {event.handle: engine.passes for event in engine.step() if isinstance(event, Finished)}
    assert pool.calls[0] == size
    assert ends[long] <= 2 * size


def test_short_rows_that_keep_coming_do_not_keep_a_long_one_out():
    pool = Pool({key: Toy(CALM) for key in range(500)})
    engine = Engine(pool, LOW, tokens=48, rows=4)
    key = 1
    for _ in range(8):
        engine.submit(prompt(3), WORDS, key=key)
        key += 1
    long = engine.submit(prompt(2), plan("original", canvas=60, block=60), key=0)
    while long in engine.handles:
        while engine.waiting < 8 and key < 500:
            engine.submit(prompt(3), WORDS, key=key)
            key += 1
        engine.step()
        assert engine.passes < 200
    assert pool.calls[0] == 60
    assert key > 30  # short rows were there all the time
    assert all(size <= 48 or count == 1 for size, count in zip(pool.sizes, pool.rows, strict=True))


# ------------------------------------------------------------------------------------ a limit of the row's own
def test_a_row_with_a_limit_is_the_row_of_a_plan_with_that_limit():
    """And rows with different limits share one group of a pass."""
    shorter = 0
    for number in range(15):
        c = case(number)
        rule = c.plan.length
        limits = [None, *(max(1, rule.longest * part // 6) for part in (1, 2, 3, 5))]
        engine = Engine(c.denoise, c.roles)
        [ids] = c.prompts[:1]
        for key, limit in enumerate(limits):
            engine.submit(ids, c.plan, seed=c.seed, key=key, limit=limit)
        groups: list[int] = []
        done: dict[int, Outcome] = {}
        for event in engine.events():
            if isinstance(event, Wrote):
                groups.append(len(event.handles))
                over = event.step.after.length > event.step.after.limit
                assert not over.any(), number
            elif isinstance(event, Finished):
                done[event.outcome.key] = event.outcome
        assert groups[0] == len(limits)
        for key, limit in enumerate(limits):
            bound = rule.longest if limit is None else limit
            fields = {"limit": bound} if "limit" in type(rule).model_fields else {}
            fitted = c.plan.replace(length=rule.replace(canvas=min(rule.canvas, bound), **fields))
            [alone] = watch(c.denoise, [ids], c.roles, fitted, seed=c.seed, keys=[key])
            assert result(done[key]) == result(alone.outcome), (number, limit)
            assert done[key].canvas <= bound
            shorter += done[key].ids != done[0].ids
    assert shorter > 10


# --------------------------------------------------------------------------------------- life of a row
def test_events_tell_the_life_of_every_row():
    some = jobs(20, first=300)
    engine = Engine(pool_of(some), LOW, rows=3)
    handles = [submit(engine, job) for job in some]
    kinds: dict[int, list[type]] = {handle: [] for handle in handles}
    canvases: dict[int, list[int]] = {}
    for event in engine.events():
        if not isinstance(event, Wrote):
            kinds[event.handle].append(type(event))
        else:
            for row, handle in enumerate(event.handles):
                kinds[handle].append(Wrote)
                canvases[handle] = event.step.after.answer(row)
        if isinstance(event, Finished):
            taken = event.outcome.passes_probe + event.outcome.passes_decode - event.outcome.passes_shared
            assert kinds[event.handle] == [Started, *[Wrote] * taken, Finished]
            assert canvases[event.handle] == event.outcome.ids
    assert all(kind[-1] is Finished for kind in kinds.values())


def test_a_row_past_its_deadline_ends_with_what_it_has(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)  # stands still, so that the first pass is in time
    told: list[int] = []
    engine = Engine(Toy(CALM), LOW, ended=told.append)
    for key, deadline in enumerate((now - 1, now + 0.05, now + 3600, None)):
        engine.submit(prompt(3 + key), WORDS, key=key, deadline=deadline)
    [never_started] = ended(engine.step())
    assert (never_started.key, never_started.stop_reason, never_started.ids) == (0, "deadline", [])
    assert told == []
    now += 0.06
    [late] = ended(engine.step())
    assert (late.key, late.stop_reason, late.passes_decode) == (1, "deadline", 1)
    assert sum(token != LOW.mask for token in late.ids) == 1
    assert late.tokens == ([] if late.ids[0] == LOW.mask else late.ids[:1])
    for row in drain(engine):
        assert result(row) == alone(row.key)
    assert told[0] == 1
    assert sorted(told) == [1, 2, 3]
    assert idle(engine)


def test_a_row_may_be_ended_early_by_whoever_knows_that_it_is_complete():
    engine = Engine(Toy(CALM), LOW)
    handle = engine.submit(prompt(3), WORDS)
    for _ in range(5):
        engine.step()
    engine.end_early(handle)
    engine.cancel(handle)  # the first reason holds
    [row] = drain(engine)
    assert (row.stop_reason, row.passes_decode) == ("stop", 5)
    assert idle(engine)


def test_rows_come_and_go_from_other_threads():
    """One thread decodes; eight submit, cancel and end rows. Every row ends once, untouched ones as alone."""
    some = jobs(100, first=500, plans=12)
    pool = pool_of(some)
    engine = Engine(pool, LOW, rows=12, tokens=300)
    submitted: dict[int, Job] = {}
    touched: set[int] = set()
    finished: list[tuple[int, Outcome]] = []
    done = threading.Event()

    def decode_all() -> None:
        while not done.is_set() or engine.busy:
            if engine.wait(0.05):
                finished.extend((e.handle, e.outcome) for e in engine.step() if isinstance(e, Finished))

    def client(number: int) -> None:
        rng = random.Random(number)
        for job in some[number::8]:
            handle = submit(engine, job)
            submitted[handle] = job
            if rng.random() < 0.2:
                touched.add(handle)
                time.sleep(rng.random() * 0.01)
                (engine.cancel if rng.random() < 0.5 else engine.end_early)(handle)

    decoder = threading.Thread(target=decode_all)
    decoder.start()
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(client, range(8)))
    done.set()
    decoder.join(600)
    assert not decoder.is_alive()
    assert idle(engine)
    assert sorted(handle for handle, _ in finished) == sorted(submitted)
    for handle, row in finished:
        assert row.key == submitted[handle].key
        if handle not in touched:
            assert result(row) == result(submitted[handle].alone())
        else:
            ended_by_itself = row.stop_reason not in ("cancelled", "stop")
            assert not ended_by_itself or result(row) == result(submitted[handle].alone())


def test_waiting_for_work_ends_when_another_thread_wakes_it():
    engine = Engine(Toy(CALM), LOW)
    timer = threading.Timer(0.02, engine.wake)
    timer.start()
    started = time.monotonic()
    assert not engine.wait(30)
    assert time.monotonic() - started < 20
    timer.join()
    engine.wake()  # before the wait: it must not be lost
    assert not engine.wait(30)
    assert time.monotonic() - started < 20
    assert not engine.wait(0.01)  # and it counts once


def test_observers_see_more_logits_and_change_nothing():
    some = jobs(30, first=900)
    plain = Engine(pool_of(some), LOW, rows=8)
    watched = Engine(pool_of(some), LOW, rows=8)
    some = [replace(job, case=replace(job.case, settings=some[job.key // 10].case.settings)) for job in some]
    for job in some:  # ten rows share a plan
        submit(plain, job)
        observe = None if job.key % 3 == 0 else everywhere
        watched.submit(job.prompt, job.case.plan, seed=job.case.seed, key=job.key, observe=observe)
    seen = 0
    done: list[Outcome] = []
    for event in watched.events():
        if isinstance(event, Finished):
            done.append(event.outcome)
        elif isinstance(event, Wrote):
            step = event.step
            assert len(step.logits) == int(step.where.sum())
            for row, key in enumerate(step.before.key.tolist()):
                needed = step.before.slots if key % 3 else wanted(step.before, event.plan)
                assert torch.equal(step.where[row], needed[row])
                seen += key % 3 > 0
    assert seen > 50
    assert {row.key: result(row) for row in done} == {row.key: result(row) for row in drain(plain)}


def everywhere(canvas):
    return canvas.slots


# ------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("ids", "roles", "error"),
    [
        ([], LOW, ConfigError),
        ([6, LOW.mask, 7], LOW, ConfigError),
        ([6, 7], Roles(mask=0, eos=1), RoleError),  # the plan bans VOID
    ],
)
def test_impossible_prompts_are_refused_at_the_door(ids, roles, error):
    engine = Engine(Toy(CALM), roles)
    with pytest.raises(error):
        engine.submit(ids, WORDS)
    assert idle(engine)


# ------------------------------------------------------------------------------------- passes that fail
@dataclass
class Flaky:
    """A denoiser that fails, or gives what `spoil` makes of the row's logits, while one of the rows named is there."""

    inner: Toy
    keys: set[int]
    spoil: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __call__(self, canvas, where):
        logits = self.inner(canvas, where)
        present = canvas.key.tolist()
        if self.keys.isdisjoint(present):
            return logits
        if self.spoil is None:
            raise MemoryError("no room")
        spoilt = logits.clone()
        row = where.nonzero()[:, 0]
        for number, key in enumerate(present):
            if key in self.keys:
                spoilt[row == number] = self.spoil(logits[row == number])
        return spoilt


def one_nan(logits: torch.Tensor) -> torch.Tensor:
    spoilt = logits.clone()
    spoilt[-1, -1] = torch.nan
    return spoilt


SHORT = {"canvas": 8, "block": 4, "limit": 12}
# Of the rows by key: three share a plan, and every length rule is there.
PLANS = [WORDS, WORDS, WORDS, WORDS.replace(cut=False), plan("smart-crop", canvas=8, block=4)]
PLANS += [plan(name, **SHORT) for name in ("void-expansion", "daedal", "rho-eos")]
KEYS = range(len(PLANS))


def alone(key: int) -> dict:
    fresh = Engine(Toy(CALM), LOW)
    fresh.submit(prompt(3 + key), PLANS[key], key=key)
    return result(drain(fresh)[0])


def errors_of_rows_that_fail_alone(engine: Engine, bad: set[int]) -> set[type]:
    """Decode all rows. The bad ones fail, each alone; the others are what they would be without them."""
    events = list(engine.events())
    failed = [event for event in events if isinstance(event, Failed)]
    assert sorted(event.handles for event in failed) == [(handle,) for handle in sorted(bad)]
    done = {event.handle: event.outcome for event in events if isinstance(event, Finished)}
    assert sorted(done) == sorted(set(KEYS) - bad)
    for handle, row in done.items():
        assert result(row) == alone(handle)
    assert idle(engine)
    return {type(event.error) for event in failed}


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("bad", [{2}, {0, 5}, set(KEYS)], ids=str)
@pytest.mark.parametrize(
    "spoil",
    [None, one_nan, lambda z: torch.full_like(z, torch.inf), lambda z: torch.full_like(z, -torch.inf)],
    ids=["no memory", "nan", "inf", "-inf"],
)
def test_a_row_that_makes_a_pass_fail_fails_alone_and_the_engine_goes_on(rows, bad, spoil):
    """Logits that are no numbers are an error, and never an answer."""
    told: list[int] = []
    engine = Engine(Flaky(Toy(CALM), bad, spoil), LOW, rows=rows, ended=told.append)
    for key in KEYS:
        engine.submit(prompt(3 + key), PLANS[key], key=key)
    assert errors_of_rows_that_fail_alone(engine, bad) == {MemoryError if spoil is None else VoidpadError}
    assert sorted(told) == list(KEYS)


class Breaks(FixedLength):
    """A length rule that fails when it is asked this."""

    where: str = ""

    def watch(self, rows):
        return broken() if self.where == "watch" else super().watch(rows)

    def revise(self, *args):
        return broken() if self.where == "revise" else super().revise(*args)


def broken(*_):
    raise OverflowError("too large")


@pytest.mark.parametrize("where", ["watch", "revise", "observe"])
def test_rules_that_fail_take_only_their_own_row_along(where):
    """However late the rule is asked."""
    engine = Engine(Toy(CALM), LOW)
    for key in KEYS:
        breaks = key == 1 and where != "observe"
        chosen = WORDS.replace(length=Breaks(canvas=8, where=where)) if breaks else PLANS[key]
        observe = broken if key == 1 and where == "observe" else None
        engine.submit(prompt(3 + key), chosen, key=key, observe=observe)
    assert errors_of_rows_that_fail_alone(engine, {1}) == {OverflowError}


def test_a_pass_that_does_not_fit_is_run_in_parts():
    """Out of memory with many rows is no row's fault: nobody fails. A part may overwrite the logits of the one before,
    as a CUDA graph does."""
    pool = Pool({key: Toy(CALM) for key in range(8)})
    given: list[torch.Tensor] = []

    def small(canvas, where):
        if len(canvas) > 2:
            raise MemoryError("no room")
        for logits in given:
            logits.fill_(torch.nan)
        given[:] = [pool(canvas, where)]
        return given[0]

    engine = Engine(small, LOW)
    for key in KEYS:
        engine.submit(prompt(3 + key), PLANS[key], key=key)
    for row in drain(engine):
        assert result(row) == alone(row.key)


def test_the_loss_of_the_device_is_raised():
    def lost(canvas, where):
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    engine = Engine(lost, LOW)
    engine.submit(prompt(3), WORDS)
    with pytest.raises(torch.AcceleratorError):
        engine.step()


def test_outcomes_raise_the_error_of_a_failed_pass():
    engine = Engine(Flaky(Toy(CALM), {1}), LOW)
    with pytest.raises(MemoryError, match="no room"):
        list(engine.run([prompt(3), prompt(3)], WORDS))
