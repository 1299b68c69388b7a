"""`python -m studies.paper`: recompute the paper's derived numbers and list what disagrees."""

from collections.abc import Iterator
from itertools import groupby

from studies.paper import findings, published, recomputed


def lines() -> Iterator[str]:
    checks = recomputed(published())
    disagreements = findings(published())
    yield "# The paper's own numbers"
    yield ""
    agreeing = sum(check.agrees for check in checks)
    yield f"{agreeing} of {len(checks)} derived numbers (means, extremes, reductions, speed-ups) recompute."
    yield f"{len(disagreements)} disagreements:"
    for rule, group in groupby(disagreements, key=lambda finding: finding.rule):
        yield from ["", f"## {rule}", ""]
        for finding in group:
            values = ", ".join(f"{name} {value}" for name, value in finding.values.items())
            yield f"- {finding.what}: {values}. {finding.meaning[0].upper()}{finding.meaning[1:]}."


if __name__ == "__main__":
    print("\n".join(lines()))
