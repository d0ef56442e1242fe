"""Lists the models in the cache of `huggingface_hub`, whichever program has downloaded them."""

from collections.abc import Iterator

from huggingface_hub import CachedRevisionInfo, constants, scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.hub_files import choose
from server.model_sources.hub_records import HubId, HubRecord, all_records
from server.model_sources.model_paths import gguf_models


def cached_models() -> Iterator[HubRecord]:
    """The complete models: first those that Eagre has downloaded, then the others; raises OSError."""
    seen = set[tuple[str, str | None]]()
    for record in all_records():
        if record.is_complete:
            seen.add((record.snapshot, record.main))
            yield record
    for record in _others():
        if (record.snapshot, record.main) not in seen:
            yield record


def _others() -> Iterator[HubRecord]:
    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return
    for repository in sorted(found.repos, key=lambda repository: repository.repo_id):
        if repository.repo_type == "model":
            for revision in sorted(repository.revisions, key=lambda revision: revision.commit_hash):
                yield from _models_of(repository.repo_id, revision)


def _models_of(repository: str, revision: CachedRevisionInfo) -> Iterator[HubRecord]:
    named = None if constants.DEFAULT_REVISION in revision.refs else revision.commit_hash
    files = sorted(file.file_path.relative_to(revision.snapshot_path).as_posix() for file in revision.files)
    for main in (None, *gguf_models(files)):
        hub_id = HubId(repository, main, named)
        try:
            # Without a name, the files of a folder are looked for, so those of GGUF models are left out.
            wanted = choose(hub_id, files if main is not None else [name for name in files if ".gguf" not in name])
        except ModelStoreError:  # a part of it, or nothing that is served
            continue
        yield HubRecord(str(hub_id), str(revision.snapshot_path), wanted.files, wanted.main)
