"""The laws of the decoder, over generated cases: models that end, pad, grow, shrink and stall, ragged batches."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

import reference
from cases import LENGTHS, Case, Seen, case, plan_of, watch
from reference import Crop, Daedal, Expansion, Fixed, Rho, Settings, as_published
from toys import LOW, SEPARATOR, Table, Toy, World
from voidpad.decode import decode, plan
from voidpad.decode.commit import TopK
from voidpad.decode.propose import GumbelProposal, SampledProposal
from voidpad.models import FAMILIES, random_model

RESULT = ("ids", "tokens", "passes_decode", "passes_probe", "canvas", "stop_reason")
each_length = pytest.mark.parametrize("length", LENGTHS)


def cases(length: str, count: int):
    """Numbered cases of one length rule; the number is all that is needed to see one again."""
    return [(f"case({n}, ({length!r},))", case(n, (length,))) for n in range(count)]


@cache
def decoded(length: str, number: int) -> tuple[str, Case, Toy, list[Seen]]:
    """A numbered case and what became of its rows, decoded once for all laws."""
    c = case(number, (length,))
    denoise = c.denoise
    rows = watch(denoise, c.prompts, c.roles, c.plan, seed=c.seed)
    return f"case({number}, ({length!r},))", c, denoise, rows


def result(row) -> dict:
    return {name: getattr(row, name) for name in RESULT}


def one_row(c: Case, key: int) -> reference.Result:
    return reference.decode(c.logits, c.prompts[key], c.roles, c.settings, seed=c.seed, key=key)


# -------------------------------------------------------------------------------- 1: batch invariance
@each_length
def test_a_row_does_not_depend_on_its_company(length):
    """Some of the rows in another order, often one alone or beside a row so wide that sums would notice."""
    for name, c, _, together in (decoded(length, number) for number in range(50)):
        rng, count = random.Random(name), len(c.prompts)
        keys = rng.sample(range(count), 1 if rng.random() < 0.6 else rng.randint(1, count))
        prompts = [c.prompts[key] for key in keys]
        if rng.random() < 0.5:
            keys, prompts = [*keys, 99], [*prompts, [7] * 40 + [SEPARATOR[c.roles]]]
        apart = watch(c.denoise, prompts, c.roles, c.plan, seed=c.seed, keys=keys)
        for key, row in zip(keys, apart, strict=True):
            if key != 99:
                assert row.outcome == together[key].outcome, name
                assert row.commits == together[key].commits, name
                assert row.readings == together[key].readings, name  # to the last bit: no threshold can tell


# ------------------------------------------------------------------------------ 2: reference equality
HAPPENED = {  # what must have occurred, and how often at least, for equality to mean something
    "fixed": {"ended": 20, "early": 10, "full": 20, "stalled": 5, "void": 5}
    | {"left block": 3, "last candidate": 5},
    "expansion": {"ended": 20, "early": 10, "expanded": 50, "enough": 20, "cap": 20, "stalled": 5},
    "daedal": {"early": 20, "expanded": 50, "grown": 20, "cut off": 3, "cap": 20, "mask banned": 20},
    "rho": {"expanded": 50, "contracted": 20, "dropped a token": 5, "inserted": 10, "cap": 10, "stalled": 1},
    "crop": {"ended": 20, "early": 10, "contracted": 10, "full": 20, "stalled": 5},
}


@each_length
def test_tokens_and_passes_are_the_references(length):
    happened: Counter = Counter()
    for name, c, _, rows in (decoded(length, number) for number in range(70)):
        for key, row in enumerate(rows):
            wanted = one_row(c, key)
            assert result(row) == result(wanted), (name, key)
            assert written(row) == written(wanted), (name, key)
            assert row.states == wanted.states, (name, key)
            happened += events(c, wanted)
    assert happened["ragged"] > 50
    short = {what: happened[what] for what, least in HAPPENED[length].items() if happened[what] < least}
    assert not short, f"too rare among the cases: {short}"


def written(row) -> list[list[tuple[int, int]]]:
    return [sorted(commit[:2] for commit in one) for one in row.commits]


def events(c: Case, row: reference.Result) -> Counter:
    happened = Counter({what: count for what, count in row.events.items() if count})
    happened["ended"] += c.roles.eos in row.ids
    happened["void"] += c.roles.void in row.ids
    happened["early"] += row.stop_reason == "eos" and c.roles.mask in row.ids
    happened[row.stop_reason] += 1
    happened["ragged"] += len({len(prompt) for prompt in c.prompts}) > 1
    return happened


SMALL = {"fixed": {"canvas": 16, "block": 4}, "adaptive": {"canvas": 6, "limit": 22, "block": 4}}
RULES = {"void-expansion": Expansion(6, 22, 16, 0.09, -0.45), "daedal": Daedal(6, 22), "rho-eos": Rho(6, 22)}


def preset_settings(name: str, family: str, authors: bool) -> Settings:
    """What the specification says a preset is, with small numbers for the lengths."""
    length = RULES.get(name, Crop(16) if name == "smart-crop" else Fixed(16))
    if name == "void-expansion" and family == "dream":
        length = replace(length, tau_nonvoid=0.15, tau_gap=0.55)
    if name == "rho-eos" and authors:
        length = replace(length, insert_at="before_first_eos")
    void = (LOW.void,) if name.startswith("void") else ()
    settings = Settings(length, 4, ban=void, eos_stop=bool(void), cut=not (authors and family == "llada"))
    if family == "dream" and name not in ("daedal", "rho-eos"):
        mute = (
            void if authors else ()
        )  # scores without VOID lose answers on long blocks: the authors' way only
        dreams = {"schedule": "dream", "score": "neg_entropy", "sampling": "tempered", "mute": mute}
        settings = replace(settings, **dreams)
    return as_published(settings) if authors else settings


@pytest.mark.parametrize("authors", [False, True], ids=["default", "authors"])
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("name", ["original", "void", "void-expansion", "daedal", "rho-eos", "smart-crop"])
def test_presets_are_the_specifications(name, family, authors):
    fields = SMALL["adaptive" if name in RULES else "fixed"]
    chosen = plan(name + "@authors" * authors, defaults=FAMILIES[family].decoding, **fields)
    settings = preset_settings(name, family, authors)
    for seed in range(4):
        logits = World(LOW, seed, ("void", "eos")[seed % 2], doubt=0.3)
        prompts = [[7, 8, SEPARATOR[LOW]], [SEPARATOR[LOW]], [6, SEPARATOR[LOW]]]
        for prompt, row in zip(prompts, watch(Toy(logits), prompts, LOW, chosen), strict=True):
            assert result(row) == result(reference.decode(logits, prompt, LOW, settings))


# --------------------------------------------------------------------------------------- 3: stopping
@pytest.mark.parametrize("length", [name for name in LENGTHS if name != "rho"])
def test_termination_is_vanilla_cut_at_the_first_eos(length):
    saved = 0
    for name, c, _, own in (decoded(length, number) for number in range(50)):
        other = c.with_stop(not c.settings.eos_stop).plan
        both = [own, watch(c.denoise, c.prompts, c.roles, other, seed=c.seed)]
        early, late = both if c.settings.eos_stop else both[::-1]
        for stopped, row in zip(early, late, strict=True):
            # A block that was left with masks in it keeps the row from ending early; `cut` then decides alone.
            whole = stopped.stop_reason == "limit" and not c.settings.cut
            assert stopped.tokens == (row.ids if whole else cut(row.ids, c.roles.eos)), name
            assert stopped.passes_probe == row.passes_probe, name
            assert stopped.passes_decode <= row.passes_decode, name
            saved += row.passes_decode - stopped.passes_decode
    assert saved > 35


def cut(ids: list[int], eos: int) -> list[int]:
    return ids[: ids.index(eos) + 1] if eos in ids else ids


# ------------------------------------------------------------------------------- 4: what may be written
@each_length
def test_commits_stay_on_the_frontier_nothing_is_masked_again_and_steps_tell_all(length):
    """Tokens written and changes of length lead from the canvas before a pass to the one after it."""
    kinds: Counter = Counter()
    for name, c in cases(length, 36):
        for step in decode(c.denoise, c.prompts, c.roles, c.plan, seed=c.seed):
            canvas = step.before
            assert not (step.chosen & ~step.proposed.frontier).any(), name
            width = step.chosen.shape[1]
            assert not (step.proposed.frontier & ~canvas.in_windows(canvas.masked, width)).any(), name
            banned = set(c.settings.ban) | (set() if c.settings.mask_proposable else {c.roles.mask})
            assert not banned & set(step.proposed.tokens[step.chosen].tolist()), name
            wrote = step.after.decoded > step.before.decoded
            for row in wrote.nonzero()[:, 0].tolist():
                check_kept(
                    canvas.write(step.chosen, step.proposed.tokens).answer(row),
                    step.after.answer(row),
                    c,
                )
            for row in range(len(step.before)):  # a step names everything that it changed
                canvas = step.before.answer(row)
                for slot, token, _ in step.written(row):
                    canvas[slot] = token
                for kind, at, count, token in step.edits_of(row):
                    canvas[at : at + (count if kind == "cut" else 0)] = (
                        [] if kind == "cut" else [token] * count
                    )
                    kinds[kind] += 1
                assert canvas == step.after.answer(row), name
    changed = {
        "expansion": {"append"},
        "daedal": {"append", "insert"},
        "rho": {"insert", "cut"},
        "crop": {"cut"},
    }
    assert changed.get(length, set()) <= kinds.keys()


def check_kept(filled: list[int], after: list[int], c: Case) -> None:
    """Visible tokens stay, in order; only a cut of the tail may drop some. Fixed canvases do not even move them."""
    kept = [token for token in after if token != c.roles.mask]
    assert kept == [token for token in filled if token != c.roles.mask][: len(kept)]
    if not isinstance(c.settings.length, Daedal | Rho):
        assert after == filled


@each_length
def test_outputs_hold_neither_masks_nor_banned_tokens(length):
    left = 0
    for name, c, _, rows in (decoded(length, number) for number in range(50)):
        authors = isinstance(c.settings.length, Rho) and c.settings.length.insert_at != "end"
        authors |= c.settings.leave_blocks  # Dream's released loop leaves a block after its passes
        for row in rows:
            masks = c.roles.mask in (row.tokens if row.stop_reason == "eos" else row.ids)
            left += masks
            assert (row.stop_reason in ("stalled", "limit")) == masks, name  # a row with masks left says so
            assert not masks or authors or c.settings.mask_proposable, name
            shown = {c.roles.eos} if isinstance(c.settings.length, Daedal) else set()  # DAEDAL writes its own
            assert not (set(c.settings.ban) - shown) & set(row.ids), name
    assert (left > 0) == (length != "daedal")


def test_contraction_leaves_one_block_by_default():
    contracted = 0
    for name, c, _, rows in (decoded("rho", number) for number in range(60)):
        rule, block = c.settings.length, c.settings.block
        if rule.minimum is None:
            assert all(row.canvas >= min(block, rule.canvas) for row in rows), name
            contracted += any(row.canvas < rule.canvas for row in rows)
    assert contracted


# ----------------------------------------------------------------------------------------- 5: passes
@each_length
def test_a_row_is_charged_for_the_calls_it_took_part_in(length):
    shared = 0
    for name, _, denoise, rows in (decoded(length, number) for number in range(24)):
        for key, row in enumerate(rows):
            assert denoise.calls[key] == row.passes, name
            assert denoise.slots[key] == row.slot_passes, name
            shared += row.passes_shared
    assert (shared > 0) == (length == "expansion")  # its last probe is the first decoding pass


# ------------------------------------------------------------------------------------- 6: randomness
@each_length
def test_the_seed_matters_where_something_is_drawn_and_nowhere_else(length):
    """That the same seed gives the same rows again is law 1's."""
    differ = []
    for name, c, _, rows in (decoded(length, number) for number in range(32)):
        other = watch(c.denoise, c.prompts, c.roles, c.plan, seed=c.seed + 1)
        same = [row.outcome for row in rows] == [row.outcome for row in other]
        if c.settings.temperature == 0 and c.settings.score != "random":
            assert same, name
        else:
            differ.append(not same)
    assert sum(differ) > len(differ) / 3 or length in ("daedal", "rho")


CHANCES = {6: 0.5, 7: 0.3, 8: 0.1, 9: 0.07, LOW.void: 0.02, LOW.mask: 0.01}


@pytest.mark.parametrize(
    ("family", "fields", "allowed"),
    [
        ("llada", {"temperature": 1.0}, (6, 7, 8, 9)),
        ("llada", {"temperature": 0.5}, (6, 7, 8, 9)),
        ("dream", {"temperature": 0.5}, (6, 7, 8, 9)),
        ("dream", {"temperature": 2.0, "top_k": 2}, (6, 7)),
        ("dream", {"temperature": 1.0, "top_p": 0.9}, (6, 7, 8)),
    ],
)
def test_samples_follow_the_tempered_distribution(family, fields, allowed):
    count = 4000
    chosen = plan("void", defaults=FAMILIES[family].decoding, canvas=1, block=1, stop="vanilla", **fields)
    denoise = Toy(Table(lambda canvas: [CHANCES]))
    rows = watch(denoise, [[5]] * count, LOW, chosen, seed=11)
    found = Counter(row.ids[0] for row in rows)
    mass = {token: CHANCES[token] ** (1 / fields["temperature"]) for token in allowed}
    assert set(found) <= set(allowed)
    for token in allowed:
        p = mass[token] / sum(mass.values())
        assert abs(found[token] - count * p) < 4 * (count * p * (1 - p)) ** 0.5


# ------------------------------------------------------------------------- real networks, both families
PROMPTS = ["hi", "what is 2 + 3?", "name three things that are neither here nor there"]
REAL = [("void", SMALL["fixed"]), ("original", {**SMALL["fixed"], "temperature": 0.8})]
REAL += [(name, {**SMALL["adaptive"], "canvas": 8}) for name in ("void-expansion", "daedal", "rho-eos")]


def full_logits(model, ids: list[int]) -> torch.Tensor:
    """Aligned logits of a whole row: the plain forward pass, moved by one for Dream (0.1)."""
    with torch.inference_mode():
        raw = model.net(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return raw if model.family.name == "llada" else torch.cat([raw[:1], raw[:-1]])


@pytest.mark.parametrize(("name", "fields"), REAL, ids=[name for name, _ in REAL])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_real_networks_match_the_reference_in_float64(family, name, fields):
    model = random_model(family, kv_heads=2, seed=3, dtype=torch.float64)
    prompts = [model.encode(text, raw=True) for text in PROMPTS]
    chosen = model.plan(name, **fields)
    rows = watch(model.denoiser(), prompts, model.roles, chosen, seed=4)
    settings = real_settings(name, family, model.roles.void, fields)
    for key, row in enumerate(rows):
        wanted = reference.decode(
            lambda ids: full_logits(model, ids), prompts[key], model.roles, settings, seed=4, key=key
        )
        assert result(row) == result(wanted)


def real_settings(name: str, family: str, void: int, fields: dict) -> Settings:
    settings = preset_settings(name, family, authors=False)
    settings = replace(settings, ban=(void,) * len(settings.ban), mute=(void,) * len(settings.mute))
    if name in RULES:
        return replace(settings, length=replace(settings.length, canvas=8))
    sampling = "gumbel" if family == "llada" else "tempered"
    return replace(settings, temperature=fields.get("temperature", 0.0), sampling=sampling)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_in_float32_a_row_differs_only_behind_a_near_tie(family):
    for seed in range(6):
        model = random_model(family, seed=seed)
        prompts = [model.encode(text, raw=True) for text in PROMPTS]
        chosen = model.plan("void", **SMALL["fixed"])
        together = watch(model.denoiser(), prompts, model.roles, chosen)
        for key, prompt in enumerate(prompts):
            [alone] = watch(model.denoiser(), [prompt], model.roles, chosen, keys=[key])
            for first, second in zip(together[key].commits, alone.commits, strict=False):
                if [c[:2] for c in first] != [c[:2] for c in second]:
                    assert abs(first[0][2] - second[0][2]) < 1e-5, (seed, key)
                    break
            else:
                assert result(together[key]) == result(alone), (seed, key)


# ------------------------------------------------------------------------------------ preset defaults
def test_preset_numbers_are_the_specifications():
    """The numbers of DAEDAL, rho-EOS and SmartCrop are those of the reference's classes."""
    dream = FAMILIES["dream"].decoding
    for defaults, taus in ((None, (0.09, -0.45)), (dream, (0.15, 0.55))):
        expansion = plan("void-expansion", defaults=defaults)
        length = expansion.length
        assert (length.canvas, length.limit, length.window, expansion.block) == (64, 512, 16, 32)
        assert (length.tau_nonvoid, length.tau_gap) == taus
        for name, rule in (("daedal", Daedal()), ("rho-eos", Rho())):
            assert plan(name, defaults=defaults) == plan_of(Settings(rule, 32))
        assert plan("smart-crop", defaults=defaults).length == plan_of(Settings(Crop(512), 32)).length
    assert plan("void").commit == TopK(steps=32, schedule="even")
    assert plan("void", defaults=dream).commit == TopK(steps=32, schedule="dream")
    assert plan("void").propose == GumbelProposal(score="confidence")
    assert plan("void", defaults=dream).propose == SampledProposal(score="neg_entropy")
