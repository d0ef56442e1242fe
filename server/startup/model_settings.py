"""Turns the `--model` flags, or the tables of a file, into the settings of each model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from engine.interface.address import KVEndpoint
from engine.interface.config import EngineConfig
from engine.interface.setting import Setting, settings_of
from engine.weights.formats.gguf_shards import ShardName
from engine.weights.formats.model_folder import CONFIG
from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.model_paths import GGUF_SUFFIX, is_model_folder, models_in
from server.startup.adapter_settings import paths_of
from server.startup.settings import ServerSettings, SettingsError

_ONE_MODEL = "prefix_cache_listen and prefix_cache_peers are for a server with one model"


def settings_of_each(settings: ServerSettings) -> tuple[ServerSettings, ...]:
    """The settings of each model to serve, in the order of the flags or tables; raises SettingsError.

    Each has the name that clients know it by, unless it is the only one and is given none. Those that may be in memory
    at once share the memory for pages in equal parts.
    """
    try:
        _refuse_missing_files(settings)
    except SettingsError as error:
        raise SettingsError(f"{settings.config}: {error}" if settings.config else str(error)) from error
    if settings.tables:
        return _of_tables(settings)
    found = [model for text in settings.models for model in _read(text)]
    if len(found) == 1:
        ((name, model),) = found
        if name is not None and settings.served_model_name is not None:
            raise SettingsError(f"served_model_name is {settings.served_model_name!r}, and --model says {name!r}")
        name = settings.served_model_name or name
        lora = _with_full_paths(paths_of(settings.lora, (name or name_of(model),)))
        return (replace(settings, models=(model,), served_model_name=name, lora=lora),)
    if settings.lora:
        raise SettingsError(
            f"lora is for a server with one model, and there are {len(found)}; in a file (--config) the table of each "
            "names its adapters"
        )
    _refuse_shared_encoder(settings, len(found))
    if settings.engine.num_hosts > 1:
        raise SettingsError(
            f"num_hosts is {settings.engine.num_hosts} and there are {len(found)} models; several hosts compute one"
        )
    if settings.served_model_name is not None:
        raise SettingsError(
            f"served_model_name is {settings.served_model_name!r} and there are {len(found)} models; "
            "name each with --model NAME=MODEL"
        )
    named: dict[str, str] = {}
    for name, model in found:
        name = name or name_of(model)
        if name in named:
            raise SettingsError(f"{named[name]} and {model} have the same name {name}; name them with NAME=MODEL")
        named[name] = model
    shared = _with_share(settings, len(named))
    return tuple(
        replace(settings, models=(model,), served_model_name=name, engine=_with_own_ports(shared, index))
        for index, (name, model) in enumerate(named.items())
    )


def _of_tables(settings: ServerSettings) -> tuple[ServerSettings, ...]:
    tables = settings.tables
    if settings.lora:
        raise SettingsError(
            f"lora is for a server with one model, and {settings.config} has tables of models; the key lora of a "
            "table names the adapters of its model"
        )
    _refuse_shared_encoder(settings, len(tables))
    several = ((settings.engine.num_hosts, "num_hosts"), (settings.data_parallel, "data_parallel"))
    for number, name in several:
        if number > 1:
            raise SettingsError(
                f"{name} is {number}, and {settings.config} has tables of models, which one process serves; give the "
                "model by the key model"
            )
    if settings.served_model_name is not None:
        raise SettingsError(
            f"served_model_name is {settings.served_model_name!r}, and the tables of {settings.config} name the models"
        )
    pinned = [table.name for table in tables if table.is_pinned]
    if settings.models_max is not None and settings.models_max <= len(pinned) < len(tables):
        raise SettingsError(
            f"models_max is {settings.models_max}, and {settings.config} pins {', '.join(pinned)}; the other models "
            "would never have a place"
        )
    shared, of_server = _with_share(settings, len(tables)), settings_of(ServerSettings)
    names = {name for table in tables for name in (table.name, *table.further_names)}
    each = []
    for index, table in enumerate(tables):
        values = {declared.name: table.settings[key] for key, declared in _by_key().items() if key in table.settings}
        own = {name: values.pop(name) for name in tuple(values) if name in of_server}
        try:
            if "lora" in own:
                paths = paths_of(own["lora"], names)
                own["lora"] = _with_full_paths(paths)
                names |= paths.keys()
            engine = replace(_with_own_ports(shared, index), **values)
            found = replace(
                settings, tables=(table,), models=(table.model,), served_model_name=table.name, engine=engine, **own
            )
            _refuse_missing_files(found)
        except ValueError as error:
            raise SettingsError(f"{settings.config}, [models.{table.name}]: {error}") from error
        each.append(found)
    return tuple(each)


def _refuse_missing_files(settings: ServerSettings) -> None:
    """Raises SettingsError where a file of a model is not there: one that runs is not given up for a wrong name."""
    template = None if settings.chat_template is None else Path(settings.chat_template)
    for name, path in (("mmproj", settings.engine.mmproj_path), ("chat_template", template)):
        if path is not None and not path.is_file():
            raise SettingsError(f"{name} is {str(path)!r}, and there is no such file")


def _refuse_shared_encoder(settings: ServerSettings, num_models: int) -> None:
    """Raises SettingsError where one encoder of pictures is given for several models."""
    if settings.engine.mmproj is not None and num_models > 1:
        raise SettingsError(
            f"mmproj is {settings.engine.mmproj!r} and there are {num_models} models; give each its own in its "
            "table of a file (--config), or put the file beside the model"
        )


def _with_full_paths(adapters: Mapping[str, Path]) -> tuple[str, ...]:
    return tuple(f"{name}={os.path.abspath(path)}" for name, path in adapters.items())


def _by_key() -> dict[str, Setting]:
    return {declared.key: declared for declared in ServerSettings.declared()}


def _with_share(settings: ServerSettings, num_models: int) -> EngineConfig:
    """The engine's configuration with the memory for pages of one of several models."""
    engine = settings.engine
    num_at_once = min(settings.models_max or num_models, num_models)
    return replace(
        engine,
        memory_utilization=engine.memory_utilization / num_at_once,
        kv_cache_bytes=None if engine.kv_cache_bytes is None else max(1, engine.kv_cache_bytes // num_at_once),
    )


def settings_of_another(settings: ServerSettings, first: ServerSettings, name: str, index: int) -> ServerSettings:
    """The settings of a model that a server takes beside its first one while it runs; raises SettingsError."""
    if first.tables:  # what its table says is for the first one alone
        first = replace(settings, engine=_with_share(settings, len(settings.tables)))
    if first.engine.num_hosts > 1:
        raise SettingsError(f"num_hosts is {first.engine.num_hosts}; several hosts compute one model")
    if first.engine.prefix_cache_listen is not None or first.engine.prefix_cache_peers:
        raise SettingsError(_ONE_MODEL)
    return replace(
        first, models=(name,), served_model_name=name, tables=(), lora=(),
        engine=_with_own_ports(replace(first.engine, mmproj=None), index),
    )  # fmt: skip


def _with_own_ports(engine: EngineConfig, index: int) -> EngineConfig:
    """The configuration of one of several models, with ports of its own for page events; raises SettingsError."""
    if index and (engine.prefix_cache_listen is not None or engine.prefix_cache_peers):
        raise SettingsError(_ONE_MODEL)
    if engine.kv_events is None:
        return engine
    try:
        return replace(engine, kv_events=KVEndpoint.parse(engine.kv_events).shifted(index).events)
    except ValueError as error:
        raise SettingsError(
            f"kv_events is {engine.kv_events!r}, and model {index + 1} takes ports too: {error}"
        ) from error


def _read(text: str) -> Iterator[tuple[str | None, str]]:
    """The name, if one is given, and the model of each model that a flag means; raises SettingsError."""
    name, has_name, model = text.partition("=")
    if not has_name or Path(os.path.expanduser(text)).exists():
        name, model = "", text
    elif not (name and model):
        raise SettingsError(f"--model {text} has an empty name or an empty model; write NAME=MODEL")
    path = Path(os.path.expanduser(model))
    if model in BUILTIN_MODELS or not path.is_dir():
        yield name or None, model
        return
    models = [path] if is_model_folder(os.listdir(path)) else models_in(path)
    if not models:
        raise SettingsError(
            f"--model {model} is a folder without {CONFIG}, and holds neither GGUF files nor folders with one"
        )
    if name and len(models) > 1:
        raise SettingsError(f"--model {text} gives one name to the {len(models)} models of the folder")
    for found in models:
        yield name or None, str(found)


def name_of(model: str) -> str:
    """The default name of a model: the last part of its path without a file's suffix, or all of a name."""
    path = Path(os.path.abspath(os.path.expanduser(model)))
    if model in BUILTIN_MODELS or not path.exists():
        return model
    shard = ShardName.parse(path.name)
    return path.name.removesuffix(GGUF_SUFFIX) if shard is None else shard.stem
