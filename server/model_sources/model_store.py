"""Resolves the value of `--model`, whatever its source, and downloads the model where it is missing."""

import os
from pathlib import Path

from engine.interface.types import Progress
from engine.weights.formats.gguf_shards import ShardName
from server.model_sources import builtin_models
from server.model_sources.builtin_store import find_builtin, pull_builtin
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.hub_records import HubId, find_record
from server.model_sources.model_paths import is_path, local_model


def resolve_model(name_or_path: str) -> Path | None:
    """The path that a `--model` value means, or None for a model that is not pulled yet; raises ModelStoreError.

    A built-in name has precedence over a file of the same name, for which `./NAME` stands; an existing file or folder
    has precedence over a model of the Hub.
    """
    try:
        if name_or_path in builtin_models.BUILTIN_MODELS:
            return find_builtin(name_or_path)
        path = Path(os.path.expanduser(name_or_path))  # of an unknown user, it leaves the text as it is
        if path.exists() or is_path(name_or_path):
            return local_model(path)
        hub_id = HubId.parse(name_or_path)
        if hub_id is not None:
            record = find_record(hub_id)
            return None if record is None else record.path
    except OSError as error:
        raise ModelStoreError(f"{name_or_path} cannot be read: {error.strerror}") from error
    raise ModelStoreError(f"unknown model {name_or_path!r}; {_known_models(name_or_path)}")


def ensure_model(name_or_path: str, progress: Progress) -> Path:
    """As `resolve_model`, but downloads a missing model. It blocks."""
    return resolve_model(name_or_path) or _fetch(name_or_path, progress)


def pull_model(name: str, progress: Progress) -> Path:
    """Downloads a model, of the Hub the newest of its revision, and returns the path of its file or folder. It blocks.

    Of a local model it only returns the path. Raises ModelStoreError: the name is unknown, or the download fails.
    """
    path = resolve_model(name)
    if path is not None and not is_from_hub(name):
        return path
    return _fetch(name, progress)


def is_from_hub(name_or_path: str) -> bool:
    """Whether a value that `resolve_model` accepts means a model of the Hub."""
    if name_or_path in builtin_models.BUILTIN_MODELS or is_path(name_or_path):
        return False
    return HubId.parse(name_or_path) is not None and not Path(name_or_path).exists()


def name_of(name_or_path: str, path: Path) -> str | None:
    """The name of a model whose file or folder, found by `resolve_model`, is called differently; None of others."""
    if is_from_hub(name_or_path):
        return name_or_path
    shard = ShardName.parse(path.name)
    return None if shard is None else shard.stem


def _fetch(name: str, progress: Progress) -> Path:
    hub_id = None if name in builtin_models.BUILTIN_MODELS else HubId.parse(name)
    if hub_id is None:
        return pull_builtin(name, progress)
    from server.model_sources.hub_download import (
        pull_from_hub,  # the library takes long to import, and is seldom needed
    )

    return pull_from_hub(hub_id, progress)


def _known_models(name: str) -> str:
    from difflib import get_close_matches

    known = list(builtin_models.BUILTIN_MODELS)
    near = get_close_matches(name.lower(), known, n=1)
    return (
        (f"did you mean {near[0]}? The " if near else "")
        + f"built-in models are {', '.join(known)}; or give the path of a GGUF file or a folder, or owner/name of a "
        "model of the Hub"
    )
