"""The documentation: its commands exist, its code blocks run or say why not, its computed tables are up to date.

A block of shell or Python is run as it stands, the blocks of a page one after the other in one folder. A comment before
the block changes that: `<!-- slow -->` leaves it to the slow tests, and so must a block that needs what a slow one
made. `<!-- not run: REASON -->` says why it never runs. `make test` runs blocks in children of one process that has
imported everything; the slow tests run whole pages in processes of their own.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from forking import prepared_process
from voidpad.commands import cli
from voidpad.models.locate import BUILT_IN, BUILT_IN_FAMILIES
from voidpad.recipes import shipped_recipes

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
RUN_ELSEWHERE = {"extend.md": "test_extend.py"}  # pages that a test of their own puts together and runs
FENCE = re.compile(
    r"(?P<marks>(?:^<!--[^\n]*-->\n)*)^```(?P<language>sh|bash|python)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A piece of shell or Python of a page."""

    language: str
    code: str
    marks: str

    @property
    def slow(self) -> bool:
        return "<!-- slow -->" in self.marks

    @property
    def reason(self) -> str | None:
        """Why the block is not run; None if it is."""
        reason = re.search(r"<!-- not run: (.+) -->", self.marks)
        return reason and reason[1]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m["language"], m["code"], m["marks"]) for m in FENCE.finditer(text)]


def commands(page: Path) -> list[list[str]]:
    """Every command line of the page as words: those of its shell blocks, and those inside its sentences."""
    text = page.read_text(encoding="utf-8")
    code = [block.code for block in blocks(page) if block.language != "python"]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = [" ".join(part.split()) for part in re.findall(r"`([^`]+)`", prose)]
    found = []
    for line in [*"\n".join(code).replace("\\\n", " ").splitlines(), *inline]:
        if not re.match(r"\s*(voidpad|python -m|accelerate launch|torchrun)\s", line):
            continue
        words = shlex.shlex(
            line.replace("'", "") if line in inline else line, posix=True, punctuation_chars="|&;<>()"
        )
        words.whitespace_split = True
        split = list(words)
        stop = next(
            (i for i, word in enumerate(split) if word in ("|", "&", "&&", ";", ">", "<")), len(split)
        )
        found.append(split[:stop])
    return found


def options_of(words: list[str]) -> set[str]:
    """The options of the command that these words call, after `voidpad`."""
    command = cli.command_named(words[0])
    if hasattr(command, "commands") and len(words) > 1:
        command = command.commands[words[1]]
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own | {"--help", "--debug"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_options_and_modules_exist(page):
    unknown = []
    for words in commands(page):
        if "-m" in words[1:-1]:
            module = words[words.index("-m") + 1]
            if module.startswith(("voidpad", "studies")) and find_spec(module) is None:
                unknown.append(f"python -m {module}")
        elif words[0] == "voidpad" and not words[1].startswith("-"):
            if words[1] not in cli.COMMANDS:
                unknown.append(f"voidpad {words[1]}")
                continue
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            unknown += [f"voidpad {words[1]} {option}" for option in sorted(given - options_of(words[1:]))]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_that_is_not_run_says_why(page):
    for block in blocks(page):
        assert block.marks == "" or block.slow or block.reason, block.code
        assert block.reason is None or len(block.reason.split()) >= 3, "say why, in words"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_and_models_that_are_named_ship(page):
    known = {recipe.name for kind in ("train", "sweep") for recipe in shipped_recipes(kind)} | set(BUILT_IN)
    named = re.findall(r"`((?:tiny|paper)[-/][a-z0-9-]+)`", page.read_text(encoding="utf-8"))
    assert {name for name in named if name not in known | set(BUILT_IN_FAMILIES.values())} == set()


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    with prepared_process(tmp_path_factory.mktemp("prepared"), ENVIRONMENT) as words:
        yield words


def run(page: Path, folder: Path, prepared: list[str] | None = None) -> str:
    """Run the page's blocks in order, in children of a prepared process only the quick ones; what they printed."""
    voidpad = [*prepared, "voidpad"] if prepared else [sys.executable, "-m", "voidpad"]
    python = [*prepared, "python"] if prepared else [sys.executable, "-c"]
    programs, work, shown = folder / "bin", folder / "work", folder / "shown"
    programs.mkdir()
    work.mkdir()
    (programs / "voidpad").write_text(f'#!/bin/sh\nexec {shlex.join(voidpad)} "$@"\n')
    (programs / "voidpad").chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**ENVIRONMENT, "PATH": path}
    printed = []
    for block in blocks(page):
        if block.reason is not None or (block.slow and prepared):
            continue
        program = ["bash", "-euo", "pipefail", "-s"]
        if block.language == "python":
            program = [*python, block.code]
        with shown.open("w+") as output:  # a file: a pipe would wait for what a failed block left running
            ran = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=work, env=environment, text=True,
                start_new_session=True,
            )  # fmt: skip
            try:
                ran.communicate(block.code, timeout=1500)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(ran.pid, signal.SIGKILL)
        printed.append(shown.read_text())
        assert ran.returncode == 0, f"{block.code}\n{printed[-1]}"
    return "".join(printed)


def runnable(*, slow: bool) -> list[Path]:
    """Pages with blocks to run; in the slow tests, those with slow blocks."""
    pages = [page for page in PAGES if page.name not in RUN_ELSEWHERE]
    return [page for page in pages if any(not one.reason and one.slow == slow for one in blocks(page))]


@pytest.mark.parametrize("page", runnable(slow=False), ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page, tmp_path, prepared):
    run(page, tmp_path, prepared)


@pytest.mark.slow
@pytest.mark.parametrize("page", runnable(slow=True), ids=lambda page: page.name)
def test_the_slow_blocks_of_a_page_run(page, tmp_path):
    shown = run(page, tmp_path)
    if page.name == "tutorial.md":
        before, after = shown.index("return 12 * n - 32"), shown.rindex("v6 = v5 - m")
        assert before < after, "the tuned model writes the whole function, the original does not"


def test_the_computed_tables_are_those_of_the_script():
    from studies.site import sizes

    page = (DOCS / "sizes.md").read_text()
    assert sizes.memory() in page
    assert sizes.time() in page


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [*PAGES, *(ROOT / ".github").rglob("*.*"), ROOT / ".ci" / "run"]
    named = set()
    for page in pages:
        for words in re.findall(r"(?:`|^ {4}|run: |^)make ([a-z -]+)", page.read_text(), re.MULTILINE):
            named |= {f"{page.name}: {word}" for word in words.split() if word not in targets}
    assert {"test", "docs", "coverage", "release"} <= targets
    assert named == set()


def test_the_workflow_and_the_templates_can_be_read():
    yaml = pytest.importorskip("yaml")
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]
    assert len(files) >= 6
    for path in files:
        assert isinstance(yaml.safe_load(path.read_text()), dict), path
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    for pins in ("oldest", "newest"):
        assert (ROOT / ".github" / f"constraints-{pins}.txt").is_file()
        assert pins in workflow
