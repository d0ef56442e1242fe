"""`eagre serve`: loading, readiness, draining and failure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from benchmarks.serving.server_process import free_port
from engine.interface.types import Progress
from server.cli.process import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, raise_file_limit
from server.cli.serve import JOIN_S, serve
from server.startup.model_loader import LoadedModel
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.model_plan import planning
from tests.fakes.text_model import FakeTextModel
from tests.patience import PATIENCE_S, PROCESS_S
from tests.server.conftest import eventually
from tests.server.support.sse_reader import chunks_of, read_all
from tests.thoroughness import some


@dataclass
class Life:
    """A running `serve`."""

    engine: FakeEngineClient = field(default_factory=lambda: FakeEngineClient(is_manual=True))
    may_load: threading.Event = field(default_factory=threading.Event)
    lines: list[str] = field(default_factory=list)
    error: Exception | None = None
    port: int = 0

    def load(self, _settings: ServerSettings, progress: Progress) -> LoadedModel:
        progress("load weights", 1, 4)
        assert self.may_load.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return LoadedModel(self.engine.client, FakeTextModel().model)

    def start(self, **settings: Any) -> asyncio.Task[int]:
        self.port = free_port()
        return asyncio.create_task(
            serve(
                ServerSettings(port=self.port, **settings),
                self.lines.append,
                lambda stage, done, total: None,
                planning(self.load),
            )
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start_ready(self, **settings: Any) -> asyncio.Task[int]:
        self.may_load.set()
        serving = self.start(**settings)
        await eventually(lambda: bool(self.lines))
        return serving


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(http: aiohttp.ClientSession, url: str) -> tuple[int, Any, str | None]:
    async with http.post(url + "/v1/completions", json={"prompt": "x"}) as response:
        return response.status, await response.json(), response.headers.get("Connection")


async def stream(http: aiohttp.ClientSession, url: str, prompt: str) -> bytes:
    async with http.post(url + "/v1/completions", json={"prompt": prompt, "stream": True}) as response:
        return await response.read()


async def listening(life: Life, http: aiohttp.ClientSession) -> None:
    """Waits until the server takes connections, and the load has begun."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                async with http.get(life.url + "/readiness") as response:
                    if "load weights" in (await response.json()).get("detail", ""):
                        return
            await asyncio.sleep(0.005)


async def finish(serving: asyncio.Task[int]) -> int:
    return await asyncio.wait_for(serving, PATIENCE_S)


async def test_the_server_listens_while_it_loads_and_reports_readiness(http: aiohttp.ClientSession) -> None:
    life = Life()
    serving = life.start()

    async def get(path: str) -> tuple[int, Any]:
        async with http.get(life.url + path) as response:
            return response.status, await response.json()

    await listening(life, http)
    assert await get("/readiness") == (
        503,
        {"status": "loading", "detail": "the model is loading (load weights, 1 of 4)"},
    )
    assert await get("/liveness") == (200, {"status": "alive"})
    assert (await get("/health"))[0] == 503
    status, body, _ = await ask(http, life.url)
    assert (status, body["error"]["code"]) == (503, "loading")
    assert (await get("/v1/models"))[0] == 503
    life.may_load.set()
    await eventually(lambda: bool(life.lines))
    assert life.lines == [f"Eagre serves fake; open {life.url}/ in a browser"]
    assert (await get("/readiness"))[0] == 200
    os.kill(os.getpid(), signal.SIGTERM)
    assert await finish(serving) == EXIT_OK
    assert life.engine.is_shut_down
    assert life.engine.joined_for == JOIN_S


async def test_sigterm_lets_streams_end_and_refuses_new_ones(http: aiohttp.ClientSession) -> None:
    life = Life()
    serving = await life.start_ready()
    streaming = asyncio.create_task(stream(http, life.url, "abc"))
    await eventually(lambda: len(life.engine.running) == 1)
    life.engine.step()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.02)
    status, body, connection = await ask(http, life.url)
    assert (status, body["error"]["code"], connection) == (503, "draining", "close")
    async with http.get(life.url + "/readiness") as response:
        assert response.status == 503
        assert (await response.json())["status"] == "draining"
    async with http.get(life.url + "/liveness") as response:
        assert response.status == 200
    assert not serving.done()
    life.engine.step(5)
    chunks = chunks_of(await streaming)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert await finish(serving) == EXIT_OK
    assert life.engine.aborted == []


async def test_streams_are_aborted_at_the_shutdown_timeout(http: aiohttp.ClientSession) -> None:
    life = Life()
    serving = await life.start_ready(shutdown_timeout=0.05)
    streaming = asyncio.create_task(stream(http, life.url, "abc"))
    asking = asyncio.create_task(ask(http, life.url))
    async with http.ws_connect(life.url + "/v1/stream") as web_socket:
        await web_socket.send_json({"type": "generate", "id": "a", "prompt": "xyz"})
        await eventually(lambda: len(life.engine.running) == 3)
        life.engine.step()
        os.kill(os.getpid(), signal.SIGTERM)
        assert chunks_of(await streaming)[-1]["choices"][0]["finish_reason"] == "abort"
        assert (await asking)[1]["choices"][0]["finish_reason"] == "abort"
        messages = [await web_socket.receive_json() for _ in range(3)]
        assert [message["type"] for message in messages] == ["start", "delta", "done"]
        assert messages[-1]["finish_reason"] == "abort"
        assert (await web_socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert web_socket.close_code == 1001
    assert await finish(serving) == EXIT_OK
    assert life.engine.running == {}


async def test_an_engine_failure_ends_streams_and_the_process(http: aiohttp.ClientSession) -> None:
    life = Life()
    serving = await life.start_ready()
    streaming = asyncio.create_task(stream(http, life.url, "abc"))
    await eventually(lambda: len(life.engine.running) == 1)
    life.engine.fail("the device is gone")
    records = read_all(await streaming)
    assert [record.kind for record in records] == ["comment", "data"]
    assert "the device is gone" in records[-1].text
    assert await finish(serving) == EXIT_FAILURE


@pytest.mark.parametrize("log_format", ["console", "json"])
async def test_a_model_that_cannot_be_loaded_is_reported_once(log_format: str) -> None:
    life = Life(error=ValueError("--model x.gguf is no GGUF file"))
    life.may_load.set()
    with structlog.testing.capture_logs() as logs:
        assert await finish(life.start(log_format=log_format)) == EXIT_FAILURE
    reasons = [event["reason"] for event in logs if event["event"] == "model_not_loaded"]
    told = ["--model x.gguf is no GGUF file"]
    assert (life.lines, reasons) == (([], told) if log_format == "json" else ([f"eagre: {told[0]}"], []))


def test_the_limit_of_open_files_is_raised_at_the_start() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_signal_while_loading_ends_at_once() -> None:
    life = Life()
    serving = life.start()
    await asyncio.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
    assert await finish(serving) == EXIT_OK
    life.may_load.set()


async def test_a_port_in_use_is_reported_in_one_line() -> None:
    life = Life()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        serving = serve(ServerSettings(port=port), life.lines.append, lambda *_: None, planning(life.load))
        assert await serving == EXIT_USAGE
    assert len(life.lines) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in life.lines[0]
    assert "in use" in life.lines[0]


async def test_a_store_that_cannot_be_used_is_reported_in_one_line(tmp_path: Path) -> None:
    life = Life()
    serving = serve(
        ServerSettings(port=0, store=str(tmp_path)), life.lines.append, lambda *_: None, planning(life.load)
    )
    assert await serving == EXIT_USAGE
    assert life.lines == [f"eagre: the store in {tmp_path} cannot be used: Is a directory"]


async def test_an_invalid_host_name_is_reported_in_one_line() -> None:
    life = Life()
    serving = serve(ServerSettings(host="a..b", port=0), life.lines.append, lambda *_: None, planning(life.load))
    assert await serving == EXIT_USAGE
    assert len(life.lines) == 1
    assert "cannot listen on a..b:0" in life.lines[0]


SEVERAL_SIGNALS = """
import asyncio, os, signal, sys
from server.cli import process, serve
from server.startup.model_loader import LoadedModel
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.model_plan import planning
from tests.fakes.text_model import FakeTextModel
import aiohttp

process.SAME_SIGNAL_S = float(sys.argv[1])
engine = FakeEngineClient(is_manual=True)
async def main():
    ready = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve.serve(ServerSettings(port=0), lambda line: ready.set_result(line),
        lambda *_: None, planning(lambda *_: LoadedModel(engine.client, FakeTextModel().model))))
    url = (await ready).split("open ")[1].split(" ")[0]
    async with aiohttp.ClientSession() as http:
        async with http.post(url + "v1/completions", json={"prompt": "x", "stream": True}) as response:
            for name in sys.argv[2:]:
                os.kill(os.getpid(), getattr(signal, name))
                await asyncio.sleep(0.05)
            engine.step(2)
            print((await response.read()).decode(), flush=True)
    return await serving
os._exit(asyncio.run(main()))
"""


def send_signals(same_signal_s: float, *names: str) -> subprocess.CompletedProcess[bytes]:
    """Sends signals, 50 ms apart, to a server with a running stream; returns how it ended."""
    command = [sys.executable, "-c", SEVERAL_SIGNALS, str(same_signal_s), *names]
    return subprocess.run(command, timeout=PROCESS_S, capture_output=True, check=False)


@pytest.mark.parametrize(
    ("same_signal_s", "names"), some([(0.0, ["SIGTERM", "SIGTERM"]), (30.0, ["SIGINT", "SIGTERM"])], 1)
)
def test_a_second_signal_ends_the_process_at_once(same_signal_s: float, names: list[str]) -> None:
    ended = send_signals(same_signal_s, *names)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr


def test_a_signal_repeated_at_once_counts_once() -> None:
    """A `kill` of the process group of `make serve` sends the signal twice: directly, and forwarded by make."""
    ended = send_signals(30.0, "SIGTERM", "SIGTERM")
    assert ended.returncode == EXIT_OK, ended.stderr
    assert b'"text":"x","logprobs":null,"finish_reason":"stop",' in ended.stdout
    assert b"data: [DONE]" in ended.stdout
