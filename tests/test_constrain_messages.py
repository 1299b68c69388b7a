"""Messages under a constraint against enumeration: weights, the best text, marginals and draws on small alphabets."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from random_patterns import byte_tokens
from voidpad.constrain import ConstraintError, Vocabulary, json_schema, regex
from voidpad.constrain.constraint import lift
from voidpad.constrain.host import HostAutomaton, HostBeliefs, HostWindow
from voidpad.constrain.messages import (
    FRONTIER,
    NEVER,
    NOTHING,
    OUTSIDE,
    POSSIBLE,
    WILDCARD,
    WRITTEN,
    Marginals,
    Path,
    Window,
    backward,
    beliefs_of,
    best_proposal,
    final_weights,
    follow,
    forward,
    log_probabilities,
    marginals,
    path_tokens,
    slot_weights,
    tables_of,
)

TOKENS = [b"a", b"b", b"ab", b"ba", None, None, None]  # four texts, then EOS, VOID and MASK
EOS, VOID, MASK = 4, 5, 6
ENDS, PADDING = torch.tensor([EOS]), torch.tensor([VOID])
VOCABULARY = Vocabulary.of(TOKENS)
EXPRESSIONS = ["a(?:ba)*", "(a|b)*", "(ab|ba){1,3}", "a{2,5}b?", "(aab|b)*a", "b|aaa", "(?:a|bb)+", "[ab]{4}"]


def random_window(
    draw: random.Random, automaton, width: int, *, closed: bool
) -> tuple[Window, torch.Tensor] | None:
    """A window with some slots written so that a text still fits, and random logits; None if nothing fits."""
    left = draw.choice((0, 0, 1, 3))
    final = final_weights(automaton, automaton.states, left=left, closed=closed)
    fitting = texts_of(automaton, width, final)
    if not fitting:
        return None
    held = draw.choice(fitting)
    kind = [draw.choice((FRONTIER, FRONTIER, WRITTEN)) for _ in range(width)]
    tokens = [held[i] if kind[i] == WRITTEN and held[i] >= 0 else MASK for i in range(width)]
    kind = [FRONTIER if kind[i] == WRITTEN and held[i] < 0 else kind[i] for i in range(width)]
    ended = [kind[i] == WRITTEN and tokens[i] == EOS for i in range(width)]
    window = Window(
        torch.tensor([kind]), torch.tensor([tokens]), torch.tensor([ended]), torch.tensor([0]), final[None]
    )
    spread = draw.choice((0.5, 2.0, 20.0))
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    return window, spread * torch.randn(1, width, len(TOKENS), generator=generator, dtype=torch.float64)


def texts_of(automaton, width: int, final: torch.Tensor) -> list[tuple[int, ...]]:
    """Every accepted filling of the window: text tokens, EOS at the end, NOTHING after it."""
    found = []
    for size in range(width + 1):
        for text in itertools.product(range(4), repeat=size):
            state = automaton.state_after(text)
            if state < 0:
                continue
            if size == width and final[state] > POSSIBLE:
                found.append(text)
            if size < width and automaton.accepting[state] and final[-1] > POSSIBLE:
                found.append((*text, EOS, *([NOTHING] * (width - size - 1))))
    return found


def enumerated(window: Window, log_p: torch.Tensor, texts) -> dict[tuple[int, ...], float]:
    """The weight of each filling that agrees with what is written."""
    p = log_p[0].exp().tolist()
    kinds, tokens = window.kind[0].tolist(), window.tokens[0].tolist()
    weights = {}
    for text in texts:
        weight = 1.0
        for slot, token in enumerate(text):
            if kinds[slot] == WRITTEN:
                weight *= token in (tokens[slot], NOTHING)
            elif kinds[slot] == FRONTIER:
                weight *= p[slot][EOS] + p[slot][VOID] if token == NOTHING else p[slot][token]
        if weight:
            weights[text] = weight
    return weights


def solved(tables, window: Window, log_p: torch.Tensor, uniform=None, gumbel=None):
    """Tokens, marginals and the weight of the best text and of all texts."""
    beliefs = beliefs_of(tables, log_p, ends=ENDS, padding=PADDING)
    sums, bests = (slot_weights(tables, window, beliefs, best=best) for best in (False, True))
    all_texts = backward(tables, window, sums, best=False)
    one_text = backward(tables, window, bests, best=True)
    if uniform is None:
        tokens = path_tokens(tables, follow(tables, window, bests, one_text), log_p, eos=EOS)
    else:
        tokens = path_tokens(
            tables, follow(tables, window, sums, all_texts, uniform), log_p + gumbel, eos=EOS
        )
    held = (window.kind == WRITTEN) & (tokens != NOTHING)  # a proposal means something on the frontier only
    tokens = torch.where(held, window.tokens, tokens)
    found = marginals(tables, sums, forward(tables, window, sums), all_texts)
    p = found.tokens(log_p, tables.token_class, eos=EOS, mask=MASK)
    start = window.start[:, None]
    return tokens, p, one_text[:, 0].gather(1, start)[:, 0], all_texts[:, 0].gather(1, start)[:, 0]


def solved_on_the_host(automaton, window: Window, log_p: torch.Tensor, uniform=None, gumbel=None):
    """The same by `host.py`."""
    tables, host = tables_of([automaton]), HostAutomaton(automaton)
    found = beliefs_of(tables, log_p, ends=ENDS, padding=PADDING)
    at = window.kind[0] == FRONTIER
    beliefs = HostBeliefs(*(part[0, at].numpy() for part in (found.total, found.best, found.end, found.tail)))
    kind, tokens, ended, start, final = (part[0].numpy() for part in vars(window).values())
    read = HostWindow(kind, automaton.token_class[tokens], ended, int(start), final)
    sums, bests = (host.weights(read, beliefs, best=best) for best in (False, True))
    all_texts, one_text = host.backward(read, sums, best=False), host.backward(read, bests, best=True)
    if uniform is None:
        path = host.follow(read, bests, one_text)
    else:
        path = host.follow(read, sums, all_texts, uniform[0].numpy())
    sets, ends = (torch.from_numpy(part)[None] for part in path)
    tokens = path_tokens(tables, Path(sets, ends), log_p if uniform is None else log_p + gumbel, eos=EOS)
    held = (window.kind == WRITTEN) & (tokens != NOTHING)
    tokens = torch.where(held, window.tokens, tokens)
    classes, end, after = host.marginals(sums, host.forward(read, sums), all_texts)
    nothing = np.full((len(kind), 1), NEVER)
    parts = (np.concatenate([classes, nothing], 1), end, after)
    p = Marginals(*(torch.from_numpy(part)[None] for part in parts)).tokens(
        log_p, tables.token_class, eos=EOS, mask=MASK
    )
    return tokens, p, one_text[0, start], all_texts[0, start]


CASES = [(e, width, closed) for e in EXPRESSIONS for width in (1, 2, 4, 6) for closed in (False, True)]


@pytest.mark.parametrize(
    ("expression", "width", "closed"), [*CASES, ("(a|b)*", 8, False), ("(ab|ba){1,3}", 8, False)]
)
def test_messages_equal_enumeration(expression, width, closed):
    automaton = lift(regex(expression).automaton(), VOCABULARY)
    tables = tables_of([automaton])
    draw = random.Random(f"{expression} {width} {closed}")
    for _ in range(3):
        made = random_window(draw, automaton, width, closed=closed)
        if made is None:
            return
        window, logits = made
        log_p = log_probabilities(logits)
        weights = enumerated(window, log_p, texts_of(automaton, width, window.final[0]))
        tokens, p, best, total = solved(tables, window, log_p)
        top = max(weights.values())
        assert best.item() == pytest.approx(np.log(top), abs=1e-9)
        assert total.item() == pytest.approx(np.log(sum(weights.values())), abs=1e-9)
        assert weights[tuple(tokens[0].tolist())] == pytest.approx(top)
        for slot in torch.nonzero(window.kind[0] == FRONTIER)[:, 0].tolist():
            wanted = np.zeros(len(TOKENS))
            for text, weight in weights.items():
                wanted[MASK if text[slot] == NOTHING else text[slot]] += weight / sum(weights.values())
            assert p[0, slot].numpy() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_draws_have_the_distribution_of_the_enumeration(expression):
    automaton = lift(regex(expression).automaton(), VOCABULARY)
    draw = random.Random(expression)
    made = random_window(draw, automaton, 4, closed=False)
    assert made is not None
    window, logits = made
    weights = enumerated(window, log_probabilities(logits), texts_of(automaton, 4, window.final[0]))
    count = 6000
    many = Window(*(part.expand(count, *part.shape[1:]).contiguous() for part in vars(window).values()))
    tables = tables_of([automaton])
    wide = tables_of([automaton] * count)
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(count, 4, generator=generator, dtype=torch.float64)
    noise = torch.rand(count, 4, len(TOKENS), generator=generator, dtype=torch.float64)
    log_p = log_probabilities(logits).expand(count, -1, -1)
    tokens, *_ = solved(wide, many, log_p, uniform, -(-noise.log()).log())
    seen: dict[tuple[int, ...], int] = {}
    for text in tokens.tolist():
        seen[tuple(text)] = seen.get(tuple(text), 0) + 1
    assert seen.keys() <= weights.keys()
    total = sum(weights.values())
    distance = sum(abs(seen.get(text, 0) / count - weight / total) for text, weight in weights.items()) / 2
    assert distance < 0.5 * np.sqrt(len(weights) / count) + 0.01
    assert len(tables) == 1


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("closed", [False, True])
def test_the_host_computes_the_same(expression, closed):
    automaton = lift(regex(expression).automaton(), VOCABULARY)
    tables, draw = tables_of([automaton]), random.Random(expression)
    generator = torch.Generator().manual_seed(4)
    for width in (1, 4, 7):
        made = random_window(draw, automaton, width, closed=closed)
        if made is None:
            continue
        window, logits = made
        if width == 7:  # slots without a distribution, and slots that are passed over
            kind = window.kind.clone()
            kind[0, 2] = WILDCARD if kind[0, 2] == FRONTIER else kind[0, 2]
            window = Window(pad(kind, (0, 1), value=OUTSIDE), *(pad(x, (0, 1)) for x in (window.tokens, window.ended)),
                            window.start, window.final)  # fmt: skip
            logits = torch.cat([logits, logits[:, :1]], 1)
        log_p = log_probabilities(logits)
        uniform = torch.rand(1, log_p.shape[1], generator=generator, dtype=torch.float64)
        gumbel = -(-torch.rand(log_p.shape, generator=generator, dtype=torch.float64).log()).log()
        for noise in ((), (uniform, gumbel)):
            one, other = (
                solved(tables, window, log_p, *noise),
                solved_on_the_host(automaton, window, log_p, *noise),
            )
            frontier = window.kind == FRONTIER
            assert torch.equal(one[0][frontier], other[0][frontier])
            torch.testing.assert_close(one[1][frontier], other[1][frontier], rtol=1e-9, atol=1e-12)
            assert one[2].item() == pytest.approx(other[2], abs=1e-9)
            assert one[3].item() == pytest.approx(other[3], abs=1e-9)


def test_one_call_gives_the_proposal_at_temperature_zero():
    automaton = lift(regex("(ab|ba){1,3}").automaton(), VOCABULARY)
    tables, draw = tables_of([automaton], buckets=True), random.Random(1)
    window, logits = random_window(draw, automaton, 5, closed=False)
    final = torch.full((1, tables.states + 1), NEVER, dtype=torch.float64)
    final[:, : automaton.states], final[:, -1] = window.final[:, :-1], window.final[:, -1]
    window = Window(window.kind, window.tokens, window.ended, window.start, final)
    tokens, chance = best_proposal(tables, window, logits, ends=ENDS, padding=PADDING, eos=EOS)
    wanted, p, *_ = solved(tables, window, log_probabilities(logits))
    frontier = (window.kind == FRONTIER) & (wanted != NOTHING)
    assert torch.equal(tokens[frontier], wanted[frontier])
    torch.testing.assert_close(
        chance[frontier], p.gather(2, wanted.clamp(min=0)[..., None])[..., 0][frontier]
    )


def test_any_subset_of_a_proposal_may_be_written():
    """Whatever is committed, the rest can be completed: the weight stays positive to the end."""
    draw = random.Random(0)
    for expression in EXPRESSIONS:
        automaton = lift(regex(expression).automaton(), VOCABULARY)
        tables = tables_of([automaton])
        for width in (3, 6):
            final = final_weights(automaton, automaton.states, left=0)
            if not texts_of(automaton, width, final):
                continue
            kind, tokens = torch.full((1, width), FRONTIER), torch.full((1, width), MASK)
            generator = torch.Generator().manual_seed(width)
            while (kind == FRONTIER).any():
                window = Window(kind, tokens, tokens == EOS, torch.tensor([0]), final[None])
                log_p = log_probabilities(3 * torch.randn(1, width, len(TOKENS), generator=generator))
                proposed, _, _, total = solved(tables, window, log_p)
                assert total.item() > POSSIBLE
                real = [i for i in range(width) if kind[0, i] == FRONTIER and proposed[0, i] != NOTHING]
                if not real:
                    break
                for slot in draw.sample(real, draw.randint(1, len(real))):
                    kind[0, slot], tokens[0, slot] = WRITTEN, proposed[0, slot]
            text = tokens[0].tolist()
            text = text[: text.index(EOS)] if EOS in text else text
            state = automaton.state_after(text)
            assert state >= 0
            assert automaton.accepting[state]


def test_rows_with_different_automata_equal_single_rows():
    """Padding to the largest automaton of a batch changes nothing, to the last bit; nor does rounding up the sizes."""
    draw = random.Random(3)
    automata = [lift(regex(expression).automaton(), VOCABULARY) for expression in EXPRESSIONS]
    made = [random_window(draw, automaton, 5, closed=False) for automaton in automata]
    pairs = [(automaton, *one) for automaton, one in zip(automata, made, strict=True) if one is not None]
    assert len(pairs) > 5
    for buckets in (False, True):
        tables = tables_of([automaton for automaton, *_ in pairs], buckets=buckets)
        finals = []
        for _, window, _ in pairs:
            row = torch.full((tables.states + 1,), NEVER, dtype=torch.float64)
            row[: window.final.shape[1] - 1], row[-1] = window.final[0, :-1], window.final[0, -1]
            finals.append(row)
        parts = [
            torch.cat([vars(window)[name] for _, window, _ in pairs])
            for name in ("kind", "tokens", "ended", "start")
        ]
        log_p = log_probabilities(torch.cat([logits for *_, logits in pairs]))
        tokens, p, best, total = solved(tables, Window(*parts, torch.stack(finals)), log_p)
        for row, (automaton, window, logits) in enumerate(pairs):
            alone = solved(tables_of([automaton]), window, log_probabilities(logits))
            assert torch.equal(tokens[row], alone[0][0])
            frontier = window.kind[0] == FRONTIER
            torch.testing.assert_close(p[row][frontier], alone[1][0][frontier], rtol=1e-12, atol=1e-15)
            assert best[row] == alone[2][0]
            assert total[row].item() == pytest.approx(alone[3].item(), abs=1e-12)


def test_wildcards_allow_what_can_be_completed():
    """[ab]{4}: with two slots left behind a wildcard, the text before it has one or two letters less."""
    automaton = lift(regex("[ab]{4}").automaton(), VOCABULARY)
    tables = tables_of([automaton])
    kind = torch.tensor([[FRONTIER, WILDCARD, FRONTIER, OUTSIDE]])
    final = final_weights(automaton, automaton.states, left=0, closed=True)
    window = Window(kind, torch.full_like(kind, MASK), kind < 0, torch.tensor([0]), final[None])
    log_p = log_probabilities(torch.randn(1, 4, len(TOKENS), generator=torch.Generator().manual_seed(0)))
    tokens, p, _, total = solved(tables, window, log_p)
    assert total.item() > POSSIBLE
    lengths = [len(TOKENS[token]) for token in tokens[0, [0, 2]].tolist()]
    assert sum(lengths) in (2, 3)
    assert tokens[0, 3] == NOTHING
    assert (p[0, [0, 2], :4] > 0).all()
    assert p[0, [0, 2]].sum(1).numpy() == pytest.approx(1)


def test_a_tail_that_the_model_doubts_makes_short_texts_expensive():
    """One letter or four: with four slots, a model that sees letters everywhere does not end early for free."""
    automaton = lift(regex("a|aaaa").automaton(), Vocabulary.of([b"a", None, None, None]))
    tables = tables_of([automaton])
    kind = torch.full((1, 4), FRONTIER)
    final = final_weights(automaton, automaton.states, left=0)
    window = Window(kind, torch.full_like(kind, 3), kind < 0, torch.tensor([0]), final[None])
    for p_padding, size in ((0.1, 4), (0.6, 1)):
        row = [0.9 - p_padding, 0.1, p_padding, 0.0]
        log_p = torch.tensor([[row] * 4], dtype=torch.float64).log().clamp(min=-600)
        beliefs = beliefs_of(tables, log_p, ends=torch.tensor([1]), padding=torch.tensor([2]))
        weights = slot_weights(tables, window, beliefs, best=True)
        path = follow(tables, window, weights, backward(tables, window, weights, best=True))
        tokens = path_tokens(tables, path, log_p, eos=1)[0].tolist()
        assert tokens == ([0] * 4 if size == 4 else [0, 1, NOTHING, NOTHING])


def test_a_long_window_does_not_underflow():
    automaton = lift(regex("(?:a|b)*").automaton(), VOCABULARY)
    tables = tables_of([automaton])
    kind = torch.full((1, 512), FRONTIER)
    final = final_weights(automaton, automaton.states, left=0)
    window = Window(kind, torch.full_like(kind, MASK), kind < 0, torch.tensor([0]), final[None])
    log_p = log_probabilities(
        300 * torch.randn(1, 512, len(TOKENS), generator=torch.Generator().manual_seed(0))
    )
    _, p, best, total = solved(tables, window, log_p)
    assert POSSIBLE < best.item() <= total.item() < -1000
    assert p.sum(-1).numpy() == pytest.approx(1)


def test_nothing_reads_the_device():
    """Under fake tensors every number that would be read on the host is an error: a GPU need not wait."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    automaton = lift(json_schema({"type": "integer"}).automaton(), Vocabulary.of(byte_tokens("12", "-1")))
    tables = tables_of([automaton] * 2, buckets=True)
    kind = torch.full((2, 6), FRONTIER)
    final = torch.zeros(2, tables.states + 1, dtype=torch.float64)
    window = Window(kind, torch.zeros_like(kind), kind < 0, torch.zeros(2, dtype=torch.long), final)
    size = tables.token_class.shape[1]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = Window(*(mode.from_tensor(part) for part in vars(window).values()))
        log_p = log_probabilities(mode.from_tensor(torch.randn(2, 6, size)))
        for uniform in (None, mode.from_tensor(torch.rand(2, 6, dtype=torch.float64))):
            solved(tables, fake, log_p, uniform, torch.zeros_like(log_p))


def test_an_empty_language_over_tokens_never_gets_here():
    with pytest.raises(ConstraintError):
        lift(regex("c").automaton(), VOCABULARY)
