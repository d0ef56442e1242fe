"""What stands behind a path is a file, or is refused at once."""

import os

import pytest

from engine.border.errors import ModelError
from engine.border.regular_file import open_regular
from engine.models.open_model import open_model


def test_a_file_and_a_link_to_one_are_read(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"content")
    link.symlink_to(path)
    for named in (path, link):
        with open_regular(named) as file:
            assert file.read() == b"content"


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    num_open = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for path, what in ((pipe, "a named pipe"), (tmp_path, "a folder"), (os.devnull, "a device")):
        with pytest.raises(OSError, match=f"it is {what} and no regular file"):
            open_regular(path)
    if num_open:
        assert len(os.listdir("/proc/self/fd")) == num_open


def test_a_model_in_a_pipe_is_refused(tmp_path):
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises((ModelError, OSError), match="a named pipe"):
        open_model(pipe)
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        open_model(tmp_path)
