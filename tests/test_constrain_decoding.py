"""Decoding under constraints: every answer matches, by `re`, whatever the plan, the batch and the model."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from cases import case, plan_of
from toys import Chaos, Toy, words
from voidpad.constrain import ConstraintError, Vocabulary, regex
from voidpad.constrain.messages import NOTHING, Beliefs, Windows, log_probabilities
from voidpad.constrain.row import GapConstraints, RowConstraint
from voidpad.constrain.tokens import lift
from voidpad.decode import plan as make_plan
from voidpad.decode.constrained import ConstrainedSlots, propose_constrained
from voidpad.decode.loop import begin, decode
from voidpad.decode.noise import Noise
from voidpad.decode.propose import Bans, GumbelProposal, Scored
from voidpad.engine.batching import Engine
from voidpad.engine.events import Finished, Wrote
from voidpad.models import FAMILIES

TEXTS = [b"a", b"b", b"c", b"ab", b"ba", b"aa", b"cc", b"abc"]  # of the toys' first words


def texts(roles) -> list[bytes | None]:
    """What each id of the toys writes."""
    written: list[bytes | None] = [None] * 14
    for token, text in zip(words(roles), TEXTS, strict=False):
        written[token] = text
    return written


def small_expression(draw: random.Random, depth: int = 2) -> str:
    """A regular expression over the letters a, b and c."""
    parts = []
    for _ in range(draw.randint(1, 3)):
        kind = draw.random()
        if depth and kind < 0.4:
            inner = "|".join(small_expression(draw, depth - 1) for _ in range(draw.randint(1, 3)))
            part = f"(?:{inner})"
        else:
            part = draw.choice(("a", "b", "c", "[ab]", "[bc]", "[abc]") * 3 + ("[^a]", "."))
        parts.append(part + draw.choice(("", "", "", "*", "+", "?", "{1,3}", "{2}")))
    return "".join(parts)


def compiled(expression: str, roles, *, closed: bool = False) -> RowConstraint:
    constraint = regex(expression)
    return RowConstraint(constraint, lift(constraint.automaton(), Vocabulary.of(texts(roles))), closed)


def text_of(tokens, roles) -> str:
    spelled = texts(roles)
    kept = tokens[: tokens.index(roles.eos)] if roles.eos in tokens else tokens
    return b"".join(spelled[token] for token in kept).decode()


@dataclass
class Trial:
    """A random plan, a random model and one random pattern for each row, some rows without one."""

    case: object
    plan: object
    expressions: list[str | None]
    constraints: list[RowConstraint | None]

    @property
    def roles(self):
        return self.case.roles


def trial(number: int) -> Trial | None:
    """Trial `number` of an endless list; None if a pattern does not fit the canvas or the tokens."""
    made = case(number, ("fixed", "expansion", "crop"))
    roles, draw = made.roles, random.Random(number)
    ban = tuple(token for token in made.settings.ban if token != roles.eos)
    settings = replace(made.settings, ban=ban, mask_proposable=False, leave_blocks=False)
    if draw.random() < 0.3:
        tau = draw.choice([0.1, 0.5])
        settings = replace(settings, commit="entropy", tau=tau, by_entropy=draw.random() < 0.5)
    plan = plan_of(settings)
    if draw.random() < 0.3:
        block = draw.choice([1, 2, 3, 4])
        temperature = draw.choice([0.0, 1.0])
        plan = make_plan(
            "append-blocks", block=block, limit=block * draw.choice([3, 6]), temperature=temperature
        )
    expressions, constraints = [], []
    for _ in made.prompts:
        if draw.random() < 0.2:
            expressions.append(None)
            constraints.append(None)
            continue
        expression = small_expression(draw)
        try:
            own = compiled(expression, roles)
        except ConstraintError:
            return None
        if own.automaton.shortest > plan.limit:
            return None
        expressions.append(expression)
        constraints.append(own)
    return Trial(replace(made, settings=settings), plan, expressions, constraints)


@pytest.mark.parametrize("score", ["confidence", "neg_entropy", "random"])
def test_scores_from_classes_are_those_of_the_whole_distribution(score):
    """What a proposal says from classes of tokens, against the constrained marginals over all tokens."""
    roles, draw = case(0, ("fixed",)).roles, random.Random(score)
    for seed in range(12):
        own, width = compiled(small_expression(draw), roles), draw.randint(2, 9)
        if own.automaton.shortest > width:
            continue
        slots = torch.full((width,), roles.mask)
        place = ConstrainedSlots(own, slots, slots == roles.mask, 0, roles, slots == roles.mask)
        logits = 3 * torch.randn(width, 14, generator=torch.Generator().manual_seed(seed))
        noise = Noise(tuple(torch.arange(width) for _ in range(4)), logits.device)
        bans = Bans.of((), (), roles.mask, 14, logits.device)
        rule = GumbelProposal(score=score)
        found = propose_constrained(rule, [place], logits, bans, noise, entropy=True)

        windows, log_p = Windows.of([place.window()]), log_probabilities(logits)
        tables, messages = own.tables(roles, logits.device), own.messages
        weights = messages.weights(windows, Beliefs.of(tables.beliefs(log_p).numpy()), best=False)
        sums = messages.backward(windows, weights, best=False)
        marginals = messages.marginals(windows, weights, messages.forward(windows, weights), sums)
        p = tables.distribution(torch.from_numpy(marginals), log_p)
        judged, real = Scored(found.tokens, p, found.tokens), found.tokens != NOTHING
        assert found.score[real].tolist() == pytest.approx(
            judged.score(score, noise)[real].tolist(), abs=1e-7
        )
        assert found.entropy[real].tolist() == pytest.approx(judged.entropy(p)[real].tolist(), abs=1e-9)
        assert (found.score[~real] == -torch.inf).all()


def outcomes(one: Trial, rows: Sequence[int], *, company: int) -> dict[int, object]:
    """The outcome of each of these rows from an engine with so many rows in a pass.

    After every pass the written tokens, masks in between, can be completed within the row's limit; every piece that is
    called final stays as it is.
    """
    engine = Engine(Toy(one.case.logits), one.roles, rows=company)
    for row in rows:
        own = {"key": row, "constraint": one.constraints[row]}
        engine.submit(one.case.prompts[row], one.plan, seed=one.case.seed, **own)
    final: dict[int, list[int]] = {handle: [] for handle in engine.handles}
    done = {}
    for event in engine.events():
        if isinstance(event, Finished):
            done[event.outcome.key] = event.outcome
            assert event.outcome.ids[: len(final[event.handle])] == final[event.handle]
        elif isinstance(event, Wrote):
            after = event.step.after
            for row, (handle, size) in enumerate(zip(event.handles, event.final_prefix, strict=True)):
                slots = after.answer(row)
                assert slots[: len(final[handle])] == final[handle]
                final[handle] = slots[:size]
                own = after.constraints[row] if after.constraints else None
                if own is not None:
                    room = int(after.limit[row]) - len(slots) if one.plan.length.appends else 0
                    assert completable(own.automaton, slots, room, one.roles)
    return done


def check_trial(number: int) -> bool:
    one = trial(number)
    if one is None:
        return False
    every = range(len(one.expressions))
    together = outcomes(one, every, company=2 + number % 2)
    for row, expression in enumerate(one.expressions):
        outcome = together[row]
        alone = outcomes(one, [row], company=1)[row] if number % 4 == 0 else outcome
        assert alone.ids == outcome.ids, number  # whatever its neighbours
        if expression is None:
            assert outcome.constraint is None
            continue
        assert outcome.stop_reason in ("eos", "full"), number
        assert re.fullmatch(expression, text_of(outcome.tokens, one.roles)), (number, expression, outcome)
        assert outcome.constraint.matched
    return any(expression is not None for expression in one.expressions)


def completable(automaton, slots: list[int], room: int, roles) -> bool:
    """Whether some text fits the written slots, by sets of states, left to right."""
    states, ended = {0}, False
    for token in slots:
        after, ends = set(), ended
        for state in states:
            if token in (roles.mask, *roles.ends) and automaton.accepting[state]:
                ends = True
            if token == roles.mask:
                after |= {int(t) for t in automaton.table[state] if t >= 0}
            elif token not in roles.ends and automaton.token_class[token] >= 0:
                after |= {int(automaton.table[state, automaton.token_class[token]])} - {-1}
        states, ended = after, ends
    return ended or any(automaton.distance[state] <= room for state in states)


@pytest.mark.parametrize(
    ("numbers", "least"),
    [(range(80), 40), pytest.param(range(80, 2000), 1000, marks=pytest.mark.slow)],
)
def test_answers_match_under_generated_patterns_and_plans(numbers, least):
    assert sum(check_trial(number) for number in numbers) > least


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        *((number, {"block": 1, "ban": ("void", "rainbow", "mask")}) for number in range(12)),
        (0, {"block": 12, "threshold": 0.0}),
    ],
)
def test_a_constraint_that_allows_everything_changes_nothing(number, fields):
    """x* is the free answer at temperature 0 without ties: slot by slot with one end token, or in one pass where every
    slot holds a letter more probably than an end or padding."""
    made = case(number, ("fixed",))
    roles = made.roles
    letters = [token for token in range(14) if token not in roles.all()]
    spelled = [chr(97 + letters.index(token)).encode() if token in letters else None for token in range(14)]
    anything = regex("(?s).*")
    own = RowConstraint(anything, lift(anything.automaton(), Vocabulary.of(spelled)))
    one_pass = fields["block"] == 12
    lean = tuple((token, -20.0) for token in roles.all()) if one_pass else ((roles.eos, 1.0),)
    plan = make_plan("original", canvas=12, stop="eos", **fields)
    free, held = (
        answers(Toy(Chaos(roles, number, 4.0, lean)), made.prompts, roles, plan, constraints=constraints)
        for constraints in (None, [own] * len(made.prompts))
    )
    assert [one.tokens for one in free] == [one.tokens for one in held]


def answers(toy, prompts, roles, plan, **fields) -> list:
    """The outcomes of all rows, in the order of the prompts."""
    steps = decode(toy, prompts, roles, plan, **fields)
    found = [outcome for step in steps for outcome in step.finished.values()]
    return sorted(found, key=lambda outcome: outcome.key)


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        ("daedal", "length"),
        ("rho-eos", "length"),
        ("eos-never", "eos-never"),
        ("original@authors", "mask_proposable"),
    ],
)
def test_what_a_constraint_cannot_be_had_with_is_refused_by_name(name, keyword):
    made = case(0, ("fixed",))
    engine = Engine(Toy(made.logits), made.roles)
    with pytest.raises(ConstraintError) as refused:
        engine.submit([1], make_plan(name), constraint=compiled("a+", made.roles))
    assert refused.value.keyword == keyword


def test_a_text_longer_than_the_canvas_is_refused_with_both_numbers():
    made = case(0, ("fixed",))
    held = {"keys": [0], "seeds": [0], "constraints": [compiled("(?:abc){9}", made.roles)]}
    with pytest.raises(ConstraintError) as refused:
        begin([[5]], made.roles, make_plan("original", canvas=8, block=4), **held)
    assert {"9", "8"} <= set(re.findall(r"[0-9]+", str(refused.value)))
    begin([[5]], made.roles, make_plan("original", canvas=12, block=4), **held)


@pytest.mark.parametrize(
    ("name", "fields"), [("void-expansion", {"canvas": 4, "limit": 40}), ("smart-crop", {"canvas": 40})]
)
def test_void_expansion_and_smart_crop_leave_room_for_the_shortest_text(name, fields):
    """However sure the model is that nothing stands there."""
    roles = case(0).roles
    own = compiled("(?:ab|c){8}", roles)
    for seed in range(5):
        toy = Toy(Chaos(roles, seed, 1.0, ((roles.eos, 9.0), (roles.void, 15.0))))
        (outcome,) = answers(toy, [[5]], roles, make_plan(name, block=4, **fields), constraints=[own])
        assert outcome.canvas >= 8  # four tokens, such as cc, and the end token
        assert re.fullmatch("(?:ab|c){8}", text_of(outcome.tokens, roles))


def test_a_closed_constraint_fills_its_slots_exactly():
    """As in a gap: no end token, and the text has as many tokens as there are slots."""
    made = case(3, ("fixed",))
    own = compiled("(?:ab|a|b)+c", made.roles, closed=True)
    for block in (2, 3, 6):
        plan = make_plan("original", canvas=6, block=block)
        (outcome,) = answers(Toy(made.logits), made.prompts[:1], made.roles, plan, constraints=[own])
        assert len(outcome.tokens) == 6
        assert made.roles.eos not in outcome.tokens
        assert re.fullmatch("(?:ab|a|b)+c", text_of(outcome.tokens, made.roles))


def test_filters_never_remove_the_last_text():
    """top_k=1 keeps one token a slot, which no text that matches has: the answer matches all the same."""
    roles = case(0, ("fixed",)).roles
    own = compiled("(?:ab)+c", roles)
    toy = Toy(Chaos(roles, 1, 1.0, ((words(roles)[1], 9.0),)))  # b everywhere
    fields = {"canvas": 8, "block": 4, "temperature": 0.7, "top_k": 1, "top_p": 0.5}
    plan = make_plan("original", defaults=FAMILIES["dream"].decoding, **fields)
    for seed in range(5):
        (outcome,) = answers(toy, [[5]], roles, plan, seed=seed, constraints=[own])
        assert re.fullmatch("(?:ab)+c", text_of(outcome.tokens, roles))


@pytest.mark.parametrize("number", range(8))
def test_each_gap_of_a_template_matches_its_own_constraint(number):
    """Fixed text stays, a gap without a constraint is free, and a batch equals single rows."""
    made = case(number, ("fixed",))
    roles, separator = made.roles, made.prompts[0][-1]
    mask, word = roles.mask, words(roles)[0]
    template = [word, separator, mask, mask, mask, word, word, mask, mask, word, mask, mask, mask, mask]
    expressions = ["(?:ab|a)+c", None, "c*(?:b|ba)+"]
    held = GapConstraints(tuple(None if e is None else compiled(e, roles, closed=True) for e in expressions))
    plan = make_plan("original", threshold=0.3, temperature=0.5 * (number % 2)).for_gaps(template, roles)
    found = []
    for count in (1, 2):
        rows = {"keys": [0] * count, "constraints": [held] * count}
        found += answers(Toy(Chaos(roles, number)), [template] * count, roles, plan, **rows)
    assert len({tuple(outcome.ids) for outcome in found}) == 1
    outcome = found[0]
    assert outcome.constraint.matched
    for expression, gap in zip(expressions, outcome.gaps, strict=True):
        assert roles.mask not in gap
        if expression is not None:
            assert re.fullmatch(expression, text_of(list(gap), roles))


def test_constraints_that_do_not_fit_the_gaps_are_refused():
    roles = case(0).roles
    template = [5, roles.mask, roles.mask, 6]
    filling = make_plan("original").for_gaps(template, roles)
    long = GapConstraints((compiled("(?:a|b)c(?:a|b)c(?:a|b)c(?:a|b)c", roles, closed=True),))
    for prompt, plan, held in [
        (template, filling, long),
        (template, filling, GapConstraints((None, None))),  # two constraints for one gap
        ([5], make_plan("original"), long),  # no template
    ]:
        with pytest.raises(ConstraintError) as refused:
            begin([prompt], roles, plan, keys=[0], seeds=[0], constraints=[held])
        assert refused.value.keyword == "gaps"
