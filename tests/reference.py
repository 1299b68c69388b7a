"""The specification as a decoder: one row, full float64 logits, plain loops, nothing shared with `voidpad.decode`.

Slots are 0-based canvas offsets. `logits(ids)` gets the whole row (prompt and canvas) and returns aligned
logits of shape (len(ids), V). Speed does not matter here; being readable beside the specification does.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch
from torch import Tensor

Logits = Callable[[list[int]], Tensor]
GOLDEN, WORD = 0x9E3779B97F4A7C15, 2**64


# ------------------------------------------------------------------------------------------ settings
@dataclass(frozen=True)
class Fixed:
    canvas: int


@dataclass(frozen=True)
class Expansion:  # section 4
    canvas: int
    limit: int
    window: int
    tau_nonvoid: float
    tau_gap: float
    cap_rounding: str = "ceil"  # or "floor"
    mask_in_max: bool = False


@dataclass(frozen=True)
class Daedal:  # section 5
    canvas: int = 64
    limit: int = 2048
    high: float = 0.9
    low: float = 0.1
    grow: int = 8  # E
    enough: float = 0.5  # c1
    content: float = 0.9  # c2
    check: int = 32  # n


@dataclass(frozen=True)
class Rho:  # section 6
    canvas: int = 64
    limit: int = 2048
    high: float = 0.9
    unit: int = 8
    rho_low: float = 0.4
    rho_high: float = 0.6
    interval: float = 0.1
    edit_growth: str = "exp"  # or "const", "linear"
    cap: int = 8  # of the multiplier
    adjust: int = 64  # iterations that may change the length
    signal: str = "density"  # or "tail_confidence"
    insert_at: str = "end"  # or "before_first_eos"
    rounding: str = "tolerant"  # or "float32"
    check: int = 32
    minimum: int | None = None  # None: one block


@dataclass(frozen=True)
class Crop:  # section 7
    canvas: int
    tau: float = 0.95


@dataclass(frozen=True)
class Appended:  # rivals 3.5
    limit: int


@dataclass(frozen=True)
class Settings:
    length: Fixed | Expansion | Daedal | Rho | Crop | Appended
    block: int
    steps: int | None = None  # per block; None: the block size
    schedule: str = "even"  # or "dream"
    commit: str = "quota"  # or "threshold", "factor"; rivals 1.1: "entropy"
    tau: float = 0.9  # of threshold; f of factor; gamma of entropy
    by_entropy: bool = False  # rivals 1.1: the order; by score otherwise
    penalty: float = 0.0  # rivals 3.2, 3.3: lambda
    annealing: str = "dream-coder"  # or "constant", "linear"
    decay: float = 0.0  # rivals 3.3: lambda of the position factor
    score: str = "confidence"  # or "neg_entropy", "margin", "random"
    ban: tuple[int, ...] = ()
    mute: tuple[int, ...] = ()  # not in the scored distribution: the ban set where scores are renormalised
    sampling: str = "argmax"  # or "gumbel" (LLaDA), "tempered" (Dream)
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    eos_stop: bool = False
    mask_proposable: bool = False
    leave_blocks: bool = False  # the authors' Dream loop: S passes a block, then the next, masks or not
    factor_last: bool = False  # Fast-dLLM's code: the last candidate goes with the others if it alone fails
    cut: bool = True

    @property
    def per_block(self) -> int:
        """S; thresholds and factors know no steps, except in the authors' Dream loop, which leaves a block after S."""
        scheduled = self.commit == "quota" or self.leave_blocks
        return self.block if self.steps is None or not scheduled else self.steps


# What the released programs do otherwise (0.5), by length rule.
DEVIATIONS: dict[type, dict] = {
    Expansion: {"cap_rounding": "floor", "mask_in_max": True},
    Rho: {"rounding": "float32", "minimum": 0},
}


def as_published(s: Settings) -> Settings:
    """The settings with every deviation of the released programs: those of `@authors` plans."""
    s = replace(s, length=replace(s.length, **DEVIATIONS.get(type(s.length), {})))
    if isinstance(s.length, Daedal | Rho):
        return s
    return replace(s, mask_proposable=True, factor_last=True, leave_blocks=s.sampling == "tempered")


@dataclass
class Result:
    """One row, while it is decoded and when it is done."""

    logits: Logits
    prompt: list[int]
    settings: Settings
    mask: int
    eos: int
    void: int | None
    seed: int
    key: int
    ids: list[int] = field(default_factory=list)  # the canvas
    tokens: list[int] = field(default_factory=list)  # the answer
    stop_reason: str = ""
    passes_decode: int = 0
    passes_probe: int = 0
    idle: int = 0  # passes in a row that changed nothing
    commits: list[list[tuple[int, int, float]]] = field(
        default_factory=list
    )  # per decoding pass: slot, token, score
    states: list[list[int]] = field(default_factory=list)  # the canvas after each decoding pass
    signals: list[float] = field(default_factory=list)  # DAEDAL's conf, rho-EOS's rho, pass by pass
    events: Counter = field(default_factory=Counter)  # how often the interesting things happened

    @property
    def canvas(self) -> int:
        return len(self.ids)

    def forward(self) -> Tensor:
        """Logits of the canvas slots, (length, V)."""
        if not self.ids:
            return torch.empty(0, 1, dtype=torch.float64)
        return self.logits(self.prompt + self.ids)[len(self.prompt) :].double()

    def masks(self, start: int, stop: int) -> list[int]:
        return [j for j in range(start, min(stop, len(self.ids))) if self.ids[j] == self.mask]

    def write(self, commits: list[tuple[int, int, float]]) -> None:
        """End a decoding pass."""
        for slot, token, _ in commits:
            self.ids[slot] = token
        self.commits.append(commits)
        self.passes_decode += 1

    def ended(self) -> bool:
        """Close the books of a pass; 3.2: is there an EOS with nothing masked before it?"""
        self.states.append(list(self.ids))
        if not self.settings.eos_stop or self.eos not in self.ids:
            return False
        return self.mask not in self.ids[: self.ids.index(self.eos)]


def decode(
    logits: Logits, prompt: list[int], roles, settings: Settings, *, seed: int = 0, key: int = 0
) -> Result:
    """Decode one row; `roles` needs mask, eos and void."""
    row = Result(logits, list(prompt), settings, roles.mask, roles.eos, roles.void, seed, key)
    length = settings.length
    if isinstance(length, Daedal):
        row.stop_reason = daedal(row, length)
    elif isinstance(length, Rho):
        row.stop_reason = rho_eos(row, length)
    elif isinstance(length, Appended):
        row.stop_reason = append_blocks(row, length)
    else:
        row.stop_reason = blocks(row, choose_length(row, length))
    row.tokens = list(row.ids)
    if row.eos in row.ids and (settings.cut or row.stop_reason == "eos"):
        row.tokens = row.ids[: row.ids.index(row.eos) + 1]
    return row


# ------------------------------------------------------------------------------- 0.2, 2.3-2.6: proposals
def mix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    return z ^ (z >> 31)


def uniform(seed: int, key: int, number: int, slot: int, v: int) -> float:
    """A draw in (0, 1) that depends on nothing but its five coordinates."""
    h = seed % WORD
    for part in (key, number, slot, v + 1):
        h = mix64((h + GOLDEN * (part + 1)) % WORD)
    return ((h >> 11) + 0.5) * 2.0**-53


def best(values: dict[int, float]) -> int:
    """The index with the largest value; a tie goes to the smallest index."""
    return min(values, key=lambda index: (-values[index], index))


def softmax(z: Tensor, without: Iterable[int] = ()) -> Tensor:
    z = z.clone()
    z[list(without)] = -math.inf
    return torch.softmax(z, -1) if bool((z > -math.inf).any()) else torch.zeros_like(z)


def kept(z: Tensor, top_k: int | None, top_p: float | None) -> list[int]:
    """The smallest set of likeliest tokens whose mass reaches top-p, then the top-k of these; at least one token."""
    order = sorted((v for v in range(len(z)) if z[v] > -math.inf), key=lambda v: (-float(z[v]), v))
    if top_p is not None:
        p = softmax(z, set(range(len(z))) - set(order))
        mass, few = 0.0, []
        for v in order:
            if few and mass >= top_p:
                break
            few.append(v)
            mass += float(p[v])
        order = few
    return order[:top_k] if top_k else order


def adjusted(row: Result, z: Tensor) -> Tensor:
    """Rivals 3.2, 3.3: the logits of one masked slot after the penalty on EOS."""
    s, z = row.settings, z.clone()
    if s.penalty:
        t = row.ids.count(row.mask) / len(row.ids)
        weight = {"constant": 1.0, "linear": t, "dream-coder": -math.log(1 - t + 1e-3)}[s.annealing]
        z[row.eos] -= s.penalty * weight
    return z


def propose(row: Result, z: Tensor, slot: int) -> tuple[int | None, float, float]:
    """Token, score and entropy of one masked slot; the entropy is that of the sampled distribution (rivals 1.1)."""
    s = row.settings
    refused = set(s.ban) | (set() if s.mask_proposable else {row.mask})
    gone = set(s.mute)
    z = z / s.temperature if s.sampling == "tempered" and s.temperature > 0 else z
    allowed = {v for v in range(len(z)) if v not in refused and z[v] > -math.inf}
    if not allowed:
        return None, -1000.0 if s.score in GUARDED else 0.0, math.inf
    if s.sampling == "tempered":  # the filters hold at every temperature
        choice = z.clone()
        choice[list(refused)] = -math.inf
        few = set(kept(choice, s.top_k, s.top_p))
        allowed, gone = few, gone | (allowed - few)
    wish = {v: float(z[v]) for v in allowed}
    greedy = best(wish)
    if s.sampling != "argmax" and s.temperature > 0:
        scale = s.temperature if s.sampling == "gumbel" else 1.0
        for v in wish:
            wish[v] -= scale * math.log(-math.log(uniform(row.seed, row.key, row.passes_decode, slot, v)))
    token, p = best(wish), softmax(z, gone)
    hot = s.sampling == "gumbel" and s.temperature > 0
    sampled = softmax(z / s.temperature, gone) if hot else p
    h = -sum(x * math.log(x) for x in sampled.tolist() if x > 0)
    if p[greedy] < p.max() or p[token] == 0:  # rivals 0, the ban guard
        row.events["guarded"] += 1
        last = float(p[token]) - 1000.0  # after all others, by their probability
        return token, last if s.score in GUARDED else score_of(row, p, token, slot), math.inf
    return token, score_of(row, p, token, slot), h


GUARDED = ("neg_entropy", "margin")


def score_of(row: Result, p: Tensor, token: int, slot: int) -> float:
    score = row.settings.score
    if score == "random":
        return uniform(row.seed, row.key, row.passes_decode, slot, -1)
    if score == "neg_entropy":
        return float((p * torch.log(p + 1e-10)).sum())
    if score == "margin":
        first, second = torch.topk(p, 2).values.tolist()
        return first - second
    return float(p[token])


# ---------------------------------------------------------------------------------- 2.1-2.8: block decoding
def even_quota(n: int, steps: int, step: int) -> int | None:
    """2.2; None means everything that is left. The quota is 0 only where MASK was proposed (authors' switch)."""
    if step >= steps:
        return None
    return n // steps + (1 if step < n % steps else 0)


def dream_quota(left: int, steps: int, step: int) -> int | None:
    """2.4, in exact arithmetic."""
    if step >= steps - 1:
        return None
    tau = [1 - Fraction(999, 1000) * i / steps for i in (step, step + 1)]
    return math.floor(left * (1 - tau[1] / tau[0]))


def bounded(scores: dict[int, float], h: dict[int, float], gamma: float, by_entropy: bool) -> list[int]:
    """Rivals 1.1: the longest beginning of the order with D_k <= gamma; at least one slot."""
    order = sorted(scores, key=lambda j: (-scores[j], j))
    if by_entropy:
        order.sort(
            key=lambda j: (h[j], 0 if math.isinf(h[j]) else j)
        )  # failed slots keep the order of the scores
    count = 1
    for k in range(1, len(order) + 1):
        first = [h[j] for j in order[:k]]
        if math.isinf(max(first)) or sum(sorted(first)[:-1]) > gamma:
            break
        count = k
    return order[:count]


def taken(
    row: Result, scores: dict[int, float], h: dict[int, float], *, start: int, opened: int, step: int
) -> list[int]:
    """Which of the scored slots are committed in this pass."""
    s = row.settings
    if s.commit == "quota" and s.decay:
        scores = {j: c * math.exp(-s.decay * (j - start)) if c > 0 else c for j, c in scores.items()}
    order = sorted(scores, key=lambda j: (-scores[j], j))
    if s.commit == "entropy":
        return bounded(scores, h, s.tau, s.by_entropy)
    if s.commit == "threshold":
        return [j for j in order if scores[j] >= s.tau] or order[:1]
    if s.commit == "factor":
        fits = [n for n in range(1, len(order) + 1) if scores[order[n - 1]] >= 1 - s.tau / (n + 1)]
        count = max(fits, default=1)
        if s.factor_last and count == len(order) - 1:
            row.events["last candidate"] += 1
            count += 1
        return order[:count]
    if s.schedule == "dream":
        return order[: dream_quota(len(order), s.per_block, step)]
    return order[: even_quota(opened, s.per_block, step)]


def blocks(row: Result, length: int) -> str:
    """2.1: fill a canvas of `length` masks block by block. Returns the reason for stopping."""
    row.ids = [row.mask] * length
    start = 0
    while start < length:
        reason = fill(row, start, row.settings.block)
        if reason:
            return reason
        start += row.settings.block
    return "limit" if row.mask in row.ids else "full"


def append_blocks(row: Result, rule: Appended) -> str:
    """Rivals 3.5, dLLM-Var: a canvas that ends with the open block, and one block more until an EOS is written."""
    row.ids = []
    while len(row.ids) < rule.limit and row.eos not in row.ids:
        start = len(row.ids)
        row.ids += [row.mask] * min(row.settings.block, rule.limit - start)
        if start:
            row.states[-1] = list(row.ids)  # the pass that filled the canvas appends the next block
            row.events["expanded"] += 1
        reason = fill(row, start, row.settings.block)
        if reason:
            return reason
    return "full"


def fill(row: Result, start: int, size: int) -> str | None:
    """Fill one block; the reason if the row stops there."""
    s = row.settings
    opened, step = len(row.masks(start, start + size)), 0
    while row.masks(start, start + size):
        if s.leave_blocks and step >= s.per_block:
            row.events["left block"] += 1
            row.idle = 0
            break
        before = list(row.ids)
        block_pass(row, range(start, start + size), opened=opened, step=step)
        step += 1
        if row.ended():
            return "eos"
        row.idle = row.idle + 1 if row.ids == before else 0
        if row.idle == max(s.per_block, s.block) + 1:
            return "stalled"
    return None


def block_pass(row: Result, block: range, *, opened: int, step: int) -> None:
    z = row.forward()
    masks = row.masks(block.start, block.stop)
    proposals = {j: propose(row, adjusted(row, z[j]), j) for j in masks}
    scores, h = ({j: one[part] for j, one in proposals.items()} for part in (1, 2))
    chosen = taken(row, scores, h, start=block.start, opened=opened, step=step)
    commits = []
    for j in chosen:
        token, score, _ = proposals[j]
        if token is None:
            raise ValueError(f"slot {j}: every token is banned")
        commits.append((j, token, score))
    row.write(commits)


# ------------------------------------------------------------------- 4, 7: a canvas chosen before decoding
def choose_length(row: Result, length: Fixed | Expansion | Crop) -> int:
    if isinstance(length, Expansion):
        return void_expansion(row, length)
    if isinstance(length, Crop):
        return smart_crop(row, length)
    return length.canvas


def void_expansion(row: Result, rule: Expansion) -> int:
    block = row.settings.block
    size = math.ceil(rule.canvas / block) * block
    limit = (math.ceil if rule.cap_rounding == "ceil" else math.floor)(rule.limit / block) * block
    if size > limit or rule.limit < rule.canvas:
        raise ValueError(f"start {rule.canvas} does not fit under the cap {limit}")
    while size <= limit:
        row.ids = [row.mask] * size
        p = torch.softmax(row.forward(), -1)
        row.passes_probe += 1
        rivals = [v for v in range(p.shape[-1]) if v != row.void and (rule.mask_in_max or v != row.mask)]
        tail = range(size - min(rule.window, size), size)
        void = [float(p[i][row.void]) for i in tail]
        other = [max(float(p[i][v]) for v in rivals) for i in tail]
        nonvoid = sum(other) / len(tail)
        gap = sum(v - o for v, o in zip(void, other, strict=True)) / len(tail)
        if nonvoid <= rule.tau_nonvoid and gap >= rule.tau_gap:
            row.events["enough"] += 1
            return size
        row.events["expanded"] += size + block <= limit
        size += block
    row.events["cap"] += 1
    return limit


def smart_crop(row: Result, rule: Crop) -> int:
    block = row.settings.block
    if rule.canvas % block:
        raise ValueError(f"canvas {rule.canvas} is no multiple of the block {block}")
    row.ids = [row.mask] * rule.canvas
    q = torch.softmax(row.forward(), -1)[:, row.eos].tolist()
    row.passes_probe += 1
    alive, found = 1.0, rule.canvas
    for i, chance in enumerate(q, start=1):
        alive *= 1 - chance
        if 1 - alive >= rule.tau:
            found = i
            break
    size = math.ceil(found / block) * block
    row.events["contracted"] += size < rule.canvas
    return size


# ----------------------------------------------------------------------------------------- 5: DAEDAL
def likeliest(p: Tensor, without: Iterable[int] = ()) -> int:
    return best({v: chance for v, chance in enumerate(p.tolist()) if v not in set(without)})


def tail_confidence(row: Result, p: Tensor, n: int) -> float:
    """EOS confidence: the last n slots whose argmax is EOS, their sum divided by n."""
    found: list[float] = []
    for j in reversed(range(len(row.ids))):
        if len(found) < n and likeliest(p[j]) == row.eos:
            found.append(float(p[j][row.eos]))
    return sum(found) / n


def confident(row: Result, z: Tensor, window: list[int], hi: float) -> tuple[list, dict[int, float]]:
    """Step 3: the commits of one pass, and the confidence of each masked slot of the window."""
    p = torch.softmax(z, -1)
    ban = set(row.settings.ban)
    y = {j: likeliest(p[j], ban) for j in window}
    c = {j: float(p[j][y[j]]) for j in window}
    words = {j: c[j] for j in window if y[j] != row.mask}
    sure = [(j, y[j], c[j]) for j in words if c[j] > hi]
    if sure or not window:
        return sure, c
    if words:
        j = best(words)
        return [(j, y[j], c[j])], c
    without = {j: softmax(z[j], {row.mask}) for j in window}
    y = {j: likeliest(without[j], ban | {row.mask}) for j in window}
    again = {j: float(without[j][y[j]]) for j in window}
    j = best(again)
    row.events["mask banned"] += 1
    return [(j, y[j], again[j])], c


def advance(row: Result, pos: int) -> int:
    """Step 6: move past windows without masks."""
    while pos < len(row.ids) and not row.masks(pos, pos + row.settings.block):
        pos = min(pos + row.settings.block, len(row.ids))
    return pos


def daedal_start(row: Result, rule: Daedal) -> None:
    row.ids = [row.mask] * rule.canvas
    while True:
        p = torch.softmax(row.forward(), -1)
        row.passes_probe += 1
        row.signals.append(tail_confidence(row, p, rule.check))
        if row.signals[-1] >= rule.enough or len(row.ids) == rule.limit:
            break
        row.ids += [row.mask] * min(rule.grow, rule.limit - len(row.ids))
        row.events["expanded"] += 1
    row.events["cap"] += len(row.ids) == rule.limit
    row.ids += [row.eos] * min(rule.check // 2, rule.limit - len(row.ids))


def daedal(row: Result, rule: Daedal) -> str:
    daedal_start(row, rule)
    pos, denoise_only = 0, False
    while pos < len(row.ids):
        denoise_only = denoise_only or len(row.ids) >= rule.limit
        before = list(row.ids)
        z = row.forward()
        conf = tail_confidence(row, torch.softmax(z, -1), rule.check)
        row.signals.append(conf)
        window = row.masks(pos, pos + row.settings.block)
        fill, c = confident(row, z, window, rule.high)
        low = {j: -c[j] for j in window if c[j] < rule.low and j not in {slot for slot, _, _ in fill}}
        may_grow = conf < rule.content and len(row.ids) < rule.limit and not denoise_only
        row.write(fill)
        if low and may_grow:
            j = best(low)
            row.ids[j : j + 1] = [row.mask] * rule.grow
            row.events["cut off"] += len(row.ids) > rule.limit
            row.ids = row.ids[: rule.limit]
            row.events["grown"] += 1
        pos = advance(row, pos)
        if row.ended():
            return "eos"
        if row.ids == before:
            return "stalled"
    return "full"


# ---------------------------------------------------------------------------------------- 6: rho-EOS
def density(row: Result, p: Tensor, masks: list[int]) -> float:
    return sum(likeliest(p[j]) == row.eos for j in masks) / len(masks) if masks else 0.0


def segments(gap: float, interval: float, rounding: str) -> int:
    if rounding == "float32":
        ratio = torch.tensor(gap, dtype=torch.float32) / torch.tensor(interval, dtype=torch.float32)
        return max(1, math.ceil(float(ratio)))
    return max(1, math.ceil(gap / interval - 1e-6))


def edit(rule: Rho, rho: float) -> int:
    """How many slots to add (positive) or drop (negative)."""
    low, high = rule.rho_low, rule.rho_high
    if rule.rounding == "float32":
        rho, low, high = (float(torch.tensor(x, dtype=torch.float32)) for x in (rho, low, high))
    if low <= rho <= high:
        return 0
    gap = low - rho if rho < low else rho - high
    seg = segments(gap, rule.interval, rule.rounding)
    mult = {"const": 1, "linear": seg, "exp": 2 ** (seg - 1)}[rule.edit_growth]
    return (1 if rho < low else -1) * rule.unit * min(mult, rule.cap)


def resize(row: Result, rule: Rho, change: int) -> None:
    length = len(row.ids)
    if change > 0:
        new = [row.mask] * (min(length + change, rule.limit) - length)
        at = length
        if rule.insert_at == "before_first_eos" and row.eos in row.ids:
            at = row.ids.index(row.eos)
            row.events["inserted"] += 1
        row.ids[at:at] = new
        row.events["expanded"] += 1
        row.events["cap"] += len(row.ids) == rule.limit
    if change < 0:
        shortest = row.settings.block if rule.minimum is None else rule.minimum
        keep = max(length + change, min(shortest, length), 0)
        row.events["contracted"] += keep < length
        row.events["dropped a token"] += any(t != row.mask for t in row.ids[keep:])
        row.ids = row.ids[:keep]


def rho_eos(row: Result, rule: Rho) -> str:
    row.ids = [row.mask] * rule.canvas
    pos, denoise_only, iteration = 0, False, 0
    while True:
        iteration += 1
        if iteration > rule.limit and rule.insert_at != "end":
            return "limit"  # inserting at the end never leaves a mask: it goes on without edits until all is full
        denoise_only = denoise_only or len(row.ids) >= rule.limit or iteration > min(rule.adjust, rule.limit)
        before = list(row.ids)
        z = row.forward()
        p = torch.softmax(z, -1)
        tail = rule.signal == "tail_confidence"
        everywhere = row.masks(0, len(row.ids))
        rho = tail_confidence(row, p, rule.check) if tail else density(row, p, everywhere)
        row.signals.append(rho)
        fill, _ = confident(row, z, row.masks(pos, pos + row.settings.block), rule.high)
        row.write(fill)
        pos = advance(row, pos)
        if not denoise_only:
            resize(row, rule, edit(rule, rho))
        pos = min(pos, len(row.ids))
        if row.ended():
            return "eos"
        if row.ids == before or pos >= len(row.ids):
            return "stalled" if row.mask in row.ids else "full"
