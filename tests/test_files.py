"""Files are whole or absent."""

import pytest

from voidpad.files import beside, store


def test_a_file_appears_whole(tmp_path):
    store(tmp_path / "a.txt", ["one\n", "zwei: ü\n"])
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "one\nzwei: ü\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_write_keeps_what_was_there(tmp_path):
    store(tmp_path / "a.txt", ["old"])

    def broken():
        yield "new"
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        store(tmp_path / "a.txt", broken())
    with pytest.raises(FileNotFoundError), beside(tmp_path / "missing" / "b.txt") as draft:
        draft.write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"
