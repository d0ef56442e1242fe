"""The model that a `--model` value means, whatever its source."""

from __future__ import annotations

import os
from pathlib import Path

from engine.border.types import Progress
from engine.weights.formats.model_folder import CONFIG
from server.sources import builtin_models
from server.sources.builtin_store import find_builtin, pull_builtin
from server.sources.errors import ModelStoreError

GGUF_MAGIC = b"GGUF"


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
        return _model_at(Path(name_or_path).expanduser(), name_or_path)
    except OSError as error:
        raise ModelStoreError(f"--model {name_or_path} cannot be read: {error.strerror}") from error


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


def _model_at(path: Path, given: str) -> Path:
    """
    Raises:
        ModelStoreError: there is no model at the path.
        OSError: it cannot be read.
    """
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise ModelStoreError(
                f"--model {given} is a folder without {CONFIG}; "
                "give a folder in Hugging Face's layout, or the path of a GGUF file"
            )
        return path
    if not path.exists():
        if path.suffix == ".gguf" or os.sep in given:
            raise ModelStoreError(f"--model {given}: there is no such file or folder")
        raise ModelStoreError(f"unknown model {given!r}; {_known_models()}")
    if not path.is_file():
        raise ModelStoreError(f"--model {given} is no regular file")
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise ModelStoreError(f"--model {given} is no GGUF file: it begins with {magic!r}, not {GGUF_MAGIC!r}")
    return path


def _known_models() -> str:
    known = ", ".join(builtin_models.BUILTIN_MODELS)
    return f"built-in models are {known}; or give the path of a GGUF file or a folder"
