"""Ollama's routes that fetch and delete models, for administrators."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.interface.types import Progress
from server.model_sources import removal
from server.model_sources.cache_folder import ModelStoreError
from server.serving import model_pulls
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer

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
