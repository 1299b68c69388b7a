"""How the built-in tokenizer was made: the pieces of the tasks' texts, collected into a closed vocabulary."""

from collections.abc import Iterable
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from voidpad.builtin.tasks import TASKS
from voidpad.builtin.tokenizer import SPECIAL, UNKNOWN

# In this order: line breaks with the indentation after them, step labels, numbered variables, words, digits,
# comment marks, strings, two-sign operators, other signs, bare indentation.
PIECE = r'\n *| ?\([0-9]\)| ?[vx][0-9]| ?[A-Za-z]+| ?[0-9]| *#+| ?"""| ?[-+*]=| ?[^\sA-Za-z0-9]| +'


def texts(count: int, seed: int) -> Iterable[str]:
    """Prompts and answers of every task, to collect the vocabulary from."""
    rng = Random(seed)
    for task in TASKS.values():
        for _ in range(count):
            problem = task.draw(rng)
            yield problem.prompt
            yield task.answer(problem, rng)


def build(count: int = 20_000, *, seed: int = 0) -> Tokenizer:
    """A sorted vocabulary after the special tokens. `save` writes the tokenizer.json that ships."""
    split = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    pieces: set[str] = set()
    for text in texts(count, seed):
        pieces.update(piece for piece, _ in split.pre_tokenize_str(text))
    digits = {f"{space}{digit}" for digit in range(10) for space in ("", " ")}
    vocabulary = {piece: index for index, piece in enumerate((*SPECIAL, *sorted(pieces | digits)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return tokenizer
