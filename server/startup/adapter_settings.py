"""The adapters that `--lora` names, and the memory that they need."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.interface.config import AdapterLimits
from server.model_sources.model_paths import GGUF_SUFFIX
from server.startup.settings import LARGEST_LORA_RANK, ServerSettings, SettingsError

if TYPE_CHECKING:
    from engine.client import EngineClient

CONFIG = "adapter_config.json"  # of the folder of an adapter
LEAST_SLOTS = 4  # where adapters may come at run time
LEAST_RANK = 16


def paths_of(texts: Iterable[str], taken: Iterable[str] = ()) -> dict[str, Path]:
    """The folders and files of adapters by the names that clients know them by; raises SettingsError.

    Args:
        texts: each is NAME=PATH, the path of an adapter, or that of a folder with several.
        taken: names that adapters cannot have.
    """
    found: dict[str, Path] = {}
    for text in texts:
        name, has_name, rest = text.partition("=")
        if not has_name or Path(os.path.expanduser(text)).exists():
            name, rest = "", text
        path = Path(os.path.expanduser(rest))
        if not rest or (has_name and not name and rest != text):
            raise SettingsError(f"lora is {text!r}; it must be NAME=PATH, or the path of a folder")
        if not path.exists():
            raise SettingsError(f"lora is {text!r}, and there is no such folder or file")
        several = [path]
        if not name and path.is_dir() and not (path / CONFIG).exists():
            several = sorted([*(each.parent for each in path.glob(f"*/{CONFIG}")), *path.glob(f"*{GGUF_SUFFIX}")])
        if not several:
            raise SettingsError(f"lora is {text!r}, a folder without {CONFIG}, and without adapters in it")
        for each in several:
            own = name or Path(os.path.abspath(each)).name.removesuffix(GGUF_SUFFIX)
            if own in found or own in taken:
                raise SettingsError(f"lora is {text!r}, and the name {own} is taken; name it with NAME=PATH")
            found[own] = each
    return found


def limits_of(settings: ServerSettings) -> AdapterLimits:
    """The memory for the adapters of these settings; raises ModelError where one of them cannot be served."""
    from engine.client import EngineClient

    paths = paths_of(settings.lora)
    ranks = [EngineClient.rank_of_adapter(path) for path in paths.values()]
    num_slots, max_rank = settings.max_loras, settings.max_lora_rank
    if num_slots is None:
        num_slots = max(len(paths), LEAST_SLOTS if settings.enable_lora else 1)
    if max_rank is None:
        max_rank = max([*ranks, *([LEAST_RANK] if settings.enable_lora or not ranks else [])])
        max_rank = min(max_rank, LARGEST_LORA_RANK)  # beyond it an adapter is refused when it is read
    return AdapterLimits(num_slots, max_rank, is_required=bool(paths))


def load_first(engine: EngineClient, paths: Mapping[str, Path], num_slots: int) -> dict[str, tuple[int, str]]:
    """Reads all adapters, and puts as many as there are slots into memory, before the engine is started.

    Returns the slot and the digest of each of these. Raises ModelError where one cannot be served.
    """
    places: dict[str, tuple[int, str]] = {}
    for slot, (name, path) in enumerate(paths.items()):
        weights = engine.read_adapter(path)
        if slot < num_slots:
            engine.load_first_adapter(slot, weights)
            places[name] = (slot, weights.digest)
    return places
