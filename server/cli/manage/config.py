"""`eagre config check`: whether `eagre serve --config` can use a file, and what it would serve."""

from __future__ import annotations

from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_store import resolve_model
from server.startup.model_settings import name_of, settings_of_each
from server.startup.plain_text import one_line
from server.startup.settings import ServerSettings, SettingsError


def check_config(path: str) -> str:
    """A line for each model that a server with this file alone would have; raises SettingsError."""
    settings = ServerSettings.from_sources({"config": path}, {})
    lines = [_line(path, own) for own in settings_of_each(settings)]
    return "\n".join([f"{one_line(path)} can be used; it serves", *lines]) + "\n"


def _line(path: str, own: ServerSettings) -> str:
    name = own.served_model_name or name_of(own.model)
    table = own.tables[0] if own.tables else None
    try:
        is_here = resolve_model(own.model) is not None
    except ModelStoreError as error:
        where = path if table is None else f"{path}, the model {name}"
        raise SettingsError(f"{where}: {error}") from error
    notes = [] if is_here else ["fetched at its first use"]
    adapters = [text.partition("=")[0] for text in own.lora]  # which the settings of a model all name
    notes += [f"adapters {', '.join(adapters)}"] if adapters else []
    if table is not None:
        notes += [f"also {', '.join(further)}"] if (further := list(table.further_names)) else []
        notes += ["pinned"] if table.is_pinned else []
    return one_line(f"  {name}: {own.model}" + (f" ({'; '.join(notes)})" if notes else ""))
