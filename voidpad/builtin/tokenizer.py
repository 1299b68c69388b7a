"""The built-in tokenizer: word level, single digits; tokens carry their leading space, so text survives."""

from functools import cache
from importlib.resources import files

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from voidpad.roles import Roles

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


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """The shipped tokenizer; studies/builtin/vocabulary.py made its file."""
    stored = files("voidpad.builtin").joinpath("assets/tokenizer/tokenizer.json").read_text(encoding="utf-8")
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(stored),
        unk_token=UNKNOWN,
        eos_token=EOS,
        pad_token=EOS,
        mask_token=MASK,
        extra_special_tokens=[*RAINBOW, *TURNS],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )
