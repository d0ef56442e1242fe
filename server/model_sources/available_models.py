"""Lists the models on this machine, and the built-in ones that can be downloaded (`eagre models`)."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.weights.formats.model_folder import CONFIG
from server.model_sources import builtin_models
from server.model_sources.builtin_store import builtin_file, folder_of, has_sizes, unpack
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_paths import local_model, models_in
from server.model_sources.model_store import is_from_hub, resolve_model


@dataclass(frozen=True, slots=True)
class AvailableModel:
    """A model by the name that --model takes."""

    name: str
    source: str  # "built-in", "hub" or "file"
    path: Path | None  # of the GGUF file or the folder; None where it is not here
    download_bytes: int | None = None  # of a built-in model that is not here
    license: str | None = None  # of the weights of a built-in model
    summary: str | None = None  # what a built-in model is good for
    memory_bytes: int | None = None  # about what a built-in model takes, with the cache of 1,000 tokens
    error: str | None = None  # why there is nothing to open


def all_models(paths: Iterable[str]) -> Iterator[AvailableModel]:
    """The built-in models, those of the Hub that were downloaded, and those in some files and folders."""
    yield from map(_builtin, builtin_models.BUILTIN_MODELS)
    yield from _from_hub()
    for path in paths:
        yield from _at(Path(os.path.expanduser(path)))


def find_model(name: str) -> AvailableModel:
    """The model that a value of --model means; raises ModelStoreError where there is none."""
    if name in builtin_models.BUILTIN_MODELS:
        return _builtin(name)
    path = resolve_model(name)
    if path is None:
        raise ModelStoreError(f"{name} is not here; `eagre pull {name}` fetches it")
    return AvailableModel(name, "hub" if is_from_hub(name) else "file", path)


def _builtin(name: str) -> AvailableModel:
    """A file of the right size is taken for the model, because hashing would read all of it."""
    path, model = builtin_file(name), builtin_models.BUILTIN_MODELS[name]
    is_here = path.is_file() and path.stat().st_size == model.size
    if model.is_archive:
        folder = folder_of(path)
        if is_here and not has_sizes(folder, model):
            unpack(path)
        path, is_here = folder, has_sizes(folder, model)
    return AvailableModel(
        name, "built-in", path if is_here else None, None if is_here else model.size, model.license,
        model.summary, model.memory_bytes,
    )  # fmt: skip


def _from_hub() -> Iterator[AvailableModel]:
    from server.model_sources.hub_cache import cached_models  # the library takes long to import

    try:
        for record in cached_models():
            yield AvailableModel(record.name, "hub", record.path)
    except OSError as error:
        yield AvailableModel("the cache of the Hub", "hub", None, error=str(error))


def _at(path: Path) -> Iterator[AvailableModel]:
    try:
        inner = models_in(path) if path.is_dir() and not (path / CONFIG).is_file() else []
    except OSError as error:
        yield AvailableModel(str(path), "file", None, error=f"it cannot be read: {error.strerror}")
        return
    yield from map(_file, inner or [path])


def _file(path: Path) -> AvailableModel:
    try:
        return AvailableModel(str(path), "file", local_model(path))
    except (ModelStoreError, OSError) as error:
        return AvailableModel(str(path), "file", None, error=str(error))
