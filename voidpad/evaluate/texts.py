"""From a decoded canvas to the text that is scored: our way, and the two ways of the paper's harness."""

from collections.abc import Callable, Sequence

from voidpad.models import Model
from voidpad.models.text import raw_ids

# From model, slots, stop strings and cut to the text.
Reader = Callable[[Model, Sequence[int], Sequence[str], bool], str]
# The names `llada` and `dream` here and in `parity` mean the two evaluation harnesses of the paper, not model families.
LLADA_MARKERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def _until(text: str, stops: Sequence[str]) -> str:
    """The text before the first occurrence of each stop string; the strings are applied in their order."""
    for stop in stops:
        if stop:
            text = text.split(stop, 1)[0]
    return text


def cut_first(model: Model, slots: Sequence[int], stops: Sequence[str], cut: bool = True) -> str:
    """Ours: cut at the first end unless the plan says not to, drop special tokens by id, then the stop strings."""
    return _until(model.text(slots, cut=cut), stops)


def llada_harness(model: Model, slots: Sequence[int], stops: Sequence[str], cut: bool = True) -> str:
    """Text after an EOS counts. Specials go by tokenising the text once more; HumanEval has no stop strings,
    and loses the chat markers, which this harness's tokenizer spells out."""
    if not stops:
        text = model.text(slots, cut=False)
        for marker in LLADA_MARKERS:
            text = text.replace(marker, "")
        return text
    text = _until(str(model.tokenizer.decode(list(slots))), stops)
    return model.text(raw_ids(model.tokenizer, text), cut=False)


def dream_harness(model: Model, slots: Sequence[int], stops: Sequence[str], cut: bool = True) -> str:
    """Cut where EOS is spelled; every other special token stays as literal text."""
    text = str(model.tokenizer.decode(list(slots)))
    return _until(text.split(str(model.tokenizer.decode([model.roles.eos])), 1)[0], stops)


READERS: dict[str | None, Reader] = {None: cut_first, "llada": llada_harness, "dream": dream_harness}
