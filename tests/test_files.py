"""Files are whole or absent."""

import os
import stat
import threading

import pytest
import torch
from safetensors.torch import save_file

from voidpad.errors import ConfigError
from voidpad.files import atomic_file, fresh_folder, store


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
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    with atomic_file(tmp_path / "new" / "b.txt") as draft:  # folders above it are made
        draft.write_text("x")
    assert (tmp_path / "new" / "b.txt").read_text() == "x"
    assert (tmp_path / "a.txt").read_text() == "old"


def test_an_error_names_the_file_and_not_its_draft(tmp_path):
    long = tmp_path / ("a" * 255)  # the name of the draft is longer than a file system takes
    for write in (atomic_file, fresh_folder):
        with pytest.raises(OSError, match="too long") as caught, write(long):
            pass
        assert caught.value.filename == str(long)


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(os.devnull)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(ConfigError, match="is no plain file; name another file"):
            store(path, ["text"])
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert (tmp_path / "link").is_symlink()


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    with atomic_file(tmp_path / "a.safetensors") as draft:
        save_file({"a": torch.ones(2)}, draft)
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    """The one that ends last leaves its file, whole."""
    path = tmp_path / "a.txt"

    def slowly(text):
        for part in (text, text):
            both.wait()
            yield part

    both = threading.Barrier(2)
    writers = [threading.Thread(target=store, args=(path, slowly(text * 1000))) for text in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_text() in ("a" * 2000, "b" * 2000)
