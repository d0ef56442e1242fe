"""Downloads models from the Hugging Face Hub with `huggingface_hub`, into its cache.

The library has its own variables: HF_TOKEN or the token of `hf auth login`, HF_HUB_OFFLINE, HF_ENDPOINT, HF_HOME.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm import tqdm

from engine.interface.types import Progress
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.hub_files import WantedFiles, choose
from server.model_sources.hub_records import HubId, HubRecord, find_record


def pull_from_hub(hub_id: HubId, progress: Progress) -> Path:
    """Downloads the newest files of a model, those of its revision if it names one. It blocks.

    Cached files are not downloaded again. Where the Hub cannot be reached, the model is taken as it was downloaded
    last. Returns the GGUF file, of shards the first, or the folder.

    Raises ModelStoreError: there is no such model, it may not be read, or the Hub cannot be reached.
    """
    api = HfApi(library_name="eagre")
    try:
        try:
            commit, sizes = _list_files(api, hub_id)
        except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError):
            raise
        except Exception as error:  # noqa: BLE001 - what else is raised depends on the library's own HTTP library
            record = find_record(hub_id) or _cached(api, hub_id, error)
        else:
            record = _fetch(api, hub_id, commit, sizes, progress)
        with contextlib.suppress(OSError):  # in a cache that is not writable, the Hub is asked at each start
            record.write()
    except ModelStoreError:
        raise
    except Exception as error:
        raise ModelStoreError(_explanation(hub_id, error)) from error
    return record.path


def _list_files(api: HfApi, hub_id: HubId) -> tuple[str, dict[str, int]]:
    info = api.model_info(hub_id.repository, revision=hub_id.revision, files_metadata=True)
    if info.sha is None:
        raise ModelStoreError(f"{constants.ENDPOINT} names no commit of {hub_id}")
    return info.sha, {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _fetch(api: HfApi, hub_id: HubId, commit: str, sizes: dict[str, int], progress: Progress) -> HubRecord:
    wanted = choose(hub_id, list(sizes))
    stage, total, before, reported = f"download {hub_id}", sum(sizes[name] for name in wanted.files), 0, 0
    _check_free_space(hub_id, total)
    progress(stage, 0, total)

    def tell(num_bytes: int) -> None:
        """Reports bytes of the present file; a transfer that is taken up again may count from the start."""
        nonlocal reported
        done = min(before + num_bytes, total)
        if done > reported:
            reported = done
            progress(stage, done, total)

    snapshot = None
    for name in wanted.files:
        path = api.hf_hub_download(hub_id.repository, name, revision=commit, tqdm_class=_counting_bar(tell))
        snapshot = Path(path).parents[name.count("/")]
        tell(sizes[name])
        before += sizes[name]
    assert snapshot is not None  # a model has at least one file
    return _record(hub_id, snapshot, wanted)


def _cached(api: HfApi, hub_id: HubId, reason: Exception) -> HubRecord:
    """A model in the library's cache, for when the Hub cannot be reached; raises ModelStoreError, or `reason`."""
    try:  # without a pattern that fits a file, it returns the folder and downloads nothing
        snapshot = Path(
            api.snapshot_download(hub_id.repository, revision=hub_id.revision, local_files_only=True, allow_patterns=[])
        )
    except LocalEntryNotFoundError:
        raise reason from None
    files = [str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()]
    try:
        return _record(hub_id, snapshot, choose(hub_id, files))
    except ModelStoreError as error:
        raise ModelStoreError(f"{_explanation(hub_id, reason)}; of what is in the cache, {error}") from reason


def _record(hub_id: HubId, snapshot: Path, wanted: WantedFiles) -> HubRecord:
    return HubRecord(str(hub_id), str(snapshot.absolute()), wanted.files, wanted.main)


def _counting_bar(count: Callable[[int], None]) -> type[tqdm[Any]]:
    """A progress bar class that shows nothing and reports how many bytes of a file have arrived."""

    class CountingBar(tqdm):  # type: ignore[misc]  # tqdm ships no types
        monitor_interval = 0  # else the first bar of each class starts a thread that never ends

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **(options | {"disable": True}))

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            count(int(self.n))

    return CountingBar


def _check_free_space(hub_id: HubId, num_bytes: int) -> None:
    folder = Path(constants.HF_HUB_CACHE)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    present = sum(
        path.stat().st_size
        for path in (folder / f"models--{hub_id.repository.replace('/', '--')}" / "blobs").glob("*")
        if path.suffix != ".incomplete"
    )
    if shutil.disk_usage(existing).free + present < num_bytes:
        raise OSError(errno.ENOSPC, f"{num_bytes / 1e6:.0f} MB are needed in {folder}")


def _explanation(hub_id: HubId, error: Exception) -> str:
    name, hub = hub_id.repository, constants.ENDPOINT
    match error:
        case GatedRepoError():
            return (
                f"{name} is gated: accept its terms at {hub}/{name} and set HF_TOKEN to a token of that account, "
                "or run `hf auth login`"
            )
        case RepositoryNotFoundError():
            return (
                f"{name} is no file or folder here, and {hub} has no such model or does not show it without a token "
                "that may read it (HF_TOKEN)"
            )
        case RevisionNotFoundError():
            return f"{name} at {hub} has no revision {hub_id.revision!r}"
        case EntryNotFoundError() if not isinstance(error, LocalEntryNotFoundError):
            return f"a file of {name} is missing at {hub}: {_first_line(error)}"
        case HFValidationError():
            return f"{name} is no name that {hub} may have: {_first_line(error)}"
        case OfflineModeIsEnabled():
            return f"{hub_id} has not been fetched yet, and HF_HUB_OFFLINE forbids to do it now"
        case HfHubHTTPError():
            status = error.response.status_code
            hint = "; the token (HF_TOKEN) may not read it" if status in (401, 403) else ""
            return f"{hub} refused to give {name} with status {status}{hint}"
        case OSError(errno=errno.ENOSPC):
            return (
                f"no space left for {hub_id}: {error.strerror}; free some, or set HF_HOME to a folder on another disk"
            )
        case _:
            return (
                f"{hub_id} could not be fetched from {hub}: {_first_line(error)}; check the network and try again, "
                "files that have arrived are kept"
            )


def _first_line(error: Exception) -> str:
    """The reason without its full stop: the library's messages go on for several lines."""
    return next((line.strip(" .") for line in str(error).splitlines() if line.strip(" .")), type(error).__name__)
