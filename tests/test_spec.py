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


def test_citations_are_recognised():
    assert cited("as in spec 1.1-1.2 and spec rivals 1.8") == {
        ("algorithms", "1.1"),
        ("algorithms", "1.2"),
        ("rivals", "1.8"),
    }
    assert cited("Specification 8.1: both") == {("algorithms", "8.1")}
    assert ("algorithms", "1.4") in cited((ROOT / "tests" / "test_losses.py").read_text(encoding="utf-8"))


def test_cited_sections_exist():
    known = {(name, number) for name in FILES for number in sections(name)}
    missing = {
        str(path.relative_to(ROOT)): absent
        for path in TEXTS
        if path != Path(__file__) and (absent := cited(path.read_text(encoding="utf-8")) - known)
    }
    assert missing == {}


def test_sections_of_the_algorithms_keep_their_numbers():
    """Comments of the reference decoder and of the worked examples name sections by number alone."""
    counts = {0: 5, 1: 6, 2: 8, 3: 4, 4: 0, 5: 0, 6: 0, 7: 0, 8: 6}
    expected = {str(chapter) for chapter in counts}
    expected |= {f"{chapter}.{n}" for chapter, count in counts.items() for n in range(1, count + 1)}
    assert expected <= sections("algorithms")


@pytest.mark.parametrize("name", FILES)
def test_files_say_what_they_are_good_for_and_link_to_what_exists(name):
    text = (SPEC / f"{name}.md").read_text(encoding="utf-8")
    assert text.split("\n\n")[1].startswith("After reading this file you can")
    links = set(re.findall(r"\]\(([^)#:]+)", text))
    assert {link for link in links if not (SPEC / link).exists()} == set()
