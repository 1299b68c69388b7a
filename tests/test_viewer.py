"""The replay page as a file and as a command."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from stories import HOSTILE, eos_first, expansion, hostile
from voidpad.commands.analyze import view
from voidpad.diagnose.page import Named, embedded, page
from voidpad.diagnose.trace import Trace, read, write
from voidpad.errors import ConfigError, DataError


def named(*traces: Trace) -> list[Named]:
    return [Named(f"{trace.header.model}.jsonl", trace) for trace in traces]


# --- the file ---------------------------------------------------------------------------------------------


def test_data_is_inert_inside_markup():
    data = embedded([Named(HOSTILE, hostile())])
    assert data.isascii()
    assert not set(data) & set("<>&")
    text = page([Named(HOSTILE, hostile())])
    assert text.lower().count("</script>") == 2
    assert "<img" not in text


def test_the_policy_allows_this_script_and_nothing_else():
    text = page(named(eos_first(8)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    for tag in ("style", "script"):
        inside = re.search(rf"<{tag}(?: type=\"module\")?>(.*?)</{tag}>", text, re.S).group(1)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_names_no_address():
    text = page(named(eos_first(8)))
    assert set(re.findall(r"""(?:src|href)=["']?([^"' >]+)""", text)) == {"data:,", "#bar"}
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|@import|url\(", text)


# --- the command ------------------------------------------------------------------------------------------

app = typer.Typer()
app.command()(view)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    write(tmp_path / "eos.jsonl", [eos_first(16)])
    write(tmp_path / "void.jsonl", [expansion()])
    return [tmp_path / "eos.jsonl", tmp_path / "void.jsonl"]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_view_writes_one_file_beside_the_trace(files, tmp_path):
    done = run(*files)
    assert done.exit_code == 0, done.output
    assert "eos.html: 2 traces" in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eos.html", "eos.jsonl", "void.jsonl"]
    assert (tmp_path / "eos.html").read_text().startswith("<!doctype html>")


def test_view_refuses_what_it_cannot_do(files, tmp_path):
    assert isinstance(run(tmp_path / "none.jsonl").exception, DataError)
    assert isinstance(run(files[0], "--out", files[1] / "x.html").exception, OSError)
    taken = run(files[0], "--out", files[0])
    assert isinstance(taken.exception, ConfigError)
    read(files[0])
