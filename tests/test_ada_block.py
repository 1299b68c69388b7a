"""AdaBlock (spec rivals 3.4): blocks that end at a delimiter. Its worked example, the laws, and what is refused."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import reference
from cases import Case, case, steps_of, watch
from examples import A, sure
from reference import Crop, Expansion, Fixed, Settings
from toys import LOW, SEPARATOR, Table, Toy, words
from voidpad.decode import Plan, Step, describe, plan
from voidpad.decode.block_ends import DelimitedBlocks
from voidpad.decode.causal import CausalBlocks
from voidpad.decode.commit import Static, Threshold
from voidpad.decode.eos_length import Daedal, RhoEos
from voidpad.decode.length import AppendedBlocks, RoundedUp, SmartCrop, VoidExpansion
from voidpad.decode.propose import GumbelProposal, confidence, margin, neg_entropy
from voidpad.diagnose.trace import Recorder
from voidpad.engine.batching import Engine
from voidpad.errors import ConfigError, RoleError
from voidpad.evaluate.answer import Answering
from voidpad.models import FAMILIES, random_model
from voidpad.models.model import Model

M, EOS = LOW.mask, LOW.eos
NEWLINE, OTHER = 11, 12  # tokens that end a line
RESULT = ("ids", "tokens", "passes_decode", "passes_probe", "canvas", "stop_reason")


# -------------------------------------------------------------------------------------- worked example
def lines(canvas: int, ends: dict[int, float], token: int = NEWLINE) -> Table:
    """Words everywhere, and delimiters of these probabilities at these slots, counted from 0."""
    slots = [sure(token, ends[j]) if j in ends else sure(A, 0.5) for j in range(canvas)]
    return Table(lambda canvas: slots, vocab=64)


def entered(logits: Table, canvas: int = 512, **fields) -> Iterator[Step]:
    """The passes that enter a block of a row, under the preset."""
    chosen = plan("ada-block", canvas=canvas, **{"delimiters": (NEWLINE, OTHER), **fields})
    last = -1
    for step in steps_of(Toy(logits), [[5]], LOW, chosen):
        if int(step.before.open[0]) != last:
            last = int(step.before.open[0])
            yield step


def sizes(*given, **fields) -> list[int]:
    return [int(step.before.size[0]) for step in entered(*given, **fields)]


EXAMPLE = {7: 0.22, 19: 0.64, 40: 0.58}


def test_worked_example():
    """L = 512, so the window has 128 slots. The surest newline is the 20th slot; below .3 the block has 32 slots."""
    passes = entered(lines(512, EXAMPLE), threshold=0.4)
    first, second = next(passes), next(passes)
    assert (int(first.where.sum()), int(first.before.size[0])) == (128, 20)
    assert first.frontier[0].nonzero()[:, 0].tolist() == list(range(1, 21))
    assert set(first.chosen[0].nonzero()[:, 0].tolist()) == set(range(1, 21)) - {8}  # all surer than .4
    assert (int(second.before.open[0]), int(second.before.size[0])) == (21, 21)  # up to the newline at 40
    unsure = {slot: chance / 3 for slot, chance in EXAMPLE.items()}
    assert int(next(entered(lines(512, unsure), threshold=0.4)).before.size[0]) == 32
    settings = Settings(Fixed(512), 32, commit="threshold", tau=0.4, delimiters=(NEWLINE,))
    for logits, size in ((lines(512, EXAMPLE), 20), (lines(512, unsure), 32)):
        row = reference.Row(logits, [5], settings, M, EOS, LOW.void, 0, 0, [M] * 512)
        assert reference.delimited(row, 0) == size


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ({15: 0.5}, 16),  # the last slot of the window of 64 / 4
        ({16: 0.9}, 8),  # beyond it
        ({3: 0.3 + 1e-9, 12: 0.2}, 4),  # as sure as tau_D is enough
        ({3: 0.3 - 1e-9, 12: 0.2}, 8),
        ({5: 0.6, 2: 0.6, 9: 0.6}, 3),  # among equals the leftmost
        ({0: 0.9}, 1),
        ({}, 8),
    ],
)
def test_where_a_block_ends(ends, wanted):
    assert sizes(lines(64, ends), canvas=64, block=8, delimiter_threshold=0.3)[0] == wanted


def test_a_block_ends_with_the_canvas():
    """With 4 slots left neither the window of 8 nor the block of 16 reaches further."""
    found = sizes(lines(32, {27: 0.9, 7: 0.9}), canvas=32, block=16)
    assert found == [8, 16, 4, 4]  # to the newline at 7; the usual size; to the newline at 27; the rest
    assert sizes(lines(3, {0: 0.9}), canvas=3, block=3) == [3]  # a quarter of 3 slots is none


def test_a_delimiter_exactly_as_sure_as_the_threshold_ends_the_block():
    chosen = plan("ada-block", canvas=32, block=8, delimiters=(NEWLINE,))
    rows = next(steps_of(Toy(lines(32, {})), [[5]], LOW, chosen)).before
    rows = replace(rows, size=torch.zeros(1, dtype=torch.long))
    tokens, score = torch.full((1, 33), NEWLINE), torch.full((1, 33), 0.1, dtype=torch.float64)
    found = []
    for chance in (0.3, 0.3 - 1e-16):
        score[0, 4] = chance
        found.append(chosen.blocks(rows, tokens, score, torch.tensor([True]), (NEWLINE,), 8))
    assert [(int(one.size), int(one.entry)) for one in found] == [(4, 4), (8, 8)]
    waits = chosen.blocks(rows, tokens, score, torch.tensor([False]), (NEWLINE,), 8)
    assert int(waits.size) == 0  # a row that only probes enters no block


def test_every_delimiter_counts_and_a_banned_one_does_not():
    both = Table(
        lambda canvas: [sure({4: NEWLINE, 9: OTHER}.get(j, A), 0.7 + j / 100) for j in range(64)], vocab=64
    )
    given = {"canvas": 64, "block": 8}
    assert sizes(both, **given)[0] == 10
    assert sizes(both, **given, delimiters=(NEWLINE,))[0] == 5
    assert sizes(both, **given, ban=(OTHER,))[0] == 5


def test_a_slot_is_looked_at_once_a_block_and_written_inside_it_only():
    """Only the pass that enters a block proposes beyond it, and nothing is remembered or written there."""
    logits = lines(64, {5: 0.8, 20: 0.7})
    chosen = plan("ada-block", canvas=64, block=8, delimiters=(NEWLINE,), threshold=0.75, credit=0.7)
    looked = Counter()
    for step in steps_of(Toy(logits), [[5]], LOW, chosen):
        start, size = int(step.before.open[0]), int(step.before.size[0])
        inside = (step.before.canvas.offset >= start) & (step.before.canvas.offset < start + size)
        assert not (step.frontier & ~inside).any()
        assert not (step.chosen & ~step.frontier).any()
        assert (step.score[~step.frontier] == -torch.inf).all()
        assert (step.tokens[~step.frontier] == -1).all()
        held = (step.after.canvas.memory[..., 0] >= 0).any(2)
        assert not (held & ~(inside & step.after.canvas.masked)).any()
        looked[start] += bool((step.where & ~inside).any())
    assert set(looked.values()) <= {0, 1}
    assert sum(looked.values()) > 2


# ----------------------------------------------------------------------------------------------- laws
KINDS = ("fixed", "expansion", "crop")
COMMITS = {
    "threshold": (0.2, 0.5),
    "factor": (0.3, 1.0),
    "entropy": (0.1, 0.7),
    "leap": (0.4,),
    "runs": (0.4,),
}


def ada_case(number: int) -> Case:
    """Case `number` with blocks that end at delimiters, on canvases whose quarter may be longer than a block."""
    kind, family = KINDS[number // 2 % 3], number // 6 % 2
    c = case(number, (kind,))
    rng = random.Random(f"ada {number}")
    commit = rng.choice(["threshold", "threshold", *COMMITS])
    block = rng.choice([1, 2, 3, 4])
    size = block * rng.choice([4, 6, 8])
    length = c.settings.length
    if kind == "fixed":
        length = Fixed(size)
    elif kind == "crop":
        length = Crop(size, length.tau)
    elif isinstance(length, Expansion):
        length = replace(length, start=size, limit=size + 3 * block)
    some = words(c.roles)
    s = replace(
        c.settings,
        length=length,
        block=block,
        commit=commit,
        tau=rng.choice(COMMITS[commit]),
        relaxed=0.2,
        low=0.2,
        steps=None,
        score="confidence",
        sampling=("gumbel", "tempered")[family],
        delimiters=tuple(rng.sample(some, rng.choice([1, 2, 3]))),
        tau_delimiter=rng.choice([0.2, 0.3, 0.5]),
        credit=(0.7, 0.2, 0.8) if commit == "threshold" and rng.random() < 0.3 else None,
    )
    s = replace(s, top_p=None, top_k=None) if not family else s
    return replace(c, settings=s)


def test_tokens_and_passes_are_the_references():
    happened: Counter = Counter()
    for number in range(240):
        c = ada_case(number)
        for key, row in enumerate(watch(c.denoise, c.prompts, c.roles, c.plan, seed=c.seed)):
            wanted = reference.decode(c.logits, c.prompts[key], c.roles, c.settings, seed=c.seed, key=key)
            for name in RESULT:
                assert getattr(row, name) == getattr(wanted, name), (number, key, name)
            assert row.states == wanted.states, (number, key)
            happened += +wanted.events
            happened[wanted.stop_reason] += 1
            happened["dream" if c.settings.sampling == "tempered" else "llada"] += 1
    least = {"shorter block": 60, "longer block": 50, "unsure delimiter": 50, "eos": 50, "full": 50}
    least |= {"expanded": 20, "contracted": 20, "stalled": 3, "left block": 3, "llada": 100, "dream": 100}
    assert {what: happened[what] for what in least if happened[what] < least[what]} == {}


def same_commits(mine: list, theirs: list, c: Case) -> None:
    """Slots, tokens and scores are equal; those of CreditDecoding up to the last bit, which vector width decides."""
    if not c.settings.credit:
        assert mine == theirs
    assert [[one[:2] for one in step] for step in mine] == [[one[:2] for one in step] for step in theirs]
    scores = [[score for step in commits for _, _, score in step] for commits in (mine, theirs)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-14)


def test_a_row_does_not_depend_on_its_company():
    for number in range(60):
        c = ada_case(number)
        wide = [words(c.roles)[0]] * 40 + [SEPARATOR[c.roles]]
        together = watch(c.denoise, [*c.prompts, wide], c.roles, c.plan, seed=c.seed)
        for key, prompt in enumerate(c.prompts):
            [alone] = watch(c.denoise, [prompt], c.roles, c.plan, seed=c.seed, keys=[key])
            assert alone.outcome == together[key].outcome, number
            same_commits(alone.commits, together[key].commits, c)


def test_rows_may_join_and_leave_between_passes():
    for number in range(40):
        c = ada_case(number)
        together = watch(c.denoise, c.prompts, c.roles, c.plan, seed=c.seed)
        engine = Engine(c.denoise, c.roles, rows=random.Random(number).choice([1, 2, 3]), tokens=60)
        staggered = {done.key: done for done in engine.run(c.prompts, c.plan, seed=c.seed)}
        for key, row in enumerate(together):
            assert replace(staggered[key], seconds=0.0) == row.outcome, number


def test_termination_is_vanilla_cut_at_the_first_eos():
    saved = 0
    for number in range(60):
        c = ada_case(number)
        early = watch(c.denoise, c.prompts, c.roles, c.with_stop(True).plan, seed=c.seed)
        late = watch(c.denoise, c.prompts, c.roles, c.with_stop(False).plan, seed=c.seed)
        for stopped, row in zip(early, late, strict=True):
            masked = stopped.stop_reason in ("limit", "stalled")
            whole = c.roles.eos not in row.ids or (masked and not c.settings.cut)
            assert stopped.tokens == (row.ids if whole else row.ids[: row.ids.index(c.roles.eos) + 1]), number
            saved += row.passes_decode - stopped.passes_decode
    assert saved > 50


def test_a_threshold_that_no_delimiter_reaches_changes_nothing():
    """tau_D = 1 with tokens that are never certain: the blocks of the plain plan, pass by pass."""
    for number in range(40):
        c = ada_case(number)
        plain = replace(c, settings=replace(c.settings, delimiters=(), leave_blocks=False))
        never = replace(c.plan, blocks=DelimitedBlocks(1.0, (SEPARATOR[c.roles],)), leave_blocks=False)
        for mine, theirs in zip(
            watch(c.denoise, c.prompts, c.roles, never, seed=c.seed),
            watch(c.denoise, c.prompts, c.roles, plain.plan, seed=c.seed),
            strict=True,
        ):
            assert mine.outcome == theirs.outcome, number
            same_commits(mine.commits, theirs.commits, c)


# ------------------------------------------------------------------------------------- real networks
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("fields", [{"trim": True}, {"credit": 0.7}, {"temperature": 0.8}], ids=str)
def test_generate_gives_each_row_what_it_gets_alone(family, fields):
    model: Model = random_model(family, seed=5, dtype=torch.float64)
    line = (*model.roles.newline, *range(20, 30))  # weights are random: many tokens end a line
    common = {
        "canvas": 32,
        "block": 4,
        "raw": True,
        "delimiters": line,
        "delimiter_threshold": 0.02,
        **fields,
    }
    prompts = ["hi", "what is 2 + 3?", "name three things"]
    together = model.generate(prompts, "ada-block", threshold=0.1, **common)
    assert [result.approximations for result in together] == [plan("ada-block", **fields).approximations] * 3
    for key in (0,):  # the draw key of a row alone is 0
        [alone] = model.generate(prompts[key], "ada-block", threshold=0.1, **common)
        assert replace(alone, seconds=0.0) == replace(together[key], seconds=0.0)
    plain = model.generate(
        prompts, "original", stop="eos", threshold=0.1, canvas=32, block=4, raw=True, **fields
    )
    assert [row.ids for row in together] != [row.ids for row in plain]


def test_a_trace_shows_the_block_of_each_pass():
    model: Model = random_model(seed=5)
    recorder = Recorder(model, plan_name="ada-block", detail="commits")
    model.generate(
        ["hi", "what is 2 + 3?"], "ada-block", raw=True, canvas=32, block=4, threshold=0.1,
        delimiters=tuple(range(20, 40)), delimiter_threshold=0.02, listen=recorder,
    )  # fmt: skip
    windows = Counter()
    for trace in recorder.traces:
        opened = {step.open: step.window for step in trace.passes}
        for start, size in opened.items():
            assert {step.window for step in trace.passes if step.open == start} == {size}
            slots = {slot for step in trace.passes if step.open == start for slot, _, _ in step.commits}
            assert slots <= set(range(start, start + size))
            assert start + size in opened or start + size == 32 or start == max(opened)
            windows[size] += 1
    assert len(windows) > 1


# ------------------------------------------------------------------------------- the preset and refusals
@pytest.mark.parametrize(("family", "tau"), [("llada", 0.3), ("llada_moe", 0.3), ("dream", 0.5)])
def test_numbers_of_the_preset(family, tau):
    made, values = describe("ada-block", defaults=FAMILIES[family].decoding)
    assert made.blocks == DelimitedBlocks(tau, ("newline",))
    assert (made.commit, made.block, made.limit) == (Threshold(0.9), 32, 512)
    assert made.propose.score is confidence
    assert made.approximations == ("threshold",)
    assert (values["delimiter_threshold"], values["delimiters"], values["stop"]) == (tau, ("newline",), "eos")
    off = plan("original", defaults=FAMILIES[family].decoding)
    assert off.blocks is None
    on = plan(
        "original", defaults=FAMILIES[family].decoding, delimiter_threshold=tau, threshold=0.9, stop="eos"
    )
    assert on == made


BLOCKS = DelimitedBlocks(0.3)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"length": AppendedBlocks()}, "and length=AppendedBlocks edits it; drop one of them."),
        ({"length": Daedal()}, "and length=Daedal edits it; drop one of them."),
        ({"length": RhoEos()}, "and length=RhoEos edits it; drop one of them."),
        ({"commit": Static()}, "over which commit=Static cannot spread its steps; set threshold, as 0.9."),
        ({"propose": GumbelProposal(neg_entropy)}, "is compared with probabilities; use score=confidence."),
        ({"propose": GumbelProposal(margin)}, "is compared with probabilities; use score=confidence."),
        (
            {"length": RoundedUp(), "causal": CausalBlocks(32)},
            "has no meaning for block-causal attention, where no slot sees later blocks; drop it.",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(rules, message):
    with pytest.raises(ConfigError) as refused:
        Plan(**{"commit": Threshold(), "blocks": BLOCKS, **rules})
    assert str(refused.value).startswith("delimiter_threshold=0.3 ")
    assert str(refused.value).endswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("append-blocks", {"delimiter_threshold": 0.3, "threshold": 0.9}, "length=AppendedBlocks edits it"),
        (
            "original",
            {"delimiter_threshold": 0.3},
            "commit=TopK cannot spread its steps; set threshold, as 0.9.",
        ),
        ("ada-block", {"threshold": 0.0}, "commit=TopK cannot spread its steps; set threshold, as 0.9."),
        ("ada-block", {"score": "margin"}, "use score=confidence."),
        ("original", {"delimiters": "eos"}, "delimiters has no effect without delimiter_threshold"),
    ],
)
def test_fields_that_do_not_go_with_it_are_refused(name, fields, message):
    with pytest.raises(ConfigError, match=message):
        plan(name, **fields)


@pytest.mark.parametrize("length", [VoidExpansion(), SmartCrop()])
def test_lengths_that_settle_first_go_with_it(length):
    assert Plan(length, commit=Threshold(), blocks=BLOCKS).blocks is BLOCKS


def test_a_cache_is_refused_before_anything_is_decoded():
    model: Model = random_model(seed=2)
    said = (
        "delimiter_threshold=0.3 makes blocks of unequal length, and a cache keeps keys by blocks of one size"
    )
    with pytest.raises(ConfigError, match=said):
        model.generate("hi", "ada-block", canvas=32, cache="dual", raw=True)
    with pytest.raises(ConfigError, match="plan 'ada-block' has one of its own"):
        list(model.stream("hi", "ada-block", canvas=32, speed="fastest", raw=True))
    with pytest.raises(ConfigError, match=said):
        list(model.stream("hi", "ada-block", canvas=32, cache="ahead:3", raw=True))
    with pytest.raises(ConfigError, match=said):
        Answering(model, model.plan("ada-block", canvas=32), cache="prompt:4")
    Answering(model, model.plan("original", canvas=32), cache="prompt:4")


def test_a_model_without_line_breaks_is_refused():
    model: Model = random_model(seed=2)
    model.roles = replace(model.roles, newline=())
    with pytest.raises(RoleError, match="role 'newline': this checkpoint has none"):
        model.generate("hi", "ada-block", canvas=32, raw=True)
    with pytest.raises(RoleError, match="role 'newline'"):
        Answering(model, model.plan("ada-block", canvas=32))
    [result] = model.generate("hi", "ada-block", canvas=32, delimiters="7,8", raw=True)
    assert result.canvas == 32
    with pytest.raises(ConfigError, match="delimiters holds 99; the vocabulary ends at 63"):
        model.generate("hi", "ada-block", canvas=32, delimiters="7,99", raw=True)
