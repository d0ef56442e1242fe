"""The model that a `--model` value means, whatever its source."""

from __future__ import annotations

import os
from pathlib import Path

from engine.border.types import Progress
from server.sources import builtin_models
from server.sources.builtin_store import find_builtin, pull_builtin
from server.sources.errors import ModelStoreError
from server.sources.local_models import is_path, local_model


def resolve_model(name_or_path: str) -> Path | None:
    """The GGUF file, or the folder in Hugging Face's layout, that a `--model` value means.

    A built-in name has precedence over a file or folder of the same name in the working folder; `./NAME`
    means the latter.

    Returns:
        The path, or None for a built-in model that is not pulled yet.

    Raises:
        ModelStoreError: the value is neither a built-in name nor the path of a model.
    """
    try:
        if name_or_path in builtin_models.BUILTIN_MODELS:
            return find_builtin(name_or_path)
        path = Path(os.path.expanduser(name_or_path))  # of an unknown user, it leaves the text as it is
        if path.exists() or is_path(name_or_path):
            return local_model(path)
    except OSError as error:
        raise ModelStoreError(f"{name_or_path} cannot be read: {error.strerror}") from error
    raise ModelStoreError(f"unknown model {name_or_path!r}; {_known_models()}")


def ensure_model(name_or_path: str, progress: Progress) -> Path:
    """As `resolve_model`, but pulls a built-in model that is missing."""
    return resolve_model(name_or_path) or pull_builtin(name_or_path, progress)


def pull_model(name: str, progress: Progress) -> Path:
    """Fetches a model that is not on this machine yet, and returns the path of its file.

    It blocks; asyncio code must call it in a worker thread.

    Raises:
        ModelStoreError: the name is unknown, or the model cannot be fetched.
    """
    if name not in builtin_models.BUILTIN_MODELS:
        raise ModelStoreError(f"unknown model {name!r}; {_known_models()}")
    return pull_builtin(name, progress)


def _known_models() -> str:
    known = ", ".join(builtin_models.BUILTIN_MODELS)
    return f"built-in models are {known}; or give the path of a GGUF file or a folder"
