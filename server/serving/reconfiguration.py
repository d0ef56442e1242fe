"""Applies a file of settings that was read again to a running server, without the loss of a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from typing import Any, TypeAlias

from engine.interface.background import run_in_background
from engine.interface.config import EngineConfig
from engine.interface.setting import settings_of
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.startup.logs import log, set_up_logs
from server.startup.model_settings import settings_of_each
from server.startup.settings import ServerSettings, SettingsError

Check: TypeAlias = Callable[[ServerSettings], Awaitable[None]]

# Settings that hold at once. They are read from the server's settings wherever they count.
_LIVE = frozenset(
    {
        "config", "models_max", "models_max_bytes", "sleep_idle_seconds", "shutdown_timeout", "body_timeout",
        "ping_interval", "log_level", "tables",
    }
)  # fmt: skip
# Settings with which a model is loaded: where they change, it is loaded anew beside the old one, or after it.
_OF_MODEL = frozenset(
    {
        "models", "task", "pooling", "chat_template", "default_chat_template_kwargs", "mm_processor_kwargs",
        "sampling_defaults", "tool_call_parser", "reasoning_parser", "additional_properties", "max_grammar_bytes",
        "grammar_timeout",
        "ignore_media", "lora", "enable_lora", "max_loras", "max_lora_rank",
    }
)  # fmt: skip
# Of the engine: what belongs to the process, to its hosts, and to ports that the model of before still has.
_OF_PROCESS = frozenset(
    {
        "num_hosts", "host_index", "coordinator", "coordinator_key", "coordinator_key_file", "kv_events",
        "kv_events_topic", "kv_events_format", "prefix_cache_listen", "prefix_cache_peers", "prefix_cache_key",
    }
)  # fmt: skip


class Reconfiguration:
    """Reads the settings of one server again."""

    def __init__(self, served: ServedModels, read: Callable[[], ServerSettings], check: Check) -> None:
        """Args:
        read: raises SettingsError for a file that cannot be used; it blocks.
        check: raises what is wrong with a model of other settings, before one that is loaded is given up for it.
        """
        self._served = served
        self._read = read
        self._check = check
        self._each = [model.settings for model in served.all]  # of the file, as they were applied

    async def apply(self) -> None:
        """Reads the settings again and applies what may change; the log names what needs a restart.

        Where they cannot be used, the log says why, and nothing changes.
        """
        served, old = self._served, self._served.settings
        try:
            # The end of the server does not wait for it.
            new = await run_in_background(self._read, name="eagre-settings")
            needing_restart = _needing_restart(old, new)
            settings = _with_old(new, old, needing_restart)
            each = list(settings_of_each(settings))
        except SettingsError as error:
            log.error("config_kept", reason=str(error))
            return
        for own in each:
            before = next((each for each in served.all if _name(each.settings) == _name(own)), None)
            if before is None or not before.is_open or _matching(served.all, self._each, own, old, settings) is before:
                continue
            try:
                await self._check(own)
            except (OSError, ValueError, RuntimeError) as error:
                log.error("config_kept", reason=f"the model {before.model_name} could not be loaded: {error}")
                return
        models = [_matching(served.all, self._each, own, old, settings) or own for own in each]
        names = {name for own in each for name in _names(own)}
        # Those that an administrator added stay, unless the file has their names now.
        models += [each for each in served.all if each.settings not in self._each and each.model_name not in names]
        removed = [model for model in served.all if model not in models]
        added = [model for model in models if isinstance(model, ServerSettings)]
        if (removed or added) and settings.engine.kv_events is not None:
            log.error("config_kept", reason="models with kv_events have ports; they change with a restart alone")
            return
        changed = []
        for model, own in zip(models, each, strict=False):
            if isinstance(model, ServedModel):
                if _used_with(model.settings) != _used_with(own):
                    changed.append(model.model_name)
                model.change(own)
        self._each = each
        served.change(settings, models)
        if settings.log_level != old.log_level:
            set_up_logs(settings.log_level, settings.log_format, settings.replica_name)
        if needing_restart:
            log.warning("config_needs_restart", keys=sorted(needing_restart))
        log.info(
            "config_reloaded",
            settings=sorted(_differing(old, settings) - {"tables", "models"}),
            models_changed=changed,
            models_loaded=[model.served_model_name or model.model for model in added],
            models_removed=[model.model_name for model in removed],
        )


def _matching(
    models: tuple[ServedModel, ...],
    applied: list[ServerSettings],
    own: ServerSettings,
    old: ServerSettings,
    new: ServerSettings,
) -> ServedModel | None:
    """The served model that can go on with the settings `own`, because it was loaded with the same."""
    is_same_share = _share(old) == _share(new)
    for model in models:
        if model.settings in applied and model.settings.served_model_name == own.served_model_name:
            theirs, ours = _loaded_with(model.settings, is_same_share), _loaded_with(own, is_same_share)
            return model if theirs == ours else None
    return None


def _name(own: ServerSettings) -> str:
    return own.served_model_name or own.model


def _names(own: ServerSettings) -> set[str | None]:
    further = (name for table in own.tables for name in table.further_names)
    adapters = (text.partition("=")[0] for text in own.lora)
    return {own.served_model_name, *further, *adapters}


def _share(settings: ServerSettings) -> tuple[float, int | None]:
    return settings.engine.memory_utilization, settings.engine.kv_cache_bytes


def _loaded_with(own: ServerSettings, is_same_share: bool) -> list[Any]:
    """What a model was loaded with. Its share of the memory does not count where only the number of models differs."""
    engine = own.engine
    if is_same_share:
        given = own.tables[0].settings.get("kv_cache_bytes") if own.tables else None
        engine = replace(engine, memory_utilization=EngineConfig.memory_utilization, kv_cache_bytes=given)
    return [engine, *(getattr(own, name) for name in sorted(_OF_MODEL))]


def _used_with(own: ServerSettings) -> tuple[Any, ...]:
    """What holds for a loaded model at once."""
    return own.tables, own.sleep_idle_seconds


def _differing(one: ServerSettings, other: ServerSettings) -> set[str]:
    """The names of the fields that differ, of the engine's configuration too."""
    found = {item.name for item in fields(ServerSettings) if getattr(one, item.name) != getattr(other, item.name)}
    if "engine" in found:
        found.remove("engine")
        found |= {
            name for name in settings_of(EngineConfig) if getattr(one.engine, name) != getattr(other.engine, name)
        }
    return found


def _needing_restart(old: ServerSettings, new: ServerSettings) -> set[str]:
    of_engine = settings_of(EngineConfig)
    return {
        name
        for name in _differing(old, new)
        if (name in _OF_PROCESS if name in of_engine else name not in _LIVE and name not in _OF_MODEL)
    }


def _with_old(new: ServerSettings, old: ServerSettings, names: set[str]) -> ServerSettings:
    """`new` with some fields as they are in `old`; raises SettingsError where they do not go together."""
    of_engine = settings_of(EngineConfig)
    try:
        engine = replace(new.engine, **{name: getattr(old.engine, name) for name in names if name in of_engine})
        return replace(new, engine=engine, **{name: getattr(old, name) for name in names if name not in of_engine})
    except ValueError as error:
        raise SettingsError(str(error)) from error
