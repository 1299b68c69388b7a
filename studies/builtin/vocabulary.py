"""How the built-in tokenizer was made: `python -m studies.builtin.vocabulary FOLDER` writes it.

Bytes, the commonest letter pairs of names, and the words of the tasks' own phrases that shorten their texts most.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from studies.builtin.chat import TRAINED
from voidpad.builtin import words
from voidpad.builtin.problems import PIECE
from voidpad.builtin.tokenizer import SPECIAL, as_transformers

SIZE, PAIRS = 608, 72
OPEN = frozenset(word.lower() for word in (*words.PEOPLE, *words.THINGS, *words.PLACES))
# Of the texts that are counted; the tokenizer that ships was made with these.
SHARES = {
    "tiny_steps": 0.12,
    "tiny_expr": 0.09,
    "tiny_complete": 0.11,
    "tiny_write": 0.11,
    "tiny_json": 0.16,
    "tiny_fill": 0.12,
    "tiny_search": 0.14,
    "tiny_turns": 0.09,
    "tiny_chat": 0.06,
}


def texts(count: int, seed: int) -> Iterable[str]:
    """Prompts and answers of every task, in the shares of the training data."""
    rng = Random(seed)
    for name, share in SHARES.items():
        for _ in range(int(count * share)):
            problem = TRAINED[name].draw(rng)
            yield problem.whole
            yield TRAINED[name].answer(problem, rng)


def byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    others = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + number) for number, byte in enumerate(others)}


def letter_pairs(count: int, seed: int) -> list[str]:
    """The commonest pairs of small letters in made-up and real names, as byte-pair encoding finds them."""
    rng, found = Random(seed), []
    spelled = [
        list(draw(rng).lower()) for draw in (words.person, words.thing, words.made_up) for _ in range(7000)
    ]
    while len(found) < count:
        pairs = Counter(a + b for word in spelled for a, b in pairwise(word) if len(a + b) == 2)
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        found.append(best)
        for word in spelled:
            at = 0
            while at < len(word) - 1:
                if word[at] + word[at + 1] == best:
                    word[at : at + 2] = [best]
                at += 1
    return found


def build(count: int = 20_000, *, seed: int = 0) -> Tokenizer:
    letters = byte_letters()
    pairs = letter_pairs(PAIRS, seed)
    split = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    counts: Counter[str] = Counter()
    for text in texts(count, seed):
        counts.update(piece for piece, _ in split.pre_tokenize_str(text))
    whole = [
        piece
        for piece in counts
        if len(piece.encode()) > 1 and piece.strip().lower() not in OPEN and piece not in pairs
    ]
    whole.sort(key=lambda piece: (-counts[piece] * (len(piece) - 1), piece))
    named = [f"({k})" for k in range(1, 10)] + [f"v{k}" for k in range(1, 9)] + [f"x{k}" for k in range(1, 7)]
    digits = [f" {digit}" for digit in range(10)] + [space + name for name in named for space in ("", " ")]
    room = SIZE - len(SPECIAL) - len(letters) - len(pairs)
    chosen = [*digits, *(piece for piece in whole if piece not in digits)][:room]
    spelled = ["".join(letters[byte] for byte in piece.encode()) for piece in sorted(chosen)]
    vocabulary = {name: index for index, name in enumerate((*SPECIAL, *letters.values(), *pairs, *spelled))}
    merges = [(pair[0], pair[1]) for pair in pairs]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return tokenizer


if __name__ == "__main__":
    as_transformers(build()).save_pretrained(Path(sys.argv[1]))
