"""Ollama's routes that fetch and delete models, for administrators."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.interface.types import Progress
from server.http import admin
from server.http.ollama import PULLS
from server.model_sources import removal
from server.model_sources.cache_folder import ModelStoreError
from server.serving import model_pulls
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually

KEY, ADMIN = "sk-client-1", "sk-admin-1"
NAME = "owner/name"


@pytest.fixture
async def server(start_server: StartServer) -> RunningServer:
    return await start_server(admin_keys=(ADMIN,), api_keys=(KEY,))


async def call(server: RunningServer, path: str, body: dict[str, Any], key: str = ADMIN) -> tuple[int, list[Any]]:
    """The status, and the lines of the answer."""
    send = server.http.delete if path == "/api/delete" else server.http.post
    async with send(server.url + path, json=body, headers={"Authorization": f"Bearer {key}"}) as response:
        return response.status, [orjson.loads(line) for line in (await response.read()).splitlines()]


@pytest.mark.parametrize("name", [NAME, f"hf.co/{NAME}", f"{NAME}:latest"])
async def test_a_model_is_fetched_with_its_progress(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pulled, threads = list[str](), list[threading.Thread]()

    def pull(name: str, progress: Progress) -> Path:
        pulled.append(name)
        threads.append(threading.current_thread())
        progress("download name.gguf", 5, 10)
        return Path(name)

    monkeypatch.setattr(model_pulls, "pull_model", pull)
    status, lines = await call(server, "/api/pull", {"model": name})
    assert (status, lines[-1]) == (200, {"status": "success"})
    assert all(line["status"] for line in lines)
    assert await call(server, "/api/pull", {"model": name, "stream": False}) == (200, [{"status": "success"}])
    assert pulled == [NAME] * 2
    assert threading.main_thread() not in threads


async def test_progress_has_its_bytes_and_one_model_comes_at_a_time(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    def pull(name: str, progress: Progress) -> Path:
        progress("download name.gguf", 5, 10)
        assert may_end.wait(PATIENCE_S)
        return Path(name)

    monkeypatch.setattr(model_pulls, "pull_model", pull)
    monkeypatch.setattr(model_pulls, "INTERVAL_S", 0.01)
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with server.http.post(server.url + "/api/pull", json={"model": NAME}, headers=headers) as response:
        async with asyncio.timeout(PATIENCE_S):
            while (line := orjson.loads(await response.content.readline()))["status"] == "pulling manifest":
                pass
        assert line == {"status": "download name.gguf", "total": 10, "completed": 5}
        status, (refusal,) = await call(server, "/api/pull", {"model": "owner/other", "stream": False})
        assert (status, refusal["error"]) == (409, f"{NAME} is being pulled; try again later")
        may_end.set()
        assert (await response.content.read()).endswith(b'{"status":"success"}\n')
    assert (await call(server, "/api/pull", {"model": NAME}))[1][-1] == {"status": "success"}


@pytest.mark.parametrize(("failure", "words"), [(ModelStoreError("no network"), "no network"), (KeyError("x"), "KeyE")])
async def test_a_pull_that_fails_says_so(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, failure: Exception, words: str
) -> None:
    def pull(name: str, progress: Progress) -> Path:
        raise failure

    monkeypatch.setattr(model_pulls, "pull_model", pull)
    _, lines = await call(server, "/api/pull", {"model": NAME})
    assert lines[-1]["error"].startswith(f"{NAME} cannot be pulled: {words}")
    status, (refusal,) = await call(server, "/api/pull", {"model": NAME, "stream": False})
    assert (status, words in refusal["error"]) == (502, True)


@pytest.mark.parametrize("name", ["nothing", "/etc/passwd", "./x", "../x/y", "a/b/c", "~/x", "x/" + "y" * 5000, "\0/a"])
@pytest.mark.parametrize("path", ["/api/pull", "/api/delete"])
async def test_only_names_of_models_that_can_be_fetched_are_taken(server: RunningServer, path: str, name: str) -> None:
    status, (refusal,) = await call(server, path, {"model": name})
    assert (status, list(refusal)) == (404, ["error"])


async def test_other_keys_neither_fetch_nor_delete(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_pulls, "pull_model", None)
    assert (await call(server, "/api/pull", {"model": NAME}, KEY))[0] == 404
    assert (await call(server, "/api/delete", {"model": NAME}, KEY))[0] == 403


async def test_a_model_is_deleted_unless_it_is_served(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    removed = list[str]()
    monkeypatch.setattr(removal, "remove_model", removed.append)
    paths = {NAME: tmp_path / "here.gguf", str(server.served.all[0].settings.model): tmp_path / "here.gguf"}
    monkeypatch.setattr(model_pulls, "resolve_model", paths.get)
    status, (refusal,) = await call(server, "/api/delete", {"model": NAME})
    assert (status, "is served" in refusal["error"], removed) == (409, True, [])
    assert await call(server, "/api/delete", {"model": "owner/other"}) == (200, [])
    assert removed == ["owner/other"]


async def test_a_model_that_is_not_here_cannot_be_deleted(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(name: str) -> int:
        raise ModelStoreError(f"{name} is not here; `eagre models` lists what is")

    monkeypatch.setattr(removal, "remove_model", remove)
    status, (refusal,) = await call(server, "/api/delete", {"model": NAME})
    assert (status, refusal["error"]) == (404, f"{NAME} is not here; `eagre models` lists what is")


async def test_the_list_has_built_in_models_with_what_they_need_and_what_has_come(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    may_end = threading.Event()

    def pull(name: str, progress: Progress) -> Path:
        progress("download it (1 of 4)", 5, 10)
        assert may_end.wait(PATIENCE_S)
        return Path(name)

    monkeypatch.setattr(model_pulls, "pull_model", pull)
    monkeypatch.setenv("EAGRE_CACHE", str(tmp_path))
    name = "qwen2.5-coder-0.5b"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / f"{name}.partial").write_bytes(b"12345")
    pulling = asyncio.create_task(call(server, "/api/pull", {"model": name}))
    await eventually(lambda: server.app[PULLS].progress_of(name) == ("download it (1 of 4)", 5, 10))
    entry = (await models(server))[name]
    assert entry.pop("summary")
    assert entry == {
        "license": "Apache License 2.0",
        "id": name, "object": "model", "source": "built-in", "is_here": False, "is_served": False,
        "size": 491400064, "received": 5, "memory_bytes": 650000000,
        "pull": {"stage": "download it (1 of 4)", "completed": 5, "total": 10},
    }  # fmt: skip
    may_end.set()
    await pulling
    assert (await models(server))[name]["pull"] is None


async def test_a_fetched_model_is_served_without_a_restart(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(admin, "resolve_model", {NAME: tmp_path}.get)
    assert await call(server, "/admin/models", {"model": NAME}) == (200, [{"model": NAME, "state": "unloaded"}])
    assert await call(server, "/admin/models", {"model": NAME}) == (200, [{"model": NAME, "state": "unloaded"}])
    async with server.http.get(server.url + "/v1/models", headers={"Authorization": f"Bearer {KEY}"}) as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["fake", NAME]
    status, (refusal,) = await call(server, "/admin/models", {"model": "owner/other"})
    assert (status, refusal["error"]["message"]) == (404, "owner/other is not here; POST /api/pull fetches it")


async def test_a_model_that_cannot_stand_beside_the_others_is_refused(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(admin, "resolve_model", {NAME: tmp_path}.get)
    first = server.served.first
    alone = replace(
        first.settings.engine, prefix_cache_listen="127.0.0.1:7000", prefix_cache_dir="d", prefix_cache_key="k" * 16
    )
    first.settings = replace(first.settings, engine=alone)
    status, (refusal,) = await call(server, "/admin/models", {"model": NAME})
    assert (status, "one model" in refusal["error"]["message"]) == (409, True)


@pytest.mark.parametrize("name", ["nothing", "/etc/passwd", "../x/y", "\0/a", ""])
async def test_only_fetched_models_can_be_served(server: RunningServer, name: str) -> None:
    assert (await call(server, "/admin/models", {"model": name}))[0] == 404


async def test_other_keys_neither_list_nor_serve(server: RunningServer) -> None:
    assert (await call(server, "/admin/models", {"model": NAME}, KEY))[0] == 403
    async with server.http.get(server.url + "/admin/models", headers={"Authorization": f"Bearer {KEY}"}) as response:
        assert response.status == 403


async def models(server: RunningServer) -> dict[str, Any]:
    async with server.http.get(server.url + "/admin/models", headers={"Authorization": f"Bearer {ADMIN}"}) as response:
        assert response.status == 200
        return {model["id"]: model for model in (await response.json())["data"]}
