"""Opens files that users name, and refuses anything that is not a regular file.

A named pipe may have nothing to read for ever, and a device may have no end: reading one hangs, or fills the memory.
"""

import errno
import io
import os
import stat
from pathlib import Path

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder"}


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a regular file for reading, without blocking; raises OSError for anything else.

    The kind is checked once the file is open, so that it cannot be exchanged in between.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(descriptor, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(descriptor: int, path: Path) -> None:
    """Raises OSError if the open file is not a regular one."""
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        code = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise OSError(code, f"it is {_KINDS.get(kind, 'something else')} and no regular file", str(path))
