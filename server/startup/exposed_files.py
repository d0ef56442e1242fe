"""Files with keys or records that other users of the machine may read or change."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from server.startup.config_file import ConfigError, read_config
from server.startup.logs import log
from server.startup.settings import ServerSettings

_READ, _WRITE = stat.S_IRGRP | stat.S_IROTH, stat.S_IWGRP | stat.S_IWOTH


class ExposedFile(NamedTuple):
    """A file or folder that others than its owner may use."""

    setting: str
    path: str
    mode: int

    def __str__(self) -> str:
        others = " and ".join(word for word, bits in (("read", _READ), ("change", _WRITE)) if self.mode & bits)
        return f"--{self.setting.replace('_', '-')} {self.path} has the mode {self.mode:o}: other users may {others} it"


def exposed_files(settings: ServerSettings) -> Iterator[ExposedFile]:
    """Finds those among the files with keys and settings, the store and the folder of kept prefixes that exist."""
    paths = {
        "api_key_file": settings.api_key_file,
        "ssl_keyfile": settings.ssl_keyfile,
        "mcp_config": settings.mcp_config,
        "config": settings.config,
        "store": settings.store,
        "prefix_cache_dir": settings.engine.prefix_cache_dir,
        "coordinator_key_file": settings.engine.coordinator_key_file,
    }
    for setting, path in paths.items():
        if path is not None:
            try:
                mode = stat.S_IMODE(os.stat(os.path.expanduser(path)).st_mode)
            except (OSError, ValueError):
                continue
            has_secrets = setting != "config" or _has_secrets(path)
            if mode & (_READ | _WRITE if has_secrets else _WRITE):
                yield ExposedFile(setting, path, mode)


def _has_secrets(config: str) -> bool:
    """Whether a file of settings has keys; most have none, and may be read by everybody."""
    declared = ServerSettings.declared()
    try:
        values = read_config(config, declared).values
    except ConfigError:  # it was changed since it was read
        return True
    return any(setting.is_secret and setting.key in values for setting in declared)


def warn_of_exposed_files(settings: ServerSettings) -> None:
    """Logs a warning for each. A replica leaves that to its front, which has the same files."""
    if settings.replica_name is None:
        for file in exposed_files(settings):
            log.warning("exposed_file", detail=f"{file}; chmod go-rwx {file.path} forbids that")
