"""A server with several fake models, which are loaded when and as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import aiohttp
import pytest

from engine.interface.types import MachineMemory
from server.cli.listeners import start_sites
from server.http.app import build_app, make_runner, read_keys
from server.serving.residency import PlannedLoad
from server.serving.served_model import ModelState, ServedModel
from server.serving.served_models import ServedModels
from server.startup.model_settings import settings_of_each
from server.startup.model_sizes import ModelBytes
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import Address, eventually


@dataclass
class Source:
    """A model that can be loaded."""

    engine: FakeEngineClient
    may_load: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None  # of its load
    flaw: Exception | None = None  # which the check before finds
    num_checks: int = 0
    num_loads: int = 0


@dataclass
class SeveralServer(Address):
    served: ServedModels
    sources: dict[str, Source]
    loader: FakeLoader

    def states(self) -> dict[str, str]:
        return {model.model_name: str(model.state) for model in self.served.all}

    def engine(self, name: str) -> FakeEngineClient:
        return self.sources[name].engine

    async def reach(self, **states: str) -> None:
        await eventually(lambda: all(self.states()[name] == state for name, state in states.items()))

    async def complete(self, model: str | None, prompt: str = "ab", **more: Any) -> tuple[int, Any]:
        body = {"prompt": prompt, **more} | ({} if model is None else {"model": model})
        return await self.post("/v1/completions", body)

    @property
    def in_memory(self) -> list[str]:
        return [model.model_name for model in self.served.all if model.is_in_memory]


StartSeveral = Callable[..., Any]


class Sizes(Protocol):
    """The memory of models and of the machine."""

    def bytes_of(self, settings: ServerSettings) -> ModelBytes: ...

    def memory(self) -> MachineMemory: ...


class FakeLoader:
    """Brings the models as their sources say."""

    def __init__(self, sources: dict[str, Source], sizes: Sizes | None) -> None:
        self._sources = sources
        self._sizes = sizes
        self.engines: list[FakeEngineClient] = []

    def _source(self, name: str) -> Source:
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = Source(prefixing(f"{name}:"))
            source.may_load.set()
        return source

    async def known_bytes(self, model: ServedModel) -> ModelBytes:
        return ModelBytes()

    async def plan(self, model: ServedModel) -> PlannedLoad:
        await self.check(model.settings)
        num_bytes = ModelBytes() if self._sizes is None else self._sizes.bytes_of(model.settings)
        return PlannedLoad(num_bytes, partial(self._bring, model))

    async def check(self, settings: ServerSettings) -> None:
        source = self._source(settings.served_model_name or settings.model)
        source.num_checks += 1
        await asyncio.sleep(0)
        if source.flaw is not None:
            raise source.flaw

    async def _bring(self, model: ServedModel) -> None:
        source = self._source(model.model_name)
        if source.engine in self.engines:  # a model of this name comes in the place of another
            source.engine = prefixing(f"{model.settings.model}:")
        source.num_loads += 1
        await source.may_load.wait()
        if source.error is not None:
            raise source.error
        self.engines.append(source.engine)
        source.engine.start(asyncio.get_running_loop())
        model.open(source.engine.client, FakeTextModel().model)
        if model.settings.takes_adapters:
            model.adapters.open(source.engine.client, 2, {})


def prefixing(prefix: str) -> FakeEngineClient:
    """An engine that answers with its name before the prompt."""
    return FakeEngineClient(respond=lambda prompt, _: [*prefix.encode(), *prompt])


@asynccontextmanager
async def several(
    names: str,
    *,
    loads_at_once: bool = True,
    whole: ServerSettings | None = None,
    sizes: Sizes | None = None,
    **settings: Any,
) -> AsyncIterator[SeveralServer]:
    """A server of the models `names`, or of the settings `whole`, which may get further models."""
    if whole is None:
        whole = ServerSettings(
            host="127.0.0.1", port=0, models=tuple(f"{name}=x" for name in names.split()), **settings
        )
    each = settings_of_each(whole)
    sources = {name: Source(prefixing(f"{name}:")) for own in each if (name := own.served_model_name) is not None}
    served = ServedModels(whole, each)
    loader = FakeLoader(sources, sizes)
    runner = make_runner(build_app(served, read_keys(served.settings)))
    try:
        await runner.setup()
        await start_sites(runner, ["127.0.0.1"], 0)
        if loads_at_once:
            for source in sources.values():
                source.may_load.set()
        served.start(loader, None if sizes is None else sizes.memory)
        async with aiohttp.ClientSession() as http:
            server = SeveralServer(f"http://127.0.0.1:{runner.addresses[0][1]}", http, served, sources, loader)
            if loads_at_once:
                first = () if sizes else served.residency.first_models
                await eventually(lambda: all(model.state is ModelState.READY for model in first))
            yield server
        await eventually(lambda: served.num_generations == 0)
    finally:  # what a failed test leaves open would fail a later one
        await runner.cleanup()
        for engine in loader.engines:
            engine.shutdown()


@pytest.fixture
def start_several() -> StartSeveral:
    return several
