"""The secret of all hosts of one model, which every host proves before it is told anything."""

from __future__ import annotations

import os
from pathlib import Path

from engine.interface.config import KEY, EngineConfig
from engine.interface.regular_file import open_regular

_MOST_BYTES = 4096  # of a file with a key


def read_host_key(config: EngineConfig) -> str:
    """The key that the configuration has, or the first line of the file that it names.

    Raises:
        ValueError: there is none, or the file cannot be read or holds no key.
    """
    if config.coordinator_key is not None:
        return config.coordinator_key
    if config.coordinator_key_file is None:
        raise ValueError(
            f"num_hosts is {config.num_hosts}, but coordinator_key is missing; all hosts must have the same one"
        )
    named = f"coordinator_key_file is {config.coordinator_key_file!r}"
    try:
        with open_regular(Path(os.path.expanduser(config.coordinator_key_file))) as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise ValueError(f"{named}: {error.strerror}") from error
    key = text.split("\n", 1)[0].strip()
    if not KEY.holds(key):
        raise ValueError(f"{named}, and its first line is no key; {KEY.demand}")
    return key
