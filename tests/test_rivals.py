"""Rules of others that need no training (spec rivals): their worked examples, and the decoder's laws with them on."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

import reference
from cases import Case, case, plan_of, watch
from examples import FILLER, A, B, C, sure
from reference import Appended, Fixed, Settings
from test_laws import cut, result
from toys import LOW, SEPARATOR, Table, Toy, spread
from voidpad.decode import describe, plan
from voidpad.decode.commit import EntropyBound
from voidpad.decode.noise import Noise
from voidpad.decode.propose import Bans, EosPenalty, GumbelProposal
from voidpad.engine.batching import Engine
from voidpad.models import FAMILIES, random_model
from voidpad.models.model import Model

M, EOS, VOID = LOW.mask, LOW.eos, LOW.void


def table(*slots: dict[int, float]) -> Table:
    """The same distributions in every pass."""
    return Table(lambda canvas: list(slots), vocab=64)


def passes(logits: Table, settings: Settings) -> list[list[tuple[int, int, float]]]:
    """What each pass wrote, as (slot from 1, token, score): by voidpad, and by the reference the same."""
    [seen] = watch(Toy(logits), [[5]], LOW, plan_of(settings))
    wanted = reference.decode(logits, [5], LOW, settings)
    for mine, theirs in zip(seen.commits, wanted.commits, strict=True):
        assert [one[:2] for one in mine] == sorted(one[:2] for one in theirs)
    return [[(slot + 1, token, score) for slot, token, score in one] for one in seen.commits]


def first(logits: Table, settings: Settings) -> list[int]:
    """The slots of the first pass, from 1."""
    return [slot for slot, _, _ in passes(logits, settings)[0]]


def entropies(*slots: dict[int, float]) -> list[float]:
    p = torch.zeros(len(slots), 64, dtype=torch.float64)
    for row, chances in enumerate(slots):
        p[row, list(chances)] = torch.tensor(list(chances.values()), dtype=torch.float64)
    zero = torch.zeros(len(slots), dtype=torch.long)
    noise = Noise((zero, zero, zero, torch.arange(len(slots))), torch.device("cpu"))
    found = GumbelProposal()(p.log(), Bans.of((), (), M, 64, p.device), noise, entropy=True)
    return [round(h, 4) for h in found.entropy.tolist()]


# ---------------------------------------------------------------------------------- 0: the ban guard
FIVE = [
    {A: 0.99, B: 0.01},
    {A: 0.97, B: 0.03},
    {A: 0.95, B: 0.03, C: 0.02},
    {A: 0.80, B: 0.15, C: 0.05},
    {A: 0.5, B: 0.3, C: 0.2},
]
WANTS_VOID = {VOID: 0.98, EOS: 0.02}


@pytest.mark.parametrize("score", ["neg_entropy", "margin"])
def test_a_slot_that_wants_a_banned_token_comes_last(score):
    """Its distribution has an entropy of .098 and a margin of .96; the token it would write has .02."""
    slots = [{A: 0.7, B: 0.3}, WANTS_VOID, {VOID: 0.9, B: 0.07, C: 0.03}, {A: 0.5, B: 0.3, C: 0.2}]
    settings = Settings(Fixed(4), 4, ban=(VOID,), score=score)
    order = [one for [one] in passes(table(*slots), settings)]
    assert [slot for slot, _, _ in order] == [1, 4, 3, 2]  # guarded ones by the probability of their tokens
    assert [round(s, 9) for _, _, s in order[2:]] == [0.07 - 1000, 0.02 - 1000]
    muted = replace(settings, mute=(VOID,))
    assert all(score > -1000 for [(_, _, score)] in passes(table(*slots), muted))  # the guard never fires


# ------------------------------------------------------------------------------------ 1.1: EB-Sampler
def bounded(gamma: float, **changes) -> Settings:
    return Settings(Fixed(5), 5, commit="entropy", tau=gamma, **changes)


@pytest.mark.parametrize("by_entropy", [False, True])
def test_entropies_and_bounds_of_the_example(by_entropy):
    assert entropies(*FIVE) == [0.056, 0.1347, 0.2322, 0.6129, 1.0297]

    def written(gamma: float) -> int:
        slots = first(table(*FIVE), bounded(gamma, by_entropy=by_entropy))
        assert slots == list(range(1, len(slots) + 1))
        return len(slots)

    assert [written(gamma) for gamma in (0.001, 0.1, 0.2, 0.5, 1.1)] == [1, 2, 3, 4, 5]
    for count, bound in enumerate((0.0560, 0.1907, 0.4229, 1.0358), start=1):
        assert (written(bound - 1e-4), written(bound + 1e-4)) == (count, count + 1)


def test_the_same_slots_under_a_threshold_and_a_factor():
    assert first(table(*FIVE), Settings(Fixed(5), 5, commit="threshold", tau=0.9)) == [1, 2, 3]
    fourth = {A: 0.80 + 1e-9, B: 0.15, C: 0.05 - 1e-9}  # .80 >= 1 - 1/5, with room for rounding
    slots = table(*FIVE[:3], fourth, FIVE[4])
    assert first(slots, Settings(Fixed(5), 5, commit="factor", tau=1.0)) == [1, 2, 3, 4]


@pytest.mark.parametrize("by_entropy", [False, True])
def test_a_banned_favourite_is_never_within_the_bound(by_entropy):
    """Without the guard D_5 is .5209, so that gamma = .6 would write an EOS of probability .02."""
    slots = table(*FIVE[:4], WANTS_VOID)
    for gamma in (0.6, 1e6):
        assert first(slots, bounded(gamma, ban=(VOID,), by_entropy=by_entropy)) == [1, 2, 3, 4]
    muted = bounded(0.6, ban=(VOID,), mute=(VOID,), by_entropy=by_entropy)
    assert first(slots, muted) == [1, 2, 3, 4, 5]  # renormalised, its EOS has probability 1
    # If every slot fails, the surest is written.
    slots = table(WANTS_VOID, {VOID: 0.6, A: 0.4}, {VOID: 0.6, B: 0.4}, WANTS_VOID, WANTS_VOID)
    assert first(slots, bounded(9.0, ban=(VOID,), by_entropy=by_entropy)) == [2]


def test_order_matters():
    slots = table(spread({A: 0.9}, range(20, 40)), {A: 0.85, B: 0.15})
    assert entropies(*slots.rows([])) == [0.6247, 0.4227]
    for by_entropy, slot in ((False, 1), (True, 2)):
        settings = Settings(Fixed(2), 2, commit="entropy", tau=0.1, by_entropy=by_entropy)
        assert first(slots, settings) == [slot]


def test_a_bound_of_nothing_writes_one_slot_and_those_without_doubt():
    slots = table({A: 0.9, B: 0.1}, {A: 1.0}, {B: 1.0}, {A: 0.6, B: 0.4})
    rule = plan("original", canvas=4, block=4).replace(commit=EntropyBound(entropy_bound=0.0))
    [seen] = watch(Toy(slots), [[5]], LOW, rule)
    assert [[slot for slot, _, _ in one] for one in seen.commits] == [[0, 1, 2], [3]]


# ------------------------------------------------------------------------------------- 3: the EOS side
EOT = 11
ENDED = replace(LOW, ends=(EOS, EOT))


def test_eos_last_is_llada_s_confidence_switch():
    slots = table(
        {A: 0.45, EOS: 0.40, **dict.fromkeys(FILLER, 0.15 / len(FILLER))},
        {A: 0.10, B: 0.05, EOS: 0.80, EOT: 0.04, C: 0.01},
    )
    [seen] = watch(Toy(slots), [[5]], ENDED, plan("eos-last", canvas=2, block=2))
    assert [(slot, token, round(score, 9)) for [(slot, token, score)] in seen.commits] == [
        (0, A, 0.75),
        (1, EOS, 0.0),
    ]
    assert (seen.tokens, seen.stop_reason) == ([A, EOS], "eos")
    [seen] = watch(Toy(slots), [[5]], ENDED, plan("original", canvas=2, block=2))
    [(slot, token, score)] = seen.commits[0]
    assert (slot, token, round(score, 9)) == (1, EOS, 0.8)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_eos_last_and_eos_never_on_both_families(family):
    """Under Dream's entropy order the guard is what sends a slot that proposes EOS to the end."""
    slots = table({EOS: 0.9, A: 0.099, B: 0.001}, {A: 0.5, B: 0.5}, {EOS: 0.8, A: 0.2}, {B: 0.6, C: 0.4})
    defaults = FAMILIES[family].decoding
    last = plan("eos-last", defaults=defaults, canvas=4, block=4, stop="vanilla", schedule="even")
    [seen] = watch(Toy(slots), [[5]], LOW, last)
    assert [token for one in seen.commits for _, token, _ in one][:2] in ([A, B], [B, A])
    assert seen.ids == [EOS, A, EOS, B]
    [seen] = watch(Toy(slots), [[5]], LOW, plan("eos-never", defaults=defaults, canvas=4, block=4))
    assert seen.ids == [A, A, A, B]
    assert seen.stop_reason == "full"


def test_with_eos_last_the_row_ends_at_its_leftmost_eos():
    slots = table({A: 0.5, B: 0.5}, {EOS: 0.9, A: 0.1}, {EOS: 0.95, A: 0.05}, {EOS: 0.99, A: 0.01})
    [seen] = watch(Toy(slots), [[5]], LOW, plan("eos-last", canvas=4, block=4))
    assert (seen.passes_decode, seen.ids) == (2, [A, EOS, M, M])


def eos_logit(written: int, canvas: int, **fields) -> float:
    """What a plan adds to the logit of EOS once so many slots of the canvas are written."""
    masked = torch.tensor([(canvas - written) / canvas], dtype=torch.float64)
    return -float(EosPenalty(**fields)(masked))


def test_dream_coder_s_penalty_fades():
    added = {i: round(eos_logit(i, 512, eos_penalty=3.0), 1) for i in (0, 26, 51, 256, 460)}
    assert added == {0: -20.7, 26: -8.9, 51: -6.9, 256: -2.1, 460: -0.3}
    assert round(eos_logit(128, 512, eos_penalty=3.0), 2) == -4.15
    assert describe("eos-penalty")[1]["eos_penalty"] == 3.0
    assert eos_logit(128, 512, eos_penalty=3.0, eos_annealing="constant") == -3.0
    assert eos_logit(128, 512, eos_penalty=4.0, eos_annealing="linear") == -3.0


@pytest.mark.parametrize(("penalty", "token"), [(2.8, EOS), (3.0, A)])
def test_a_penalty_above_the_lead_of_eos_changes_the_token(penalty, token):
    """EOS at .90 leads a word at .05 by ln 18 = 2.89."""
    slots = table({EOS: 0.90, A: 0.05, B: 0.05}, {A: 0.6, B: 0.4})
    settings = Settings(Fixed(2), 2, penalty=penalty, annealing="constant")
    order = [one for [one] in passes(slots, settings)]
    assert [slot for slot, _, _ in order] == [2, 1]  # the ranking changes in any case
    assert order[1][1] == token


def test_the_position_factor():
    assert round(math.exp(-0.25 * 9), 3) == 0.105  # the weight of slot 9 of a block
    slots = table(*[sure(A, c) for c in (0.30, 0.36, 0.50, 0.40, 0.80, 0.60)])
    settings = Settings(Fixed(6), 3, decay=0.25)
    order = [slot for [(slot, _, _)] in passes(slots, settings)]
    # .30 .36 * .7788 = .2804 .50 * .6065 = .3033; in the second block .40, .6230, .3639
    assert order == [3, 1, 2, 5, 4, 6]
    scores = [round(score, 2) for [(_, _, score)] in passes(slots, settings)]
    assert scores == [0.50, 0.30, 0.36, 0.80, 0.40, 0.60]  # ranking alone is weighted


def test_appended_blocks():
    """A block of two; the second one holds the EOS, and no slot ever sees masks behind its own block."""
    lengths = []

    def rows(canvas: list[int]) -> list[dict[int, float]]:
        lengths.append(len(canvas))
        return [sure(A, 0.9), sure(B, 0.8), sure(C, 0.7), sure(EOS, 0.9), sure(A, 0.9), sure(A, 0.9)][
            : len(canvas)
        ]

    chosen = plan("append-blocks", block=2, limit=6)
    [seen] = watch(Toy(Table(rows, vocab=64)), [[5]], LOW, chosen)
    assert (seen.ids, seen.stop_reason, seen.passes_decode) == ([A, B, C, EOS], "eos", 4)
    assert lengths == [2, 2, 4, 4]
    endless = Table(lambda canvas: [sure(A, 0.9)] * len(canvas), vocab=64)
    [seen] = watch(Toy(endless), [[5]], LOW, plan("append-blocks", block=2, limit=5))
    assert (seen.ids, seen.stop_reason) == ([A] * 5, "full")


# ------------------------------------------------------------------------------- laws, with rivals on
RIVALS = ("entropy", "penalty", "decay")
KINDS = ("fixed", "expansion", "crop", "appended")
each_rival = pytest.mark.parametrize("rival", RIVALS)


def rival_case(number: int, rival: str) -> Case:
    """Case `number` with a rule of others in place of its commit rule; lengths take turns."""
    kind = KINDS[number // 2 % len(KINDS)]  # stops take turns with every number
    c = case(number, ("fixed" if kind == "appended" else kind,))
    rng = random.Random(f"{rival} {number}")
    s = replace(c.settings, commit="quota", score=rng.choice(["confidence", "confidence", c.settings.score]))
    if kind == "appended":
        s = replace(s, length=Appended(s.length.canvas + rng.randrange(4)), steps=None)
        s = replace(s, mask_proposable=False, factor_last=False, leave_blocks=False)  # nothing was released
    if rival == "entropy":
        s = replace(s, commit="entropy", tau=rng.choice([0.1, 0.7, 2.0]), by_entropy=rng.random() < 0.5)
    elif rival == "penalty":
        s = replace(
            s, penalty=rng.choice([1.0, 3.0]), annealing=rng.choice(["constant", "linear", "dream-coder"])
        )
    else:
        s = replace(s, decay=rng.choice([0.1, 0.5]), score=rng.choice(["confidence", "margin", "random"]))
    return replace(c, settings=s)


@each_rival
def test_rows_are_the_references_alone_in_company_and_staggered(rival):
    happened: Counter = Counter()
    for number in range(32):
        c, rng = rival_case(number, rival), random.Random(number)
        wide = [7] * 40 + [SEPARATOR[c.roles]]
        together = watch(c.denoise, [*c.prompts, wide], c.roles, c.plan, seed=c.seed)
        keys = rng.sample(range(len(c.prompts)), rng.randint(1, len(c.prompts)))
        apart = watch(c.denoise, [c.prompts[k] for k in keys], c.roles, c.plan, seed=c.seed, keys=keys)
        for key, row in zip(keys, apart, strict=True):
            assert row.outcome == together[key].outcome, number
            assert row.commits == together[key].commits, number
        engine = Engine(c.denoise, c.roles, rows=rng.choice([1, 2, 3]), tokens=40)
        staggered = {done.key: done for done in engine.run(c.prompts, c.plan, seed=c.seed)}
        for key, (prompt, row) in enumerate(zip(c.prompts, together, strict=False)):
            assert replace(staggered[key], seconds=0.0) == row.outcome, number
            wanted = reference.decode(c.logits, prompt, c.roles, c.settings, seed=c.seed, key=key)
            assert result(row) == result(wanted), (number, key)
            assert row.states == wanted.states, (number, key)
            happened += +wanted.events
            happened["several"] += any(len(one) > 1 for one in wanted.commits)
            happened[wanted.stop_reason] += 1
    least = {"guarded": 20, "eos": 5, "full": 10, "expanded": 5}
    least |= {} if rival in ("penalty", "decay") else {"several": 10}
    assert {what: happened[what] for what in least if happened[what] < least[what]} == {}


@each_rival
def test_termination_is_vanilla_cut_at_the_first_eos(rival):
    saved = 0
    for number in range(24):
        c = rival_case(number, rival)
        early = watch(c.denoise, c.prompts, c.roles, c.with_stop(True).plan, seed=c.seed)
        late = watch(c.denoise, c.prompts, c.roles, c.with_stop(False).plan, seed=c.seed)
        for stopped, row in zip(early, late, strict=True):
            # Masks that are left before the EOS keep the row from ending early; `cut` then decides alone.
            whole = stopped.stop_reason in ("limit", "stalled") and not c.settings.cut
            assert stopped.tokens == (row.ids if whole else cut(row.ids, c.roles.eos)), number
            saved += row.passes_decode - stopped.passes_decode
    assert saved > 0


# -------------------------------------------------------------------------------------- combinations
FAST = [
    {"entropy_bound": 0.5},
    {"entropy_bound": 0.5, "entropy_order": "entropy"},
    {"threshold": 0.3},
    {"factor": 1.0},
]


@pytest.mark.parametrize("fields", FAST, ids=lambda fields: "+".join(fields))
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rivals_combine_with_caches_growth_and_trimming(family, fields):
    model: Model = random_model(family, seed=2)
    common = {"block": 4, "raw": True, **fields}
    names = tuple(plan("void", **fields).approximations)
    [exact] = model.generate("etaoi", "void", canvas=16, block=4, raw=True)
    [fast] = model.generate("etaoi", "void", canvas=16, **common)
    assert fast.approximations == names
    assert fast.passes_decode <= exact.passes_decode
    [both] = model.generate(
        "etaoi", "void-expansion", canvas=8, limit=16, cache="dual:4", trim=True, **common
    )
    assert both.approximations == ("dual:4 cache", *names, "trim")
    [plain] = model.generate("etaoi", "void", canvas=16, cache="dual:1", **common)  # every pass is a refresh
    assert (plain.tokens, plain.passes_decode) == (fast.tokens, fast.passes_decode)


def test_scores_follow_the_commit_rule_on_every_family():
    for field in ({"entropy_bound": 0.1}, {"position_decay": 0.25}, {"threshold": 0.6}):
        assert plan("void", defaults=FAMILIES["dream"].decoding, **field).propose.score == "confidence"
