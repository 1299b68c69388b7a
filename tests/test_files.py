"""Files are whole or absent."""

import os
import stat
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from voidpad.errors import ConfigError
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


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(os.devnull)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(ConfigError, match="is no plain file; name another file"):
            store(path, ["text"])
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert (tmp_path / "link").is_symlink()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may replace a device")
def test_generate_refuses_a_device_as_its_trace(tmp_path):
    node = tmp_path / "null"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    ran = subprocess.run(
        [sys.executable, "-m", "voidpad", "generate", "hello", "--trace", node],
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, "is no plain file" in ran.stderr) == (2, True)
    assert stat.S_ISCHR(node.stat().st_mode)


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    with beside(tmp_path / "a.safetensors") as draft:
        save_file({"a": torch.ones(2)}, draft)
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
