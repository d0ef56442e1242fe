"""Eagre's front before one server: python -m benchmarks.fleet.bare_front PORT URL"""

from __future__ import annotations

import asyncio
import sys

import structlog
from aiohttp import web

from server.command.collector import calm_collector
from server.fronting.application import front_application, make_front_runner
from server.fronting.replicas import Replicas
from server.startup.settings import ServerSettings


async def main(port: int, url: str) -> None:
    """Serves for ever."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # nobody reads the other fronts' logs either
    async with Replicas() as replicas:
        replicas.update({"0": url})
        runner = make_front_runner(front_application(replicas, ServerSettings(host="127.0.0.1", port=port)))
        await runner.setup()
        calm_collector()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
        await asyncio.Event().wait()


asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
