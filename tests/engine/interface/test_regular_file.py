"""What stands behind a path is a file, or is refused at once."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from engine.interface.errors import ModelError
from engine.interface.regular_file import open_regular
from engine.models.open_model import open_model


def test_a_file_and_a_link_to_one_are_read(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"content")
    link.symlink_to(path)
    for named in (path, link):
        with open_regular(named) as file:
            assert file.read() == b"content"


def open_files():
    """The descriptors of this process with what they are of, where the system tells; other threads have theirs."""
    found = set()
    for descriptor in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # it was closed meanwhile
            found.add((descriptor.name, os.readlink(descriptor)))
    return found


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = open_files()
    for path, what in ((pipe, "a named pipe"), (tmp_path, "a folder"), (os.devnull, "a device")):
        with pytest.raises(OSError, match=f"it is {what} and no regular file"):
            open_regular(path)
    named = {str(pipe), str(tmp_path), os.devnull}
    assert not [file for file in open_files() - before if file[1] in named]


def test_a_model_in_a_pipe_is_refused(tmp_path):
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises((ModelError, OSError), match="a named pipe"):
        open_model(pipe)
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        open_model(tmp_path)
