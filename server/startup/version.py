"""The version of Eagre, which `pyproject.toml` alone states."""

from __future__ import annotations

import importlib.metadata
from functools import cache


def eagre_version() -> str:
    """Returns the version of the installed distribution, or "0+source" for a source tree that is not installed."""
    try:
        return importlib.metadata.version("eagre")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"


@cache
def system_fingerprint() -> str:
    """Returns OpenAI's `system_fingerprint`: the software behind an answer, with llama.cpp's letter for a build."""
    return f"b{eagre_version()}-eagre"
