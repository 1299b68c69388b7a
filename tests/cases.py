"""Generated cases: a random draw of model, prompts and settings, for the reference and for voidpad alike."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from reference import (
    DEVIATIONS,
    Appended,
    Crop,
    Daedal,
    Expansion,
    Fixed,
    Logits,
    Rho,
    Settings,
    as_published,
)
from toys import HIGH, LOW, SEPARATOR, Chaos, MaskLover, Toy, Twins, World, words
from voidpad.decode import Outcome, Plan, Step, decode, plan
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
PRESETS: dict[type, str] = {
    Fixed: "original",
    Expansion: "void-expansion",
    Crop: "smart-crop",
    Daedal: "daedal",
    Rho: "rho-eos",
    Appended: "append-blocks",
}


def plan_of(s: Settings) -> Plan:
    """The plan that says what the reference's settings say, through the presets people use.

    Settings have all deviations of the released programs or none.
    """
    name = PRESETS[type(s.length)] + "@authors" * (s == as_published(s))
    deviations = DEVIATIONS.get(type(s.length), {}).keys() - {"minimum"}
    fields = {field: value for field, value in vars(s.length).items() if field not in deviations}
    fields |= {"block": s.block, "ban": s.ban, "cut": s.cut, "stop": "eos" if s.eos_stop else "vanilla"}
    if isinstance(s.length, Daedal | Rho):
        return plan(name, **fields)
    if s.commit == "quota" or s.leave_blocks:
        fields["steps"] = s.per_block * (s.length.canvas // s.block if isinstance(s.length, Fixed) else 1)
    if s.commit == "quota":
        fields |= {"schedule": s.schedule, "position_decay": s.decay}
    elif s.commit == "entropy":
        fields |= {"entropy_bound": s.tau, "entropy_order": "entropy" if s.by_entropy else "score"}
    else:
        fields[s.commit] = s.tau  # a threshold or a factor
    if s.penalty:
        fields |= {"eos_penalty": s.penalty, "eos_annealing": s.annealing}
    fields |= {"mute": s.mute, "score": s.score, "temperature": s.temperature}
    if s.sampling != "tempered":
        return plan(name, **fields)
    return plan(name, defaults=FAMILIES["dream"].decoding, **fields, top_p=s.top_p, top_k=s.top_k)


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
    if rng.random() < 0.3:
        settings = as_published(settings)
    return Case(model(rng, roles, settings), roles, prompts(rng, roles), settings, rng.randrange(2**31))


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
    return Expansion(start, start + room, rng.randrange(1, 9), **taus)


def confident(rng: random.Random, roles: Roles, kind: str) -> Settings:
    canvas = rng.choice([3, 6, 10])
    common = {
        "canvas": canvas,
        "limit": canvas + rng.choice([0, 4, 6, 11, 15]),
        "high": rng.choice([0.3, 0.6, 0.9]),
        "check": rng.choice([2, 4, 7]),
    }
    if kind == "daedal":
        rule: Daedal | Rho = Daedal(
            **common,
            low=rng.choice([0.2, 0.5, 0.8]),
            grow=rng.choice([2, 8, 8]),
            enough=rng.choice([0.05, 0.2, 0.5]),
            content=rng.choice([0.3, 0.9]),
        )
    else:
        rho_low, rho_high = rng.choice([(0.4, 0.6), (0.4, 0.6), (0.25, 0.7), (0.1, 0.3)])
        rule = Rho(
            **common,
            unit=rng.choice([1, 2, 4, 8]),
            cap=rng.choice([2, 8]),
            adjust=rng.choice([3, 12, 64]),
            edit_growth=rng.choice(["exp", "linear", "const"]),
            minimum=rng.choice([None, None, 1]),
            signal=rng.choice(["density", "density", "tail_confidence"]),
            insert_at=rng.choice(["end", *["before_first_eos"] * 2]),
            rho_low=rho_low,
            rho_high=rho_high,
            interval=rng.choice([0.05, 0.1]),
        )
    ban = rng.choice([(), (), (roles.void,), (words(roles)[0],)])
    return Settings(rule, rng.choice([1, 2, 3, 4, 7]), ban=ban)
