"""The cache folder, for everything that can be downloaded or computed again."""

import os
from pathlib import Path


class ModelStoreError(RuntimeError):
    """A model cannot be found, downloaded or verified; the message says what to do."""


def cache_folder() -> Path:
    """$EAGRE_CACHE, else $XDG_CACHE_HOME/eagre, else ~/.cache/eagre, existing or not; raises ModelStoreError."""
    try:
        if own := os.environ.get("EAGRE_CACHE"):
            return Path(own).expanduser()
        if shared := os.environ.get("XDG_CACHE_HOME"):
            return Path(shared).expanduser() / "eagre"
        return Path.home() / ".cache" / "eagre"
    except RuntimeError as error:
        raise ModelStoreError(f"the cache folder cannot be found: {error}; set EAGRE_CACHE") from error
