"""`eagre serve --host-index`: a host of a multi-host engine that only computes. It ends with the host that serves."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from engine.interface.background import run_in_background
from engine.interface.types import Progress
from server.admission.guard import Guard
from server.admission.loop_throttle import LoopThrottle
from server.admission.probes import LIVENESS
from server.cli.listeners import CannotListen, start_sites
from server.cli.memory import freeze_gc
from server.cli.process import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Announce, first_of, watch_signals
from server.http.app import hosts_of
from server.http.entry.access_log import add_headers
from server.http.entry.error_answers import ERROR_SHAPES, GENERATING
from server.http.entry.guard import GUARD, SOCKET_ROUTES
from server.http.entry.middleware import enter
from server.http.transport.connections import TURNS, GuardedRunner
from server.http.transport.json_body import json_response
from server.startup.exposed_files import warn_of_exposed_files
from server.startup.logs import log, set_up_logs
from server.startup.model_loader import follow_model
from server.startup.model_settings import settings_of_each
from server.startup.progress import ProgressReporter
from server.startup.settings import ServerSettings, SettingsError


def run_follower(settings: ServerSettings, announce: Announce) -> int:
    """Computes until the leader ends, and then ends the process with an exit status."""
    set_up_logs(settings.log_level, settings.log_format)
    warn_of_exposed_files(settings)
    freeze_gc()
    with ProgressReporter() as progress:
        status = asyncio.run(follow(settings, announce, progress))
    # A thread may wait for a device for ever, when another host is lost.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def follow(settings: ServerSettings, announce: Announce, progress: Progress) -> int:
    """Follows inside a running event loop; returns the exit status.

    After a signal it computes for at most `shutdown_timeout` seconds until the leader, whose streams drain, ends.
    """
    try:
        (settings,) = settings_of_each(settings)
        async with liveness_server(settings):
            return await _follow(settings, announce, progress)
    except (SettingsError, CannotListen) as error:
        announce(f"eagre: {error}")
        return EXIT_USAGE


async def _follow(settings: ServerSettings, announce: Announce, progress: Progress) -> int:
    stopped = watch_signals()
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def end(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(error)

    def on_lost(error: BaseException) -> None:
        loop.call_soon_threadsafe(end, error)

    following = run_in_background(partial(follow_model, settings, progress, on_lost), name="eagre-follow")
    following.add_done_callback(lambda done: end(done.exception()))
    await first_of(ended, stopped)
    if not ended.done():
        log.info("draining", signal=stopped.result())
        await asyncio.wait((ended,), timeout=settings.shutdown_timeout)
    failure = ended.result() if ended.done() else None
    if failure is not None:
        announce(f"eagre: {failure}")
        return EXIT_FAILURE
    return EXIT_OK


@asynccontextmanager
async def liveness_server(settings: ServerSettings) -> AsyncIterator[int | None]:
    """Serves /liveness at the metrics port, if there is one, while the context lasts; raises CannotListen."""
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
        await start_sites(runner, settings.hosts, settings.metrics_port)
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def _liveness(_request: web.Request) -> web.Response:
    """GET /liveness: always 200, because a follower that fails ends its process."""
    return json_response({"status": "alive"})
