from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from server.admission import unix_socket


def test_the_socket_is_its_owners_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with unix_socket.listen_at(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with unix_socket.listen_at(path) as listener:  # nobody has removed the first
        listener.listen()
        with pytest.raises(OSError, match="another server listens"):
            unix_socket.listen_at(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    unix_socket.remove(path)
    assert not path.exists()


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(OSError, match="no socket"):
        unix_socket.listen_at(path)
    unix_socket.remove(path)
    assert path.read_text() == "precious"
