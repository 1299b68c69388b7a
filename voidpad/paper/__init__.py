"""The VoidPadding paper's published numbers, recomputed, with what does not fit together."""

from voidpad.paper.findings import Finding, findings
from voidpad.paper.numbers import Number, Paper, published
from voidpad.paper.recompute import Check, geomean, recomputed, reduction

__all__ = [
    "Check",
    "Finding",
    "Number",
    "Paper",
    "findings",
    "geomean",
    "published",
    "recomputed",
    "reduction",
]
