"""Imports of libraries without those of their parts that a start does not need."""

import ssl
import sys
from typing import Any


def import_structlog() -> None:
    """Imports structlog without rich, where nothing has imported rich: 20 modules for tracebacks that no log shows."""
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import of it fails, which structlog is prepared for
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


def import_aiohttp() -> None:
    """Imports aiohttp, whose TLS contexts then read the system's certificates at their first connection.

    aiohttp makes two contexts for its clients when it is imported, and each reads all certificates, which takes 40 ms.
    Most servers and commands never open a connection with TLS.
    """
    reading = "set_default_verify_paths"
    if "aiohttp" in sys.modules or reading in vars(ssl.SSLContext):  # something else has replaced the method
        return
    contexts: list[ssl.SSLContext] = []

    def read_later(context: ssl.SSLContext) -> None:
        contexts.append(context)

    setattr(ssl.SSLContext, reading, read_later)
    try:
        import aiohttp  # noqa: F401
    finally:
        delattr(ssl.SSLContext, reading)
    for context in contexts:
        context.__class__ = _UnreadContext


class _UnreadContext(ssl.SSLContext):
    """A context that reads the system's certificates at its first connection, and is a usual one from then on."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        self._read()
        return self.wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        self._read()
        return self.wrap_socket(*args, **options)

    def _read(self) -> None:
        self.set_default_verify_paths()
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]
