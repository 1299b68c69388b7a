"""The VoidPadding paper's published numbers, recomputed, with what does not fit together."""

from studies.paper.findings import Finding, findings
from studies.paper.numbers import Number, Paper, published
from studies.paper.recompute import Check, recomputed

__all__ = ["Check", "Finding", "Number", "Paper", "findings", "published", "recomputed"]
