"""The whole of Eagre's server over an engine of the tests, which emits one token a turn of the loop for each stream."""

from __future__ import annotations

import asyncio
import sys

import structlog
from aiohttp import web

from server.http.app import build_app, make_runner, read_keys
from server.serving.served_models import ServedModels
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel


async def main(port: int, max_model_len: int = 1 << 16) -> None:
    """Serves for ever."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # nobody reads the other server's log either
    engine = FakeEngineClient(max_model_len=max_model_len, max_num_queued=4096)
    served = ServedModels(ServerSettings(host="127.0.0.1", port=port))
    runner = make_runner(build_app(served, read_keys(served.settings)))
    await runner.setup()
    engine.start(asyncio.get_running_loop())
    served.first.open(engine.client, FakeTextModel().model)
    await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
    await asyncio.Event().wait()


asyncio.run(main(*map(int, sys.argv[1:])))
