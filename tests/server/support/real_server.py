"""The application over a running engine, on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine.client import EngineClient
from server.cli.listeners import start_sites
from server.http.app import build_app, make_runner, read_keys
from server.serving.served_models import ServedModels
from server.startup.settings import ServerSettings
from server.text.text_model import TextModel
from tests.server.conftest import Address, eventually

MAX_BODY_BYTES = 4096


@dataclass
class RealServer(Address):
    engine: EngineClient
    served: ServedModels

    async def complete(self, prompt: Any, **parameters: Any) -> str:
        """The JSON answer's text at temperature 0."""
        status, body = await self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **parameters})
        assert status == 200, body
        text: str = body["choices"][0]["text"]
        return text

    async def wait_idle(self) -> None:
        await eventually(lambda: self.served.num_generations == 0 and self.engine.stats().num_active_pages == 0)


@asynccontextmanager
async def serving(
    engine: EngineClient,
    text_model: TextModel,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    **settings: Any,
) -> AsyncIterator[RealServer]:
    """An application on a free port over a running engine."""
    served = ServedModels(ServerSettings(port=0, max_body_bytes=max_body_bytes, **settings))
    runner = make_runner(build_app(served, read_keys(served.settings)))
    await runner.setup()
    await start_sites(runner, ["127.0.0.1"], 0)
    served.first.open(engine, text_model)
    async with aiohttp.ClientSession() as http:
        yield RealServer(f"http://127.0.0.1:{runner.addresses[0][1]}", http, engine, served)
    await runner.cleanup()
