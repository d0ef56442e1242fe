"""The whole of Eagre's server over an engine that computes nothing."""

import asyncio
import sys

import structlog

from benchmarks.fanout.engine import InstantEngine
from server.cli.listeners import start_sites
from server.cli.memory import freeze_gc
from server.http.app import build_app, make_runner, read_keys
from server.serving.served_models import ServedModels
from server.startup.settings import ServerSettings
from tests.fakes.text_model import FakeTextModel


async def main(port: int, ahead: int = 1, max_model_len: int = 1 << 16) -> None:
    """Serves for ever; the engine emits `ahead` steps in a turn of the loop."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # FastAPI's server writes none either
    engine = InstantEngine(ahead=ahead, max_model_len=max_model_len)
    served = ServedModels(ServerSettings(host="127.0.0.1", port=port))
    runner = make_runner(build_app(served, read_keys(served.settings)))
    await runner.setup()
    engine.start(asyncio.get_running_loop())
    served.first.open(engine.client, FakeTextModel().model)
    freeze_gc()  # as `eagre serve` does
    await start_sites(runner, ["127.0.0.1"], port)
    await asyncio.Event().wait()


asyncio.run(main(*map(int, sys.argv[1:])))
