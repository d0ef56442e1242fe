"""From the `--model` flags to the models that are served."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.interface.config import EngineConfig
from server.startup.model_settings import settings_of_each
from server.startup.settings import ServerSettings, SettingsError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a model folder, two GGUF files, one of them in two parts, and other things."""
    (tmp_path / "Tide-1B").mkdir()
    (tmp_path / "Tide-1B" / "config.json").write_text("{}")
    for name in ("wave.gguf", "swell-00001-of-00002.gguf", "swell-00002-of-00002.gguf", "notes.txt", ".hidden.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    (tmp_path / "empty").mkdir()
    return tmp_path


def names_and_models(*models: str, **settings: object) -> list[tuple[str | None, str]]:
    each = settings_of_each(ServerSettings(models=models, **settings))  # type: ignore[arg-type]
    assert all(len(own.models) == 1 for own in each)
    return [(own.served_model_name, own.model) for own in each]


def test_one_model_keeps_the_settings_of_the_server() -> None:
    settings = ServerSettings(models=("smollm2-135m-instruct",))
    assert settings_of_each(settings) == (settings,)
    assert names_and_models("a.gguf", served_model_name="mine") == [("mine", "a.gguf")]
    assert names_and_models("mine=a.gguf") == [("mine", "a.gguf")]


def test_several_models_are_named_after_their_files(folder: Path) -> None:
    wave, tide = str(folder / "wave.gguf"), str(folder / "Tide-1B")
    assert names_and_models(wave, f"org/tide={tide}", "smollm2-135m-instruct") == [
        ("wave", wave),
        ("org/tide", tide),
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
    ]


def test_a_folder_stands_for_the_models_in_it(folder: Path) -> None:
    assert names_and_models(str(folder)) == [
        ("Tide-1B", str(folder / "Tide-1B")),
        ("swell", str(folder / "swell-00001-of-00002.gguf")),
        ("wave", str(folder / "wave.gguf")),
    ]
    assert names_and_models(str(folder / "Tide-1B")) == [(None, str(folder / "Tide-1B"))]


def test_a_path_with_an_equals_sign_is_a_path(folder: Path) -> None:
    path = folder / "wave.gguf"
    odd = path.rename(folder / "wave=2.gguf")
    assert names_and_models(str(odd)) == [(None, str(odd))]


def test_models_share_the_memory_of_the_pages() -> None:
    settings = ServerSettings(models=("a=x", "b=y", "c=z"))
    total = settings.engine.memory_utilization
    assert [own.engine.memory_utilization for own in settings_of_each(settings)] == [total / 3] * 3
    two = ServerSettings(models=("a=x", "b=y", "c=z"), models_max=2)
    assert [own.engine.memory_utilization for own in settings_of_each(two)] == [total / 2] * 3


def test_each_model_publishes_its_pages_at_ports_of_its_own() -> None:
    engine = EngineConfig(kv_events="tcp://*:5557")
    found = settings_of_each(ServerSettings(models=("a=x", "b=y"), engine=engine))
    assert [own.engine.kv_events for own in found] == ["tcp://*:5557", "tcp://*:5559"]
    last = EngineConfig(kv_events="tcp://*:65534")
    with pytest.raises(SettingsError, match="model 2 takes ports too"):
        settings_of_each(ServerSettings(models=("a=x", "b=y"), engine=last))


def test_pages_pass_between_servers_of_one_model() -> None:
    engine = EngineConfig(
        prefix_cache_dir="kept", prefix_cache_peers=("node-1:9100",), prefix_cache_key="a-secret-of-page-servers"
    )
    assert settings_of_each(ServerSettings(models=("a=x",), engine=engine))[0].engine == engine
    with pytest.raises(SettingsError, match="prefix_cache_peers are for a server with one model"):
        settings_of_each(ServerSettings(models=("a=x", "b=y"), engine=engine))


def test_several_hosts_compute_one_model() -> None:
    engine = EngineConfig(tensor_parallel=2, num_hosts=2, coordinator="node-0:9000")
    assert settings_of_each(ServerSettings(models=("a=x",), engine=engine))[0].engine == engine
    with pytest.raises(SettingsError, match="num_hosts is 2 and there are 2 models; several hosts compute one"):
        settings_of_each(ServerSettings(models=("a=x", "b=y"), engine=engine))


@pytest.mark.parametrize(
    ("models", "served_model_name", "words"),
    [
        (("a=x", "a=y"), None, "x and y have the same name a"),
        (("x", "y"), "mine", "name each with --model NAME=MODEL"),
        (("a=x",), "mine", "served_model_name is 'mine', and --model says 'a'"),
        (("=x",), None, "--model =x has an empty name"),
        (("a=",), None, "--model a= has an empty name or an empty model"),
    ],
)
def test_what_cannot_be_meant_is_named(models: tuple[str, ...], served_model_name: str | None, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings_of_each(ServerSettings(models=models, served_model_name=served_model_name))


def test_a_folder_without_models_is_named(folder: Path) -> None:
    with pytest.raises(SettingsError, match="holds neither GGUF files nor folders"):
        settings_of_each(ServerSettings(models=(str(folder / "empty"),)))
    with pytest.raises(SettingsError, match="gives one name to the 3 models"):
        settings_of_each(ServerSettings(models=(f"mine={folder}",)))
