"""The application on a free loopback port, over the fake engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web

from server.admission.limits import key_account
from server.admission.limits.token_bucket import TokenBucket
from server.cli.listeners import start_sites
from server.http.app import build_app, make_runner, read_keys
from server.http.transport.connections import GuardedRunner
from server.serving.served_models import ServedModels
from server.startup.settings import ServerSettings
from server.structured_output.grammar_vocabulary import HasVocabulary
from server.structured_output.sandboxed_compiler import SandboxedCompiler
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.patience import PATIENCE_S


@dataclass
class Address:
    """A server, and how to ask it."""

    url: str
    http: aiohttp.ClientSession

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.http.post(self.url + path, json=body) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as response:
            return response.status, await response.json()

    async def post_raw(self, path: str, body: bytes) -> tuple[int, Any]:
        async with self.http.post(self.url + path, data=body) as response:
            return response.status, await response.json()

    async def stream_bytes(self, path: str, body: dict[str, Any]) -> bytes:
        async with self.http.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            return await response.read()


@dataclass
class RunningServer(Address):
    engine: FakeEngineClient
    served: ServedModels
    app: web.Application
    runner: GuardedRunner

    async def cut_connections(self) -> None:
        """Breaks off as a killed process does: nobody listens any more, and what was open ends in the middle."""
        for site in tuple(self.runner.sites):
            await site.stop()
        assert self.runner.server is not None
        for connection in self.runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def assert_all_streams_ended(self) -> None:
        """The engine runs nothing any more, and the server knows of no generation."""
        await eventually(lambda: not self.engine.running and self.served.num_generations == 0)


StartServer = Callable[..., Awaitable[RunningServer]]


async def eventually(holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Waits until `holds()`; fails after `seconds`, which are many because a busy machine may pause a test."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """Events go nowhere, and what a test sets up is undone."""
    handlers = logging.root.handlers[:]
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers


@pytest.fixture
def still_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is used of a key's limits stays used, however long a busy machine pauses a test."""
    monkeypatch.setattr(key_account, "TokenBucket", partial(TokenBucket, clock=lambda: 0.0))


class _KeptTrials(SandboxedCompiler):
    """Has its processes ready for the next server when one closes it."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="module")
def kept_trials() -> Iterator[None]:
    """The servers of a module try their grammars in the same processes, each of which takes half a second to start."""
    made: dict[tuple[object, ...], _KeptTrials] = {}

    def trials_of(
        tokenizer: HasVocabulary, vocab_size: int, seconds: float, *, wall_seconds: float | None = None, nice: int = 0
    ) -> SandboxedCompiler:
        told = tuple(tokenizer.token_bytes), tuple(tokenizer.eos_token_ids), vocab_size, seconds, nice
        if told not in made:
            made[told] = _KeptTrials(tokenizer, vocab_size, seconds, wall_seconds=wall_seconds, nice=nice)
        return made[told]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.structured_output.grammar_compiler.SandboxedCompiler", trials_of)
        yield
    for trials in made.values():
        trials.end()


async def _start(
    ending: AsyncExitStack,
    engine: FakeEngineClient | None = None,
    *,
    text_model: FakeTextModel | None = None,
    is_open: bool = True,
    **settings: Any,
) -> RunningServer:
    engine = engine or FakeEngineClient()
    served = ServedModels(ServerSettings(host="127.0.0.1", port=0, **settings))
    runner = make_runner(build_app(served, read_keys(served.settings)))
    ending.callback(engine.shutdown)
    ending.push_async_callback(runner.cleanup)
    await runner.setup()
    await start_sites(runner, ["127.0.0.1"], 0)
    if is_open:
        engine.start(asyncio.get_running_loop())
        text_model = text_model or FakeTextModel()
        text_model.ignores_media = served.settings.ignore_media
        served.first.open(engine.client, text_model.model)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server = RunningServer(url, aiohttp.ClientSession(), engine, served, runner.app, runner)
    ending.push_async_callback(server.assert_all_streams_ended)
    ending.push_async_callback(server.http.close)
    return server


@asynccontextmanager
async def server_starter() -> AsyncIterator[StartServer]:
    """What `start_server` gives; every server ends with the context, where nothing may be left running in an engine."""
    async with AsyncExitStack() as ending:  # what a failed test leaves open would fail a later one
        yield partial(_start, ending)


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    """`await start_server(engine, **settings)`; after the test, nothing may be left running in the engine."""
    async with server_starter() as start:
        yield start


@pytest.fixture
async def server(start_server: StartServer) -> RunningServer:
    return await start_server()
