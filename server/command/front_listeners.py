"""Where a front listens."""

from __future__ import annotations

from aiohttp import web

from server.command.listeners import CannotListen
from server.fronting.application import front_application, make_front_runner
from server.fronting.front import FRONT, Front
from server.fronting.replicas import Replicas
from server.startup.settings import ServerSettings


class FrontListeners:
    def __init__(self, replicas: Replicas, settings: ServerSettings) -> None:
        self._settings = settings
        app = front_application(replicas, settings)
        self.front: Front = app[FRONT]
        self._runner = make_front_runner(app)

    async def open(self) -> None:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._settings.host, self._settings.port).start()
        except OSError as error:
            raise CannotListen(str(error)) from error

    async def close(self) -> None:
        await self._runner.cleanup()

    @property
    def address(self) -> str:
        return f"http://{self._settings.host}:{self._runner.addresses[0][1]}"
