"""Adapters that operators load into one of several models, and that stay when the file of settings is read again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

from server.serving import residency
from server.serving.reconfiguration import Reconfiguration
from server.startup.model_settings import settings_of_each
from server.startup.settings import ServerSettings, SettingsError
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually
from tests.server.serving.conftest import SeveralServer, StartSeveral

ADMIN = {"Authorization": "Bearer operator-key-1"}
HEAD = 'admin-key = "operator-key-1"\nmodels-max = 1\n'
CODER = '\n[models.coder]\nmodel = "coder.gguf"\nenable-lora = true\n'
OTHER = '\n[models.other]\nmodel = "other.gguf"\nenable-lora = true\n'
PLAIN = '\n[models.plain]\nmodel = "plain.gguf"\n'


@pytest.fixture(autouse=True)
def short_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "LEAST_STAY_S", 0.02)
    monkeypatch.setattr(residency, "RETRY_S", 0.02)


def read(path: Path) -> ServerSettings:
    return ServerSettings.from_sources({"config": str(path), "port": "0"}, {})


async def call(server: SeveralServer, verb: str, **body: Any) -> tuple[int, str]:
    url = f"{server.url}/v1/{verb}_lora_adapter"
    async with server.http.post(url, json=body, headers=ADMIN) as response:
        return response.status, await response.text()


async def adapters(server: SeveralServer) -> dict[str, str]:
    """The model of each adapter."""
    _, listed = await server.get("/v1/models")
    return {entry["id"]: entry["parent"] for entry in listed["data"] if "parent" in entry}


async def test_each_model_has_adapters_of_its_own(start_several: StartSeveral, tmp_path: Path) -> None:
    """The second one is loaded by the call; names are those of one adapter alone."""
    path = tmp_path / "eagre.toml"
    path.write_text(HEAD + CODER + OTHER + PLAIN)
    async with start_several("", whole=read(path)) as server:
        assert (await call(server, "load", lora_name="a", lora_path="/a"))[0] == 200
        assert (await call(server, "load", lora_name="b", lora_path="/b", base_model_name="other"))[0] == 200
        assert await adapters(server) == {"a": "coder", "b": "other"}
        for name, model in (("a", "coder"), ("b", "other")):
            status, body = await server.complete(name)
            assert (status, body["model"], body["choices"][0]["text"]) == (200, name, f"{model}:ab")
            assert server.engine(model).adapters[-1].digest == name
        assert (await server.get("/lora-adapters?model=other"))[1] == [{"id": 0, "path": "b", "scale": 0.0}]
        for body, words in (
            ({"lora_name": "a", "base_model_name": "other"}, "the name of an adapter of coder"),
            ({"lora_name": "plain"}, "the name of a model"),
            ({"lora_name": "c", "base_model_name": "plain"}, "plain takes no adapters at run time"),
        ):
            status, text = await call(server, "load", lora_path="/x", **body)
            assert (status, words in text) == (400, True)
        assert (await call(server, "load", lora_name="c", lora_path="/x", base_model_name="nobody"))[0] == 404
        assert (await call(server, "unload", lora_name="b"))[0] == 200
        assert await adapters(server) == {"a": "coder"}
        assert (await call(server, "unload", lora_name="b"))[0] == 404


async def test_adapters_stay_when_the_file_is_read_again(start_several: StartSeveral, tmp_path: Path) -> None:
    """Also where their model is loaded anew; not in another model, and not against what the file says now."""
    path, given = tmp_path / "eagre.toml", [tmp_path / name for name in ("one", "two")]
    for folder in given:
        folder.mkdir()
    lora = f'lora = {{ file = "{given[0]}", kept = "{given[0]}" }}\n'
    path.write_text(HEAD + CODER + lora + OTHER)
    async with start_several("", whole=read(path)) as server:
        again = Reconfiguration(server.served, lambda: read(path), server.loader.check)

        async def reload(content: str) -> list[Any]:
            path.write_text(HEAD + content)
            with structlog.testing.capture_logs() as logged:
                await again.apply()
            return [event.get("adapters") for event in logged if event["event"] == "adapters_dropped"]

        def paths() -> dict[str, str]:
            return {each.name: str(each.path) for each in server.served.find("coder").adapters.all}

        for name in ("new", "file", "kept"):
            in_place = name != "new"
            assert (await call(server, "load", lora_name=name, lora_path=f"/{name}", load_inplace=in_place))[0] == 200
        assert await reload(CODER + lora + "aliases = ['c']\n" + OTHER) == []
        assert paths() == {"new": "/new", "file": "/file", "kept": "/kept"}
        changed = lora.replace(f'file = "{given[0]}"', f'file = "{given[1]}"') + "max-model-len = 64\n"
        assert await reload(CODER + changed + OTHER) == []
        assert paths() == {"new": "/new", "file": str(given[1]), "kept": "/kept"}
        status, body = await server.complete("new")
        assert (status, body["model"]) == (200, "new")
        assert server.engine("coder").adapters[-1].digest == "new"
        assert await reload(CODER.replace("coder.gguf", "next.gguf") + lora + OTHER) == [["kept", "new"]]
        assert paths() == {"file": str(given[0]), "kept": str(given[0])}


async def test_what_changes_while_an_adapter_is_read_counts(start_several: StartSeveral, tmp_path: Path) -> None:
    """Another model may get an adapter of its name, and its own model may be replaced."""
    path, started, goes_on = tmp_path / "eagre.toml", threading.Event(), threading.Event()
    path.write_text(HEAD + PLAIN + CODER + OTHER)
    async with start_several("", whole=read(path)) as server:
        assert (await call(server, "load", lora_name="first", lora_path="/a", base_model_name="coder"))[0] == 200
        engine = server.engine("coder")
        usual = engine.read_adapter

        def slow(folder: Path) -> Any:
            started.set()
            goes_on.wait(PATIENCE_S)
            return usual(folder)

        engine.read_adapter = slow  # type: ignore[method-assign]
        slow_call = asyncio.create_task(call(server, "load", lora_name="a", lora_path="/a", base_model_name="coder"))
        await eventually(started.is_set)
        assert (await call(server, "load", lora_name="a", lora_path="/a", base_model_name="other"))[0] == 200
        goes_on.set()
        status, text = await slow_call
        assert (status, "the name of an adapter of other" in text) == (400, True)

        started.clear()
        goes_on.clear()
        slow_call = asyncio.create_task(call(server, "load", lora_name="b", lora_path="/b", base_model_name="coder"))
        await eventually(started.is_set)
        path.write_text(HEAD + PLAIN + CODER + "max-model-len = 64\n" + OTHER)
        await Reconfiguration(server.served, lambda: read(path), server.loader.check).apply()
        goes_on.set()
        status, text = await slow_call
        assert (status, "coder was just replaced" in text) == (503, True)
        assert await adapters(server) == {"first": "coder", "a": "other"}
        assert (await call(server, "unload", lora_name="b"))[0] == 404


def test_adapters_by_a_flag_are_for_one_model(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(SettingsError, match="lora is for a server with one model, and there are 2"):
        settings_of_each(ServerSettings(models=("a=x", "b=y"), lora=(str(tmp_path / "a"),)))
    each = settings_of_each(ServerSettings(models=("a=x", "b=y"), enable_lora=True))
    assert [own.takes_adapters for own in each] == [True, True]
