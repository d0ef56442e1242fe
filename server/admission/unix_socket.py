"""Listening on a Unix socket that only its owner can open."""

import errno
import os
import socket
import stat
from pathlib import Path

OWNER_ONLY = 0o600


def listen_at(path: Path) -> socket.socket:
    """A socket bound to `path`, for the owner alone. One that nobody listens on is replaced; raises OSError.

    The mask of the process is changed for the moment of the bind, so no other thread should create files meanwhile.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o777 & ~OWNER_ONLY)
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def remove(path: Path) -> None:
    """Removes the socket at `path`, unless somebody has put something else there."""
    if path.is_socket():
        path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "it is there already, and no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise OSError(error.errno, f"the socket there cannot be asked: {error.strerror}") from error
    raise OSError(errno.EADDRINUSE, "another server listens there")
