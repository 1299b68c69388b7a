"""The specification: every section that code, tests and pages cite exists, in the file that is meant."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "spec"
FILES = ("algorithms", "evaluation", "rivals", "families")
NUMBER = r"\d+(?:\.\d+)?"
CITED = re.compile(rf"\b[Ss]pec(?:ification)? (?:({'|'.join(FILES)}) )?({NUMBER}(?:(?:, |-){NUMBER})*)")
TEXTS = [
    path
    for folder, kind in (("voidpad", "*.py"), ("tests", "*.py"), ("docs", "*.md"))
    for path in sorted((ROOT / folder).rglob(kind))
]


def sections(name: str) -> set[str]:
    text = (SPEC / f"{name}.md").read_text(encoding="utf-8")
    return set(re.findall(rf"^##+ ({NUMBER})\.? ", text, re.MULTILINE))


def cited(text: str) -> set[tuple[str, str]]:
    """The (file, section) pairs a text cites; both ends of a range such as 1.1-1.2."""
    return {
        (hit[1] or "algorithms", number)
        for hit in CITED.finditer(text)
        for number in re.findall(NUMBER, hit[2])
    }


def test_cited_sections_exist():
    known = {(name, number) for name in FILES for number in sections(name)}
    assert ("algorithms", "1.4") in cited((ROOT / "tests" / "test_losses.py").read_text(encoding="utf-8"))
    missing = {
        str(path.relative_to(ROOT)): absent
        for path in TEXTS
        if path != Path(__file__) and (absent := cited(path.read_text(encoding="utf-8")) - known)
    }
    assert missing == {}


@pytest.mark.parametrize("name", FILES)
def test_files_link_to_what_exists(name):
    links = set(re.findall(r"\]\(([^)#:]+)", (SPEC / f"{name}.md").read_text(encoding="utf-8")))
    assert {link for link in links if not (SPEC / link).exists()} == set()
