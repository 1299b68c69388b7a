"""Messages under a constraint against enumeration: weights, the best text, marginals and draws on small alphabets."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from voidpad.constrain import Vocabulary, regex
from voidpad.constrain.messages import (
    FRONTIER,
    NOTHING,
    POSSIBLE,
    WILDCARD,
    WRITTEN,
    Beliefs,
    Messages,
    TokenTables,
    Window,
    Windows,
    log_probabilities,
)
from voidpad.constrain.tokens import lift

TOKENS = [b"a", b"b", b"ab", b"ba", None, None, None]  # four texts, then EOS, VOID and MASK
EOS, VOID, MASK = 4, 5, 6
ROLES = SimpleNamespace(eos=EOS, ends=(EOS,), void=VOID, rainbow=(), mask=MASK)
EXPRESSIONS = ["a(?:ba)*", "(a|b)*", "(ab|ba){1,3}", "a{2,5}b?", "(aab|b)*a", "b|aaa", "(?:a|bb)+", "[ab]{4}"]


def messages_of(expression: str) -> Messages:
    return Messages(lift(regex(expression).automaton(), Vocabulary.of(TOKENS)))


def window_of(messages: Messages, kinds, tokens, *, left: int = 0, closed: bool = False) -> Window:
    tokens = np.array(tokens)
    final = messages.final(left, closed=closed)
    return Window(np.array(kinds), messages.automaton.token_class[tokens], tokens == EOS, 0, final)


def logits_of(seed: int, width: int, spread: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return log_probabilities(spread * torch.randn(width, len(TOKENS), generator=generator))


@dataclass
class Solution:
    """What the messages say about a window whose slots have the distributions log_p (W, V)."""

    messages: Messages
    window: Window
    log_p: torch.Tensor

    def __post_init__(self):
        self.at = np.flatnonzero(self.window.kind == FRONTIER)
        self.windows = Windows.of([self.window])
        self.tables = TokenTables(self.messages, ROLES, torch.device("cpu"))
        self.on_frontier = self.log_p[torch.from_numpy(self.at)]
        self.beliefs = Beliefs.of(self.tables.beliefs(self.on_frontier).numpy())
        self.weights = self.messages.weights(self.windows, self.beliefs, best=False)
        self.sums = self.messages.backward(self.windows, self.weights, best=False)

    @property
    def total(self) -> float:
        """The weight of all texts."""
        return self.sums[0, self.window.start, 0]

    def best(self) -> tuple[list[int], float]:
        """The tokens of the best text on the frontier, and its weight."""
        weights = self.messages.weights(self.windows, self.beliefs, best=True)
        after = self.messages.backward(self.windows, weights, best=True)
        path = self.messages.follow(self.windows, weights, after)[0]
        tokens, _ = self.messages.best_tokens(path[self.at], self.beliefs, EOS)
        assert tokens.tolist() == self.tokens(path, self.on_frontier)  # classes and vocabulary agree
        return tokens.tolist(), after[0, 0, 0]

    def draw(self, draw: np.random.Generator) -> list[int]:
        uniform = draw.random(self.windows.kind.shape)
        path = self.messages.follow(self.windows, self.weights, self.sums, uniform)[0]
        gumbel = -np.log(-np.log(draw.random(self.on_frontier.shape)))
        return self.tokens(path, self.on_frontier + torch.from_numpy(gumbel))

    def tokens(self, path, scores) -> list[int]:
        return self.tables.tokens(torch.from_numpy(path[self.at]), scores).tolist()

    def marginals(self) -> np.ndarray:
        before = self.messages.forward(self.windows, self.weights)
        found = self.messages.marginals(self.windows, self.weights, before, self.sums)
        return self.tables.distribution(torch.from_numpy(found), self.on_frontier).numpy()


def texts_of(messages: Messages, width: int, final: np.ndarray) -> list[tuple[int, ...]]:
    """Every accepted filling of the window: text tokens, EOS at the end, NOTHING after it."""
    found, automaton = [], messages.automaton
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


def random_case(messages: Messages, draw: random.Random, width: int, *, closed: bool):
    """A solution for a window with some slots written so that a text still fits, and the weight of each filling."""
    left = draw.choice((0, 0, 1, 3))
    fitting = texts_of(messages, width, messages.final(left, closed=closed))
    if not fitting:
        return None
    held = draw.choice(fitting)
    kinds = [draw.choice((FRONTIER, FRONTIER, WRITTEN)) if token != NOTHING else FRONTIER for token in held]
    written = [token if kind == WRITTEN else MASK for token, kind in zip(held, kinds, strict=True)]
    window = window_of(messages, kinds, written, left=left, closed=closed)
    log_p = logits_of(draw.randrange(1 << 30), width, draw.choice((0.5, 2.0, 20.0)))
    p, weights = log_p.exp().tolist(), {}
    for text in fitting:
        weight = 1.0
        for slot, token in enumerate(text):
            if kinds[slot] == WRITTEN:
                weight *= token in (written[slot], NOTHING)
            else:
                weight *= p[slot][EOS] + p[slot][VOID] if token == NOTHING else p[slot][token]
        if weight:
            weights[text] = weight
    return Solution(messages, window, log_p), weights


CASES = [(e, width, closed) for e in EXPRESSIONS for width in (1, 2, 4, 6) for closed in (False, True)]


@pytest.mark.parametrize(
    ("expression", "width", "closed"), [*CASES, ("(a|b)*", 8, False), ("(ab|ba){1,3}", 8, False)]
)
def test_messages_equal_enumeration(expression, width, closed):
    messages, draw = messages_of(expression), random.Random(f"{expression} {width} {closed}")
    for _ in range(3):
        made = random_case(messages, draw, width, closed=closed)
        if made is None:
            return
        solved, weights = made
        total = sum(weights.values())
        top = max(weights.values())
        tokens, weight = solved.best()
        assert weight == pytest.approx(np.log(top), abs=1e-9)
        assert solved.total == pytest.approx(np.log(total), abs=1e-9)
        on_frontier = {tuple(np.array(text)[solved.at]): weight for text, weight in weights.items()}
        assert on_frontier[tuple(tokens)] == pytest.approx(top)
        wanted = np.zeros((len(solved.at), len(TOKENS)))
        for text, weight in on_frontier.items():
            for place, token in enumerate(text):
                wanted[place, MASK if token == NOTHING else token] += weight / total
        assert solved.marginals() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_draws_have_the_distribution_of_the_enumeration(expression):
    made = random_case(messages_of(expression), random.Random(expression), 4, closed=False)
    assert made is not None
    solved, weights = made
    count, generator = 3000, np.random.default_rng(1)
    seen = Counter(tuple(solved.draw(generator)) for _ in range(count))
    wanted = {tuple(np.array(text)[solved.at]): weight for text, weight in weights.items()}
    assert seen.keys() <= wanted.keys()
    total = sum(wanted.values())
    distance = sum(abs(seen[text] / count - weight / total) for text, weight in wanted.items()) / 2
    assert distance < 0.5 * np.sqrt(len(wanted) / count) + 0.01


def test_any_subset_of_a_proposal_may_be_written():
    """Whatever is committed, the rest can be completed: the weight stays positive to the end."""
    draw = random.Random(0)
    for expression, width in itertools.product(EXPRESSIONS, (3, 6)):
        messages = messages_of(expression)
        if not texts_of(messages, width, messages.final(0, closed=False)):
            continue
        kinds, tokens = [FRONTIER] * width, [MASK] * width
        for number in itertools.count():
            solved = Solution(messages, window_of(messages, kinds, tokens), logits_of(number, width, 3.0))
            assert solved.total > POSSIBLE
            proposed = dict(zip(solved.at.tolist(), solved.best()[0], strict=True))
            real = [slot for slot, token in proposed.items() if token != NOTHING]
            if not real:
                break
            for slot in draw.sample(real, draw.randint(1, len(real))):
                kinds[slot], tokens[slot] = WRITTEN, proposed[slot]
        text = tokens[: tokens.index(EOS)] if EOS in tokens else tokens
        state = messages.automaton.state_after(text)
        assert state >= 0
        assert messages.automaton.accepting[state]


def test_rows_that_share_a_constraint_are_solved_as_each_alone():
    draw = random.Random(1)
    for expression in EXPRESSIONS:
        messages = messages_of(expression)
        made = [random_case(messages, draw, width, closed=False) for width in (6, 2, 4, 6)]
        alone = [case[0] for case in made if case is not None]
        windows = Windows.of([one.window for one in alone])
        tables = alone[0].tables
        beliefs = Beliefs.of(tables.beliefs(torch.cat([one.on_frontier for one in alone])).numpy())
        weights = messages.weights(windows, beliefs, best=False)
        sums = messages.backward(windows, weights, best=False)
        found = messages.marginals(windows, weights, messages.forward(windows, weights), sums)
        p = tables.distribution(torch.from_numpy(found), torch.cat([one.on_frontier for one in alone]))
        assert p.numpy() == pytest.approx(np.concatenate([one.marginals() for one in alone]), abs=1e-12)
        best = messages.weights(windows, beliefs, best=True)
        path = messages.follow(windows, best, messages.backward(windows, best, best=True))
        tokens, _ = messages.best_tokens(path[windows.frontier], beliefs, EOS)
        assert tokens.tolist() == [token for one in alone for token in one.best()[0]]


def test_wildcards_allow_what_can_be_completed():
    """[ab]{4} in three slots, the middle one unknown: the others leave it one or two letters."""
    messages = messages_of("[ab]{4}")
    window = window_of(messages, [FRONTIER, WILDCARD, FRONTIER], [MASK] * 3, closed=True)
    log_p = logits_of(0, 3, 1.0)
    solved = Solution(messages, window, log_p)
    # The unknown slot says what is possible and no more: what stands behind it weighs nothing.
    assert solved.total == pytest.approx(float(log_p[0, :4].exp().sum().log()))
    assert sum(len(TOKENS[token]) for token in solved.best()[0]) in (2, 3)
    p = solved.marginals()
    assert (p[:, :4] > 0).all()
    assert p.sum(1) == pytest.approx(1)


def test_a_tail_that_the_model_doubts_makes_short_texts_expensive():
    """One letter or four: with four slots, a model that sees letters everywhere does not end early for free."""
    messages = messages_of("a|aaaa")
    window = window_of(messages, [FRONTIER] * 4, [MASK] * 4)
    for p_padding, wanted in ((0.1, [0] * 4), (0.6, [0, EOS, NOTHING, NOTHING])):
        row = [0.9 - p_padding, 0.0, 0.0, 0.0, 0.1, p_padding, 0.0]
        log_p = torch.tensor([row] * 4, dtype=torch.float64).log().clamp(min=-600)
        assert Solution(messages, window, log_p).best()[0] == wanted


def test_a_long_window_does_not_underflow():
    messages = messages_of("(?:a|b)*")
    solved = Solution(messages, window_of(messages, [FRONTIER] * 512, [MASK] * 512), logits_of(0, 512, 300))
    assert POSSIBLE < solved.best()[1] <= solved.total < -1000
    assert solved.marginals().sum(1) == pytest.approx(1)
