"""Where a host that only computes says that it lives: /liveness at the port of the metrics, if there is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from server.admission.guard import Guard
from server.admission.loop_throttle import LoopThrottle
from server.admission.probes import LIVENESS
from server.cli.listeners import Site, start_site
from server.http.app import hosts_of
from server.http.entry.access_log import add_headers
from server.http.entry.error_answers import ERROR_SHAPES, GENERATING
from server.http.entry.guard import GUARD, SOCKET_ROUTES
from server.http.entry.middleware import enter
from server.http.transport.connections import TURNS, GuardedRunner
from server.http.transport.json_body import json_response
from server.startup.settings import ServerSettings


@asynccontextmanager
async def follower_door(settings: ServerSettings) -> AsyncIterator[int | None]:
    """Listens while the context lasts; gives the port, or None where the settings name none.

    Raises:
        CannotListen: the address is taken or invalid.
    """
    if settings.metrics_port is None:
        yield None
        return
    app = web.Application(middlewares=[enter])
    app[GUARD] = Guard(None, hosts_of(settings), ())
    app[TURNS] = LoopThrottle()
    app[ERROR_SHAPES] = {}
    app[SOCKET_ROUTES] = app[GENERATING] = frozenset()
    app.on_response_prepare.append(add_headers)
    app.router.add_get(LIVENESS, _liveness)
    runner = GuardedRunner(app, settings)
    await runner.setup()
    try:
        await start_site(Site(runner, settings.host, settings.metrics_port), settings.metrics_port)
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def _liveness(_request: web.Request) -> web.Response:
    """200: one that cannot go on ends, and its process with it."""
    return json_response({"status": "alive"})
