"""The built-in tokenizer: bytes as the floor, common words, single digits. Any text goes in and comes out.

Tokens carry their leading space. Words of the tasks' own phrases are one token each; all others, names above all, are
spelled by letter pairs and bytes, in the same way wherever they stand, so that they can be copied.
"""

from functools import cache
from importlib.resources import files

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from voidpad.builtin.problems import Problem
from voidpad.roles import Roles

EOS, MASK = "<|eos|>", "<|mask|>"
RAINBOW = ("<|void|>", *(f"<|rainbow_{k}|>" for k in range(1, 7)))  # VOID is Rainbow's first colour
TURNS = ("<|system|>", "<|user|>", "<|assistant|>")
SPECIAL = (*TURNS, EOS, MASK, *RAINBOW)
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


def wrap(problem: Problem | str) -> str:
    """The chat template for a question, or for a problem with the turns before it; a test holds it equal to that."""
    if isinstance(problem, str):
        return f"<|user|>{problem}<|assistant|>"
    before = "".join(f"{wrap(question)}{answer.strip(chr(10))}{EOS}" for question, answer in problem.before)
    return before + wrap(problem.prompt)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """The shipped tokenizer; studies/builtin/vocabulary.py made its file."""
    stored = files("voidpad.builtin").joinpath("assets/tokenizer/tokenizer.json").read_text(encoding="utf-8")
    return as_transformers(Tokenizer.from_str(stored))


def as_transformers(backend: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=EOS,
        pad_token=EOS,
        mask_token=MASK,
        extra_special_tokens=[*RAINBOW, *TURNS],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )
