"""Deletes fetched models from the caches (`eagre rm`)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from server.model_sources import builtin_models
from server.model_sources.builtin_store import builtin_file, folder_of, stamp_of_folder
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.hub_records import HubId, find_record
from server.model_sources.model_store import is_from_hub, resolve_model


def remove_model(name: str) -> int:
    """Deletes a built-in model, or one of the Hub that Eagre has fetched; returns the bytes that are free again.

    Raises ModelStoreError where it is not here, or is a file of the user's own.
    """
    folder: Path | None = None
    if name in builtin_models.BUILTIN_MODELS:
        path = builtin_file(name)
        found = [path, path.with_suffix(".verified.json"), path.with_suffix(".partial")]
        folder = folder_of(path)
        found.append(stamp_of_folder(folder))
        found += [file for file in folder.rglob("*") if not file.is_dir()]
    elif is_from_hub(name):
        found = _files_of_hub(name)
    else:
        resolve_model(name)  # raises where there is no such model
        raise ModelStoreError(f"{name} is no fetched model but a file of your own; delete it yourself")
    found = [path for path in found if os.path.lexists(path)]
    if not found:
        raise ModelStoreError(f"{name} is not here; `eagre models` lists what is")
    num_bytes = sum(path.lstat().st_size for path in found)
    for path in found:
        path.unlink()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return num_bytes


def _files_of_hub(name: str) -> list[Path]:
    """The files of a model in the library's cache, and what they point to where nothing else does."""
    hub_id = HubId.parse(name)
    record = None if hub_id is None else find_record(hub_id)
    if record is None:
        return []
    links = [Path(record.snapshot, file) for file in record.files]
    snapshots = Path(record.snapshot).parent
    others = {path.resolve() for path in snapshots.rglob("*") if path.is_symlink() and path not in links}
    blobs = {path.resolve() for path in links if path.is_symlink()} - others
    return [*links, *sorted(blobs)]
