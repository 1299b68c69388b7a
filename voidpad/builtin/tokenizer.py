"""The built-in tokenizer: word level, single digits; tokens carry their leading space, so text survives."""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from voidpad.builtin.tasks import TASKS
from voidpad.roles import Roles

# In this order: line breaks with the indentation after them, step labels, numbered variables, words, digits,
# comment marks, strings, two-sign operators, other signs, bare indentation.
PIECE = r'\n *| ?\([0-9]\)| ?[vx][0-9]| ?[A-Za-z]+| ?[0-9]| *#+| ?"""| ?[-+*]=| ?[^\sA-Za-z0-9]| +'
UNKNOWN, EOS, MASK = "<|unk|>", "<|eos|>", "<|mask|>"
RAINBOW = ("<|void|>", *(f"<|rainbow_{k}|>" for k in range(1, 7)))  # VOID is Rainbow's first colour
TURNS = ("<|system|>", "<|user|>", "<|assistant|>")
SPECIAL = (UNKNOWN, EOS, MASK, *RAINBOW, *TURNS)
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] | trim('\\n') }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ROLES = Roles(
    mask=SPECIAL.index(MASK),
    eos=SPECIAL.index(EOS),
    void=SPECIAL.index(RAINBOW[0]),
    rainbow=tuple(SPECIAL.index(name) for name in RAINBOW),
)


def wrap(prompt: str) -> str:
    """The chat template for a single user turn; a test holds it equal to the template itself."""
    return f"<|user|>{prompt}<|assistant|>"


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(PIECE), behavior="isolated")


def _texts(count: int, seed: int) -> Iterable[str]:
    """Prompts and answers of every task, to collect the vocabulary from."""
    rng = Random(seed)
    for task in TASKS.values():
        for _ in range(count):
            problem = task.draw(rng)
            yield problem.prompt
            yield task.answer(problem, rng)


def build(count: int = 20_000, *, seed: int = 0) -> PreTrainedTokenizerFast:
    """Collect the pieces of the tasks' texts: a closed, sorted vocabulary after the special tokens."""
    split = _splitter()
    pieces: set[str] = set()
    for text in _texts(count, seed):
        pieces.update(piece for piece, _ in split.pre_tokenize_str(text))
    digits = {f"{space}{digit}" for digit in range(10) for space in ("", " ")}
    vocabulary = {piece: index for index, piece in enumerate((*SPECIAL, *sorted(pieces | digits)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return _wrapped(tokenizer)


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        eos_token=EOS,
        pad_token=EOS,
        mask_token=MASK,
        extra_special_tokens=[*RAINBOW, *TURNS],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """The shipped tokenizer."""
    stored = files("voidpad.builtin").joinpath("assets/tokenizer/tokenizer.json").read_text(encoding="utf-8")
    return _wrapped(Tokenizer.from_str(stored))
