"""Generated cases: a random draw of model, prompts and settings, for the reference and for voidpad alike."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from reference import Appended, Crop, Daedal, Expansion, Fixed, Logits, Rho, Settings
from toys import HIGH, LOW, SEPARATOR, Chaos, MaskLover, Toy, Twins, World, words
from voidpad.decode import Outcome, Plan, Step, decode, plan
from voidpad.decode.authors import AUTHORS_RULES, AuthorsRhoEos, AuthorsVoidExpansion, DreamLoop
from voidpad.decode.commit import Factor
from voidpad.decode.length import RhoEos, VoidExpansion
from voidpad.decode.propose import GumbelProposal, SampledProposal
from voidpad.models import FAMILIES
from voidpad.roles import Roles


# ------------------------------------------------------------------------------- running voidpad.decode
@dataclass
class Seen:
    """What voidpad did with one row, in the reference's terms."""

    commits: list[list[tuple[int, int, float]]] = field(default_factory=list)
    states: list[list[int]] = field(default_factory=list)
    signals: list[float] = field(default_factory=list)  # conf or rho, as the reference keeps them
    readings: list[dict[str, float]] = field(default_factory=list)  # whatever the length rule read
    outcome: Outcome | None = None

    def __getattr__(self, name: str):
        return getattr(self.outcome, name)

    def add(self, step: Step, row: int) -> None:
        reading = {name: float(values[row]) for name, values in step.signal.items()}
        self.readings.append(reading)
        self.signals += [reading[name] for name in ("conf", "rho") if name in reading]
        if step.after.decoded[row] == step.before.decoded[row]:
            return
        self.commits.append(step.written(row))
        self.states.append(step.after.answer(row))


def watch(denoise, prompts, roles: Roles, plan: Plan, *, seed: int = 0, keys: Sequence[int] | None = None):
    """Decode side by side; what was seen of each row, in the order of the prompts."""
    keys = list(range(len(prompts)) if keys is None else keys)
    seen = {key: Seen() for key in keys}
    for step in decode(denoise, prompts, roles, plan, seed=seed, keys=keys):
        for row, key in enumerate(step.before.key.tolist()):
            seen[key].add(step, row)
        for outcome in step.finished.values():
            seen[outcome.key].outcome = outcome
    return [seen[key] for key in keys]


# ------------------------------------------------------------------------ the same settings as a plan
def plan_of(s: Settings) -> Plan:
    """The plan that says what the reference's settings say, through the presets people use."""
    name, fields = PLANS[type(s.length)](s)
    fields |= {"block": s.block, "ban": s.ban, "cut": s.cut, "stop": "eos" if s.eos_stop else "vanilla"}
    if isinstance(s.length, Rho):
        made = plan(name, **fields)
        return made.replace(length=RHO[s.length.rounding, s.length.shortest](**vars(made.length)))
    if isinstance(s.length, Daedal):
        return plan(name, **fields)
    family = "dream" if s.sampling == "tempered" else "llada"
    fields |= {"mute": s.mute, "score": s.score, "temperature": s.temperature}
    if s.commit == "quota":
        fields |= {"schedule": s.schedule, "position_decay": s.decay}
    else:
        fields.pop("steps")
    fields |= COMMITS[s.commit](s)
    if s.penalty:
        fields |= {"eos_penalty": s.penalty, "eos_annealing": s.annealing}
    if family == "dream":
        fields |= {"top_p": s.top_p, "top_k": s.top_k}
    return with_quirks(plan(name, defaults=FAMILIES[family].decoding, **fields), s)


def with_quirks(made: Plan, s: Settings) -> Plan:
    """The plan with the rules of `authors.py` that the settings ask for, each by itself."""
    wanted = {GumbelProposal: s.mask_proposable, SampledProposal: s.mask_proposable, Factor: s.factor_last}
    swapped = {}
    for name in ("propose", "commit"):
        rule = getattr(made, name)
        if wanted.get(type(rule)):
            swapped[name] = AUTHORS_RULES[type(rule)](**vars(rule))
    if isinstance(s.length, Expansion):
        swapped["length"] = published_expansion(s)
    made = made.replace(**swapped)
    return DreamLoop(**{**vars(made), "block_steps": s.per_block}) if s.leave_blocks else made


def published_expansion(s: Settings) -> VoidExpansion:
    """VoidExpansion with either of the two deviations of the released code, which has both."""
    kinds = {
        ("ceil", False): VoidExpansion,
        ("floor", False): FloorCap,
        ("ceil", True): MaskCounts,
        ("floor", True): AuthorsVoidExpansion,
    }
    _, fields = expansion_fields(s)
    fields = {name: value for name, value in fields.items() if name in VoidExpansion.model_fields}
    return kinds[s.length.cap, s.length.mask_in_max](**fields).fit_blocks(s.block)


class FloorCap(AuthorsVoidExpansion):
    ignored = VoidExpansion.ignored


class MaskCounts(VoidExpansion):
    ignored = AuthorsVoidExpansion.ignored


class EmptyCanvas(RhoEos):
    """A contraction may leave nothing, as in the released code, but segments are counted as everywhere else."""

    def shortest(self, block):
        return 0

    def final_prefix(self, rows):
        return AuthorsRhoEos(**{**vars(self), "minimum": 0}).final_prefix(rows)


class Float32Segments(RhoEos):
    """Segments are counted in float32, as in the released code, but a block is left."""

    slack = 0.0

    def change(self, rho):
        return super().change(rho.float())


class Released(AuthorsRhoEos):
    """Both. The preset has rounded `minimum` up to a block, which the released code does not know."""

    def shortest(self, block):
        return 0

    def final_prefix(self, rows):
        return AuthorsRhoEos(**{**vars(self), "minimum": 0}).final_prefix(rows)


RHO = {
    ("tolerant", None): RhoEos,
    ("tolerant", 0): EmptyCanvas,
    ("float32", None): Float32Segments,
    ("float32", 0): Released,
}
COMMITS: dict[str, Callable[[Settings], dict]] = {
    "quota": lambda s: {},
    "threshold": lambda s: {"threshold": s.tau},
    "factor": lambda s: {"factor": s.tau},
    "entropy": lambda s: {
        "entropy_bound": s.tau,
        "entropy_order": "entropy" if s.by_entropy else "score",
    },
}


def fixed_fields(s: Settings):
    return "original", {"canvas": s.length.canvas, "steps": s.per_block * (s.length.canvas // s.block)}


def expansion_fields(s: Settings):
    rule = s.length
    fields = {"canvas": rule.start, "limit": rule.limit, "window": rule.window, "steps": s.per_block}
    return "void-expansion", fields | {"tau_nonvoid": rule.tau_nonvoid, "tau_gap": rule.tau_gap}


def appended_fields(s: Settings):
    return "append-blocks", {"limit": s.length.limit, "steps": s.per_block}


def crop_fields(s: Settings):
    return "smart-crop", {"canvas": s.length.limit, "tau": s.length.tau, "steps": s.per_block}


def daedal_fields(s: Settings):
    rule = s.length
    fields = {"canvas": rule.start, "limit": rule.limit, "high": rule.hi, "low": rule.lo, "grow": rule.factor}
    return "daedal", fields | {"enough": rule.stage1, "content": rule.stage2, "check": rule.check}


def rho_fields(s: Settings):
    rule = s.length
    fields = {
        "canvas": rule.start,
        "limit": rule.limit,
        "high": rule.hi,
        "unit": rule.unit,
        "check": rule.check,
    }
    fields |= {"rho_low": rule.low, "rho_high": rule.high, "interval": rule.interval, "cap": rule.most}
    fields |= {
        "edit_growth": rule.scheduler,
        "adjust": rule.edits,
        "signal": rule.signal,
        "insert_at": rule.insert,
    }
    return "rho-eos", fields


PLANS: dict[type, Callable[[Settings], tuple[str, dict]]] = {
    Fixed: fixed_fields,
    Expansion: expansion_fields,
    Crop: crop_fields,
    Daedal: daedal_fields,
    Rho: rho_fields,
    Appended: appended_fields,
}


# ------------------------------------------------------------------------------------ random cases
@dataclass(frozen=True)
class Case:
    logits: Logits
    roles: Roles
    prompts: list[list[int]]
    settings: Settings
    seed: int

    @property
    def plan(self) -> Plan:
        return plan_of(self.settings)

    @property
    def denoise(self) -> Toy:
        return Toy(self.logits)

    def with_stop(self, eos_stop: bool) -> "Case":
        return replace(self, settings=replace(self.settings, eos_stop=eos_stop))


LENGTHS = ("fixed", "expansion", "daedal", "rho", "crop")


def case(number: int, lengths: Sequence[str] = LENGTHS) -> Case:
    """Case `number` of the endless list; length rules and stops take turns."""
    rng = random.Random(number)
    roles = rng.choice([LOW, HIGH])
    kind = lengths[number % len(lengths)]
    eos_stop = number // len(lengths) % 2 == 0
    settings = confident(rng, roles, kind) if kind in ("daedal", "rho") else blockwise(rng, roles, kind)
    settings = replace(settings, eos_stop=eos_stop, cut=rng.random() < 0.8)
    made = Case(model(rng, roles, settings), roles, prompts(rng, roles), settings, rng.randrange(2**31))
    switches = {"leave_blocks": rng.random() < 0.3, "factor_last": rng.random() < 0.5}
    return replace(made, settings=replace(settings, **switches))


def prompts(rng: random.Random, roles: Roles) -> list[list[int]]:
    vocabulary = [*words(roles), roles.eos]
    sizes = [rng.randrange(7) for _ in range(rng.choice([1, 2, 2, 3]))]
    return [[rng.choice(vocabulary) for _ in range(size)] + [SEPARATOR[roles]] for size in sizes]


def model(rng: random.Random, roles: Roles, settings: Settings) -> Logits:
    seed = rng.randrange(10**6)
    adapts = isinstance(settings.length, Daedal | Rho)  # by EOS predictions: EOS padding makes them happen
    kind = rng.choice(["chaos", "world", "world", "world", "twins"])
    if kind == "chaos":
        pulled = rng.sample([roles.eos, roles.void, roles.mask, words(roles)[0]], 2)
        lean = tuple((token, rng.choice([-2.0, 1.0, 3.0])) for token in pulled)
        toy: Logits = Chaos(roles, seed, rng.choice([1.0, 4.0, 9.0]), lean)
    elif kind == "twins":
        toy = Twins(roles, seed, rng.choice([1, 2, 4]))
    else:
        lengths = tuple(sorted(rng.sample(range(10 if adapts else 20), rng.choice([1, 2, 4]))))
        padding = rng.choice(["eos", "eos", "void"] if adapts else ["eos", "void", "void", "rainbow"])
        doubt, jitter = rng.choice([0.01, 0.1, 0.5]), rng.choice([0.1, 0.5, 2.0])
        toy = World(roles, seed, padding, lengths, doubt, jitter, rng.choice([1.0, 4.0]))
    if rng.random() < (0.8 if settings.mask_proposable else 0.15):
        share, forever = rng.choice([0.2, 0.5, 0.9]), rng.random() < 0.3
        toy = MaskLover(toy, roles, seed + 1, share, forever)
    return toy


def blockwise(rng: random.Random, roles: Roles, kind: str) -> Settings:
    block = rng.choice([1, 2, 3, 4, 6])
    size = block * rng.choice([1, 2, 3])
    ban = rng.choice([(), (roles.void,), (roles.void,), (roles.eos,), (roles.void, roles.eos), roles.rainbow])
    mute = rng.choice([(), ban, (roles.eos, roles.void)])
    dream = rng.random() < 0.5
    temperature = rng.choice([0.0, 0.0, 0.7, 1.5])
    commit = rng.choice(["quota", "quota", "quota", "threshold", "factor"])
    fields = {"top_p": rng.choice([None, 0.5, 0.9]), "top_k": rng.choice([None, 1, 3, 6])} if dream else {}
    return Settings(
        length_rule(rng, kind, block, size),
        block,
        steps=rng.choice([None, None, 1, 2, 3, block, 2 * block]),
        schedule=rng.choice(["dream", "dream", "even"]) if dream else rng.choice(["even", "even", "dream"]),
        commit=commit,
        tau=rng.choice([0.2, 0.5, 0.9]) if commit == "threshold" else rng.choice([0.3, 1.0, 1.8]),
        score=rng.choice(["confidence", "confidence", "neg_entropy", "margin", "random"]),
        ban=ban,
        mute=mute,
        sampling="tempered" if dream else "gumbel",
        temperature=temperature,
        mask_proposable=rng.random() < 0.2,
        **fields,
    )


def length_rule(rng: random.Random, kind: str, block: int, size: int) -> Fixed | Expansion | Crop:
    if kind == "fixed":
        return Fixed(size)
    if kind == "crop":
        return Crop(size + block, rng.choice([0.5, 0.8, 0.95]))
    start = rng.randrange(1, size + 1)
    room = rng.randrange(block, 3 * block + 1)  # so that the cap, rounded down, still holds the first canvas
    taus = {"tau_nonvoid": rng.choice([0.1, 0.3, 0.5, 0.7]), "tau_gap": rng.choice([-0.5, 0.0, 0.3])}
    switches = {"cap": rng.choice(["ceil", "floor"]), "mask_in_max": rng.random() < 0.3}
    return Expansion(start, start + room, rng.randrange(1, 9), **taus, **switches)


def confident(rng: random.Random, roles: Roles, kind: str) -> Settings:
    start = rng.choice([3, 6, 10])
    common = {
        "start": start,
        "limit": start + rng.choice([0, 4, 6, 11, 15]),
        "hi": rng.choice([0.3, 0.6, 0.9]),
    }
    common |= {"check": rng.choice([2, 4, 7])}
    if kind == "daedal":
        more = {"lo": rng.choice([0.2, 0.5, 0.8]), "factor": rng.choice([2, 8, 8])}
        rule = Daedal(**common, **more, stage1=rng.choice([0.05, 0.2, 0.5]), stage2=rng.choice([0.3, 0.9]))
    else:
        low, high = rng.choice([(0.4, 0.6), (0.4, 0.6), (0.25, 0.7), (0.1, 0.3)])
        more = {
            "unit": rng.choice([1, 2, 4, 8]),
            "most": rng.choice([2, 8]),
            "edits": rng.choice([3, 12, 64]),
        }
        more |= {"scheduler": rng.choice(["exp", "linear", "const"]), "shortest": rng.choice([None, None, 0])}
        more |= {"signal": rng.choice(["density", "density", "tail_confidence"])}
        more |= {"insert": rng.choice(["end", *["before_first_eos"] * 2])}
        more |= {"rounding": rng.choice(["tolerant", "float32"])}
        rule = Rho(**common, **more, low=low, high=high, interval=rng.choice([0.05, 0.1]))
    ban = rng.choice([(), (), (roles.void,), (words(roles)[0],)])
    return Settings(rule, rng.choice([1, 2, 3, 4, 7]), ban=ban)
