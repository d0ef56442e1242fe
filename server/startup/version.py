"""The version of Eagre."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def eagre_version() -> str:
    """The version of the installed distribution, or "0+source" for a source tree that is not installed."""
    try:
        return version("eagre")
    except PackageNotFoundError:
        return "0+source"
