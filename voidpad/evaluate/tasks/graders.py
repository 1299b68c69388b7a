"""Adapters between our one-answer functions and lm-eval's filters, which see a whole task at once."""

from collections.abc import Callable, Sequence
from typing import Any

Doc = dict[str, Any]
Filter = Callable[[Sequence[Sequence[str]], Sequence[Doc]], list[Any]]


def each(grade: Callable[[str, Doc], Any]) -> Filter:
    """A filter that hands the first (only) answer of every item, with its item, to `grade`."""

    def apply(answers: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[Any]:
        return [grade(answer[0], doc) for answer, doc in zip(answers, docs, strict=True)]

    return apply
