"""The name of a model that is given none."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SHARD = re.compile(r"-(\d{5})-of-\d{5}$")  # how the stem of a GGUF file in several parts ends


def name_of(model: str) -> str:
    """What a model is called: the last part of its path, without the suffix of a file; else what it is fetched by."""
    path = Path(os.path.abspath(Path(model).expanduser()))
    if not path.exists():
        return model
    return _SHARD.sub("", path.stem) if path.suffix == ".gguf" else path.name


def is_later_shard(path: Path) -> bool:
    """Whether a GGUF file is a part of a model, but not the first."""
    shard = _SHARD.search(path.stem)
    return shard is not None and int(shard[1]) > 1
