"""The worked examples of the specification, once, for the reference and for voidpad.decode alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reference import Crop, Daedal, Expansion, Fixed, Rho, Settings, as_published
from toys import LOW, Oracle, Table, spread
from voidpad.roles import Roles

M, EOS, VOID = LOW.mask, LOW.eos, LOW.void
A, B, C, D, Z = 6, 7, 8, 9, 10
FILLER = range(16, 64)  # many ids, so that a proposal can win with little probability


@dataclass(frozen=True)
class Example:
    name: str
    logits: Callable
    settings: Settings
    expect: dict  # any field of a result, commits, first_commits, first_slots, counts, first_state, conf
    roles: Roles = LOW
    prompt: list[int] = field(default_factory=lambda: [5])


def sure(token: int, chance: float) -> dict[int, float]:
    return spread({token: chance}, FILLER)


def static(*slots: tuple[int, float]) -> Table:
    """The same proposals in every pass: (token, probability) for each slot."""
    return Table(lambda canvas: [sure(token, chance) for token, chance in slots], vocab=64)


def by_length(**tables: list[dict[int, float]]) -> Table:
    """A table for each canvas length, named n<length>."""
    return Table(lambda canvas: tables[f"n{len(canvas)}"], vocab=64)


def falling(length: int) -> Table:
    """Words, surer to the left."""
    return static(*[(A, 0.9 - 0.8 * slot / length) for slot in range(length)])


# ---------------------------------------------------------------------------------- 2.2, 2.4: how many slots
def quota(length: int, steps: int, counts: list[int], schedule: str) -> Example:
    score = "confidence" if schedule == "even" else "neg_entropy"
    settings = Settings(Fixed(length), length, steps=steps, schedule=schedule, score=score)
    expect = {"counts": counts, "passes_decode": len(counts), "stop_reason": "full"}
    return Example(f"2.2/2.4 {schedule} n={length} S={steps}", falling(length), settings, expect)


QUOTAS = [
    quota(10, 4, [3, 3, 2, 2], "even"),
    quota(5, 8, [1, 1, 1, 1, 1], "even"),
    quota(6, 6, [1] * 6, "even"),
    *[quota(n, n, [0, *[1] * (n - 2), 2], "dream") for n in (2, 3, 5, 8, 13, 32)],
    quota(8, 4, [1, 2, 2, 3], "dream"),
    quota(8, 2, [3, 5], "dream"),
    quota(6, 4, [1, 1, 1, 3], "dream"),
    quota(8, 16, [*[0] * 9, 1, 1, 1, 1, 1, 1, 2], "dream"),
]


def early(q: int, schedule: str) -> Example:
    """2.4: a stop after the q-th commit of a block costs Dream one pass more than LLaDA."""
    slots = [(EOS if slot == q - 1 else A, 0.9 - 0.1 * slot) for slot in range(8)]
    passes = q if schedule == "even" else q + 1
    settings = Settings(Fixed(8), 8, schedule=schedule, eos_stop=True)
    expect = {"passes_decode": passes, "tokens": [A] * (q - 1) + [EOS], "stop_reason": "eos", "canvas": 8}
    return Example(f"2.4 {schedule} stop after commit {q}", static(*slots), settings, expect)


EARLY = [early(q, schedule) for q in (1, 3, 6) for schedule in ("even", "dream")]

# ------------------------------------------------------------------------- 2.5: where the ban enters; 2.8
BANNED = Table(
    lambda canvas: [
        {A: 0.55, B: 0.40, EOS: 0.03, VOID: 0.02},
        {A: 0.10, B: 0.001, EOS: 0.001, VOID: 0.898},
    ]
)
EOT = 11
OFFICIAL = Table(lambda canvas: [{A: 0.30, B: 0.25, EOS: 0.25, EOT: 0.20}, {A: 0.35, B: 0.33, C: 0.32}])
ENDS_LAST = Table(lambda canvas: [{EOS: 0.9, A: 0.1}, {A: 0.5, B: 0.5}, {EOT: 0.8, A: 0.2}])
BANS = [
    Example(
        "2.5 unbanned scores",
        BANNED,
        Settings(Fixed(2), 2, ban=(VOID,)),
        {"commits": [[(1, A, 0.55)], [(2, A, 0.10)]]},
    ),
    Example(
        "2.5 renormalised scores",
        BANNED,
        Settings(Fixed(2), 2, ban=(VOID,), mute=(VOID,), score="neg_entropy"),
        {"commits": [[(2, A, -0.1101)], [(1, A, -0.7967)]]},
    ),
    Example(
        "2.5 renormalised confidence",
        BANNED,
        Settings(Fixed(2), 2, ban=(VOID,), mute=(VOID,)),
        {"commits": [[(2, A, 0.9804)], [(1, A, 0.5612)]]},
    ),
    Example(
        "2.5 confidence_eos_eot_inf",
        OFFICIAL,
        Settings(Fixed(2), 2, mute=(EOS, EOT)),
        {"commits": [[(1, A, 0.5455)], [(2, A, 0.35)]]},
    ),
    Example(
        "2.5 muted proposals come last, from the left",
        ENDS_LAST,
        Settings(Fixed(3), 3, mute=(EOS, EOT)),
        {"commits": [[(2, A, 0.5)], [(1, EOS, 0.0)], [(3, EOT, 0.0)]], "ids": [EOS, A, EOT]},
    ),
]
COMMITS = [
    Example(
        "2.8 threshold is inclusive, else the best",
        Table(lambda canvas: [{A: 0.5, B: 0.5}, {A: 1.0}, {B: 0.25, C: 0.25, D: 0.25, A: 0.25}]),
        Settings(Fixed(3), 3, commit="threshold", tau=0.5),
        {"commits": [[(1, A, 0.5), (2, A, 1.0)], [(3, A, 0.25)]], "passes_decode": 2},
    ),
    Example(
        "2.8 factor",  # n = 3 needs .75, n = 4 needs .8
        static((A, 0.9), (A, 0.70), (A, 0.76), (A, 0.78)),
        Settings(Fixed(4), 4, commit="factor", tau=1.0),
        {"commits": [[(1, A, 0.9), (3, A, 0.76), (4, A, 0.78)], [(2, A, 0.7)]]},
    ),
    Example(
        "2.8 factor takes at least one",
        static((A, 0.2), (A, 0.3)),
        Settings(Fixed(2), 2, commit="factor", tau=0.5),
        {"commits": [[(2, A, 0.3)], [(1, A, 0.2)]]},
    ),
    Example(
        "7 dLLM-Var's block",
        Table(
            lambda canvas: [
                sure(A, 0.95),
                sure(B, 0.7 if canvas[0] == M else 0.8),
                sure(EOS, 0.92),
                sure(D, 0.5 if canvas[0] == M else 0.85),
            ],
            vocab=64,
        ),
        Settings(Fixed(4), 4, commit="threshold", tau=0.9, eos_stop=True),
        {"commits": [[(1, A, 0.95), (3, EOS, 0.92)], [(4, D, 0.85)], [(2, B, 0.8)]], "tokens": [A, B, EOS]},
    ),
]


# --------------------------------------------------------------- 2.8, 0.5: two slips of the released programs
def factor(chances: Sequence[float], plain: Sequence[int], slip: Sequence[int]) -> list[Example]:
    """The slots of the first pass under factor 1, whose bars are: one always, then .667, .75, .8."""
    settings = Settings(Fixed(len(chances)), len(chances), commit="factor", tau=1.0)
    logits = static(*[(A, chance) for chance in chances])
    return [
        Example(f"2.8 factor {chances}", logits, settings, {"first_slots": plain}),
        Example(f"2.8 factor as released {chances}", logits, as_published(settings), {"first_slots": slip}),
    ]


FACTORS = [
    *factor((0.9, 0.8, 0.78, 0.3), (1, 2, 3), (1, 2, 3, 4)),  # only the last misses: it goes with the others
    *factor((0.9, 0.8, 0.6, 0.3), (1, 2), (1, 2)),  # two miss: no slip
    *factor((0.9, 0.8, 0.78, 0.81), (1, 2, 4), (1, 2, 3, 4)),  # the candidates are sorted: .78 is the last
    *factor((0.9, 0.9, 0.9, 0.9), (1, 2, 3, 4), (1, 2, 3, 4)),
    *factor((0.2, 0.1), (1,), (1, 2)),  # of two slots the second is the last
    *factor((0.2, 0.1, 0.1), (1,), (1,)),
    *factor((0.2,), (1,), (1,)),
]


# Slots 1, 3 and 4 know their word; slot 2 wants MASK until slot 4 is written.
STUBBORN = Table(
    lambda canvas: [
        sure(A, 0.9),
        sure(*((M, 0.95) if canvas[3] == M else (B, 0.95))),
        sure(C, 0.8),
        sure(A, 0.7),
    ],
    vocab=64,
)
# Every slot of the first block wants MASK; the others know their words.
SILENT = static((M, 0.9), (M, 0.9), (C, 0.9), (C, 0.9), (C, 0.9), (C, 0.9))
UNSURE = static(*[(A, 0.5 - slot / 100) for slot in range(8)])


def dream(name: str, logits: Table, canvas: int, expect: dict, *, released: bool = True, **fields) -> Example:
    """Blocks of two slots and two passes each, unless `fields` say otherwise."""
    fields = {"block": 2, "schedule": "dream", "score": "neg_entropy", "sampling": "tempered"} | fields
    settings = Settings(Fixed(canvas), **fields)
    return Example(f"0.5 {name}", logits, as_published(settings) if released else settings, expect)


LEFT_BLOCKS = [
    # Dream writes nothing in a block's first pass and all that is left in its second. Slot 2 is then still masked, and
    # the block is left for good.
    dream("Dream leaves a block", STUBBORN, 4, {"ids": [A, M, C, A], "passes_decode": 4, "stop_reason": "limit"}),
    # A row is not given up for passes that changed nothing in a block that it has left.
    dream("Dream leaves two", SILENT, 6, {"ids": [M, M, C, C, C, C], "passes_decode": 6, "stop_reason": "limit"}),
    dream("ours does not", STUBBORN, 4, {"passes_decode": 4, "stop_reason": "full"}, released=False),
    Example(
        "0.5 LLaDA stays in its block until the row counts as stalled",
        STUBBORN,
        as_published(Settings(Fixed(4), 2)),
        {"ids": [A, M, M, M], "passes_decode": 6, "stop_reason": "stalled"},
    ),
    # A threshold that no slot reaches writes one slot a pass; the block is left after two passes.
    dream(
        "Dream leaves a block under a threshold", UNSURE, 8,
        {"ids": [A, A, M, M, A, A, M, M], "passes_decode": 4, "stop_reason": "limit"},
        block=4, steps=2, commit="threshold", tau=0.99, score="confidence",
    ),
]  # fmt: skip


# ----------------------------------------------------------------------------------------- 3: stopping
ENDING = static((A, 0.8), (C, 0.6), (B, 0.7), (D, 0.5), (EOS, 0.9), (Z, 0.4))
VARIANT = static((A, 0.8), (C, 0.6), (EOS, 0.7), (D, 0.5), (EOS, 0.9), (Z, 0.4))
STOPS = [
    Example(
        "3.3 termination",
        ENDING,
        Settings(Fixed(6), 6, eos_stop=True),
        {"passes_decode": 5, "tokens": [A, C, B, D, EOS], "ids": [A, C, B, D, EOS, M], "stop_reason": "eos"},
    ),
    Example(
        "3.3 vanilla",
        ENDING,
        Settings(Fixed(6), 6),
        {"passes_decode": 6, "ids": [A, C, B, D, EOS, Z], "tokens": [A, C, B, D, EOS], "stop_reason": "full"},
    ),
    Example(
        "3.4 vanilla without the cut",
        ENDING,
        Settings(Fixed(6), 6, cut=False),
        {"passes_decode": 6, "ids": [A, C, B, D, EOS, Z], "tokens": [A, C, B, D, EOS, Z]},
    ),
    Example(
        "3.2 termination is cut in any case",
        ENDING,
        Settings(Fixed(6), 6, eos_stop=True, cut=False),
        {"passes_decode": 5, "tokens": [A, C, B, D, EOS]},
    ),
    Example(
        "3.3 variant",
        VARIANT,
        Settings(Fixed(6), 6, eos_stop=True),
        {"passes_decode": 4, "tokens": [A, C, EOS], "stop_reason": "eos"},
    ),
    Example(
        "3.2 an empty answer is legal",
        static((EOS, 0.9), (A, 0.8)),
        Settings(Fixed(2), 2, eos_stop=True),
        {"passes_decode": 1, "tokens": [EOS], "stop_reason": "eos"},
    ),
    Example(
        "3.2 an EOS in the prompt does not count",
        Table(lambda canvas: [sure(A, 0.9), sure(B, 0.8)], vocab=64, prompt=2),
        Settings(Fixed(2), 2, eos_stop=True),
        {"passes_decode": 2, "tokens": [A, B], "stop_reason": "full"},
        prompt=[EOS, 5],
    ),
    Example(
        "7 Rainbow: nothing banned, cut at the EOS",
        static((D, 0.9), (B, 0.8), (EOS, 0.9), (LOW.rainbow[0], 0.9), (LOW.rainbow[1], 0.9)),
        Settings(Fixed(5), 5),
        {"ids": [D, B, EOS, *LOW.rainbow[:2]], "tokens": [D, B, EOS], "passes_decode": 5},
    ),
]


# -------------------------------------------------------------------------------------- 4: VoidExpansion
def tail(*pairs: tuple[float, float]) -> list[dict[int, float]]:
    """Rows with a VOID probability and the largest other one; the leftover is thin."""
    return [spread({VOID: void, A: other}, FILLER) for void, other in pairs]


FAIL, PASS = tail((0.2, 0.5), (0.3, 0.4), (0.4, 0.3)), tail((0.6, 0.2), (0.7, 0.1), (0.8, 0.1))


def canvases(*, twelve: list[dict[int, float]]) -> Table:
    word = sure(A, 0.9)
    return by_length(n8=[word] * 5 + FAIL, n12=[word] * 9 + twelve, n16=[word] * 13 + FAIL)


def expansion(name: str, logits: Table, rule: Expansion, expect: dict, *, published: bool = False) -> Example:
    settings = Settings(rule, 4, ban=(VOID,), eos_stop=True)
    return Example(name, logits, as_published(settings) if published else settings, expect)


RULE = Expansion(5, 14, 3, 0.3, 0.0)
EVEN_TAIL = Table(lambda canvas: [{VOID: 0.25, A: 0.25, B: 0.25, M: 0.25}] * len(canvas), vocab=16)
MASKED_TAIL = Table(lambda canvas: [{VOID: 0.25, A: 0.125, B: 0.125, M: 0.5}] * len(canvas), vocab=16)
GROWTH = [
    expansion("4 second probe passes", canvases(twelve=PASS), RULE, {"canvas": 12, "passes_probe": 2}),
    expansion(
        "4 all fail", canvases(twelve=FAIL), RULE, {"canvas": 16, "passes_probe": 3, "passes_decode": 16}
    ),
    expansion(
        "4 all fail, cap down", canvases(twelve=FAIL), RULE, {"canvas": 12, "passes_probe": 2}, published=True
    ),
    expansion("4 T = L_hat", canvases(twelve=PASS), RULE, {"passes_decode": 12, "counts": [1] * 12}),
    expansion("4 inclusive", EVEN_TAIL, Expansion(4, 8, 4, 0.25, 0.0), {"canvas": 4, "passes_probe": 1}),
    expansion("4 gap fails", EVEN_TAIL, Expansion(4, 8, 4, 0.25, 0.01), {"canvas": 8, "passes_probe": 2}),
    expansion("4 nonvoid fails", EVEN_TAIL, Expansion(4, 8, 4, 0.24, 0.0), {"canvas": 8, "passes_probe": 2}),
    expansion("4 without MASK", MASKED_TAIL, Expansion(4, 8, 4, 0.2, 0.1), {"canvas": 4, "passes_probe": 1}),
    expansion(
        "4 with MASK",
        MASKED_TAIL,
        Expansion(4, 8, 4, 0.2, 0.1),
        {"canvas": 8, "passes_probe": 2},
        published=True,
    ),
]


# ---------------------------------------------------------------------------------------------- 5: DAEDAL
def ends(*chances: float) -> list[dict[int, float]]:
    return [sure(EOS, chance) for chance in chances]


WORDS = [sure(A, 0.95)]
SECOND_STAGE = [sure(A, 0.95), sure(B, 0.92), sure(C, 0.30), sure(D, 0.06), *ends(0.6, 0.6, 0.6, 0.6)]
DAEDAL = Settings(Daedal(4, 20, grow=2, check=4), 4)
DAEDAL_SECOND_STAGE = {
    "passes_probe": 2,
    "first_state": [A, B, M, M, M, M, M, EOS, EOS],
    "first_commits": [(1, A, 0.95), (2, B, 0.92)],
    "conf": [0.375, 0.7625, 0.60],
    "canvas": 9,
}


def daedal(name: str, six: list[dict[int, float]], expect: dict) -> Example:
    table = by_length(
        n4=[sure(B, 0.5), sure(A, 0.5), *ends(0.6, 0.9)],
        n6=six,
        n8=SECOND_STAGE,
        n9=WORDS * 7 + ends(0.95, 0.95),
    )
    return Example(f"5 {name}", table, DAEDAL, expect)


SIX = [*WORDS * 2, *ends(0.5, 0.7, 0.9, 0.95)]
INTERLEAVED = [*ends(0.5), *WORDS, *ends(0.7, 0.9), *WORDS, *ends(0.95)]
DAEDALS = [
    daedal("worked example", SIX, DAEDAL_SECOND_STAGE),
    daedal("interleaved", INTERLEAVED, DAEDAL_SECOND_STAGE),
    Example(
        "5 every proposal is MASK",
        Table(lambda canvas: [{M: 0.6, A: 0.3, B: 0.1}, {M: 0.8, C: 0.19, B: 0.01}], vocab=16),
        Settings(Daedal(2, 2, grow=2, check=4, low=0.0), 2),
        {"commits": [[(2, C, None)], [(1, A, None)]], "passes_probe": 1, "ids": [A, C]},
    ),
]


# --------------------------------------------------------------------------------------------- 6: rho-EOS
def crowd(length: int, ends_: int, chance: float = 0.95) -> Table:
    """Words, then `ends_` slots that predict EOS; longer canvases add words at the end."""
    row = [sure(A, 0.95)] * (length - ends_) + [sure(EOS, chance)] * ends_
    return Table(lambda canvas: (row + [sure(A, 0.95)] * len(canvas))[: len(canvas)], vocab=64)


def rho(name: str, logits: Table, rule: Rho, expect: dict) -> Example:
    return Example(f"6 {name}", logits, Settings(rule, 32), expect)


ONE_EDIT = {"canvas": 200, "limit": 2048, "adjust": 1}
CHANGES = {
    50: 16,
    10: 64,
    79: 8,
    90: 0,
    122: -8,
    150: -16,
    190: -64,
}  # EOS slots of 200: rho .25 .05 .395 ...
EMPTIED = crowd(64, 60)
RHOS = [
    *[rho(f"{n}/200", crowd(200, n), Rho(**ONE_EDIT), {"canvas": 200 + d}) for n, d in CHANGES.items()],
    rho("density", crowd(64, 16, 0.9), Rho(adjust=1), {"canvas": 80}),
    rho("tail confidence", crowd(64, 16, 0.9), Rho(adjust=1, signal="tail_confidence"), {"canvas": 64}),
    rho("linear", crowd(200, 10), Rho(**ONE_EDIT, edit_growth="linear"), {"canvas": 232}),
    rho("const", crowd(200, 10), Rho(**ONE_EDIT, edit_growth="const"), {"canvas": 208}),
    rho(
        "authors empty a canvas",
        EMPTIED,
        Rho(minimum=0, rounding="float32"),
        {"canvas": 0, "tokens": [], "passes_decode": 1},
    ),
    rho("never below a block", EMPTIED, Rho(adjust=1), {"canvas": 32, "ids": [*[A] * 4, *[EOS] * 28]}),
    rho(
        "tolerant",
        crowd(20, 16),
        Rho(20, 80, adjust=1, rho_low=0.25, rho_high=0.7, minimum=1),
        {"canvas": 12},
    ),
    rho(
        "float32",
        crowd(20, 16),
        Rho(20, 80, adjust=1, rho_low=0.25, rho_high=0.7, minimum=0, rounding="float32"),
        {"canvas": 4},
    ),
]

# Eight slots all read EOS and shrink, seven read words and grow; the last masked slot is always the surest.
SEESAW = Table(
    lambda canvas: [sure(EOS if len(canvas) == 8 else A, 0.5 + j / 100) for j in range(len(canvas))], 64
)
SEESAW_RULE = {"canvas": 8, "limit": 12, "unit": 1, "edit_growth": "const", "minimum": 1}
REOPENED = Table(lambda canvas: [sure(EOS if j == 1 else A, 0.95) for j in range(len(canvas))], 64)
HAZARDS = [
    rho(
        "vi: the authors' iteration limit leaves masks",
        SEESAW,
        Rho(**SEESAW_RULE, insert_at="before_first_eos"),
        {"ids": [M, *[A] * 6, M], "passes_decode": 12, "stop_reason": "limit"},
    ),
    rho(
        "vi: ours fills what is left",
        SEESAW,
        Rho(**SEESAW_RULE),
        {"ids": [EOS, *[A] * 6, EOS], "passes_decode": 14, "stop_reason": "full"},
    ),
    Example(
        "6 i: masks behind the window stay",
        REOPENED,
        Settings(Rho(4, 8, unit=2, edit_growth="const", adjust=1, insert_at="before_first_eos"), 2),
        {
            "first_state": [A, M, M, EOS, M, M],
            "ids": [A, M, A, EOS, A, A],
            "tokens": [A, M, A, EOS],
            "passes_decode": 3,
            "stop_reason": "stalled",
        },
    ),
    Example(
        "6 i: at the end nothing stays behind",
        REOPENED,
        Settings(Rho(4, 8, unit=2, edit_growth="const", adjust=1), 2),
        {"ids": [A, EOS, A, A, A, A], "passes_decode": 3, "stop_reason": "full"},
    ),
]

# ------------------------------------------------------------------------------------------- 7: SmartCrop
Q = (0.01, 0.05, 0.30, 0.60, 0.90, 0.97, 0.99, 0.99)
CROP = Table(lambda canvas: [spread({EOS: q, A: (1 - q) * 0.6}, FILLER) for q in Q[: len(canvas)]], vocab=64)
CROPS = [
    Example(
        "7 SmartCrop B=1", CROP, Settings(Crop(6), 1), {"canvas": 5, "passes_probe": 1, "passes_decode": 5}
    ),
    Example(
        "7 SmartCrop B=4", CROP, Settings(Crop(8), 4), {"canvas": 8, "passes_probe": 1, "passes_decode": 8}
    ),
    Example(
        "7 SmartCrop B=2", CROP, Settings(Crop(8), 2), {"canvas": 6, "passes_probe": 1, "passes_decode": 6}
    ),
    Example("7 SmartCrop no end", CROP, Settings(Crop(4), 4), {"canvas": 4, "passes_probe": 1}),
]

# -------------------------------------------------------------------------------- 8.6: the oracle length model
c = Oracle.symbols[0]


def oracle(padding: str, line: str, ids: str, **fields) -> Example:
    names = {"c": c, "E": EOS, "V": VOID, "M": M}
    commits = []
    for item in line.split(", "):
        slot, token, score = item.replace(":", " ").split()
        commits.append([(int(slot), names[token], float(score))])
    expect = {"commits": commits, "ids": [names[x] for x in ids.split()], "passes_decode": len(commits)}
    name = " ".join(["8.6", padding, *map(str, fields.values())])
    settings = Settings(Fixed(6), **{"block": 6, **fields})
    return Example(name, Oracle(padding), settings, expect)


WORDS_LEFT = "1:c .1, 2:c .1, 3:c .1, 4:c .1, 5:c .1"
STOPPED = {"ban": (VOID,), "eos_stop": True}
ORACLE = [
    oracle("eos", "6:E 1.0, 3:E .6, 4:E 1, 5:E 1, 2:E .5833, 1:c .1", "c E E E E E"),
    oracle("void", f"6:E .4, {WORDS_LEFT}", "c c c c c E", ban=(VOID,)),
    oracle("void", "4:V .6, 5:V 1, 6:V 1, 2:E .5833, 3:V 1, 1:c .1", "c E V V V V"),
    oracle("rainbow", f"6:E .4, {WORDS_LEFT}", "c c c c c E"),
    oracle("void", "2:E .35, 1:c .1", "c E M M M M", block=3, **STOPPED),
    oracle("void", "2:E .35, 1:c .1", "c E M M M M", block=2, **STOPPED),
]

EXAMPLES = [
    *QUOTAS,
    *EARLY,
    *BANS,
    *COMMITS,
    *FACTORS,
    *LEFT_BLOCKS,
    *STOPS,
    *GROWTH,
    *DAEDALS,
    *RHOS,
    *HAZARDS,
]
EXAMPLES += [*CROPS, *ORACLE]


def check(example: Example, seen) -> None:
    """Compare what a decoder did with the example; slots in `commits` are 1-based, as in the specification."""
    commits = [sorted((slot + 1, token, score) for slot, token, score in one) for one in seen.commits]
    for what, expected in example.expect.items():
        if what == "commits":
            assert len(commits) == len(expected)
            for found, wanted in zip(commits, expected, strict=True):
                check_commits(found, wanted)
        elif what == "first_commits":
            check_commits(commits[0], expected)
        elif what == "first_slots":
            assert [slot for slot, _, _ in commits[0]] == list(expected)
        elif what == "counts":
            assert [len(one) for one in commits] == expected
        elif what == "first_state":
            assert seen.states[0] == expected
        elif what == "conf":
            assert [round(x, 9) for x in seen.signals[: len(expected)]] == expected
        else:
            assert getattr(seen, what) == expected, what


def check_commits(found: list, wanted: list) -> None:
    assert [pair[:2] for pair in found] == [pair[:2] for pair in wanted]
    pairs = [(f[2], w[2]) for f, w in zip(found, wanted, strict=True) if w[2] is not None]
    assert all(abs(score - rounded) < 6e-5 for score, rounded in pairs)
