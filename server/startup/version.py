"""Which Eagre this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def eagre_version() -> str:
    """The installed distribution's version; a source tree that was never installed has none."""
    try:
        return version("eagre")
    except PackageNotFoundError:
        return "0+source"
