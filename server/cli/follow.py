"""`eagre serve` on a host that only computes: it follows the host that serves, and ends with it."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial

from engine.interface.background import run_in_background
from engine.interface.types import Progress
from server.cli.collector import calm_collector
from server.cli.follower_door import follower_door
from server.cli.listeners import CannotListen
from server.cli.serve import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Announce, watch_signals
from server.startup.logs import log, set_up_logs
from server.startup.model_loader import follow_model
from server.startup.model_settings import settings_of_each
from server.startup.progress import ProgressReporter
from server.startup.settings import ServerSettings, SettingsError


def run_follower(settings: ServerSettings, announce: Announce) -> int:
    """Computes until the leader ends, and then ends the process with an exit status."""
    set_up_logs(settings.log_level, settings.log_format)
    calm_collector()
    with ProgressReporter() as progress:
        status = asyncio.run(follow(settings, announce, progress))
    # A thread may wait for a device for ever, when another host is lost.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def follow(settings: ServerSettings, announce: Announce, progress: Progress) -> int:
    """Follows inside a running event loop; returns the exit status.

    After a signal this host goes on computing until the leader ends, `shutdown_timeout` seconds at most: whoever stops
    all hosts at once does not cut the streams off that the leader drains.
    """
    try:
        (settings,) = settings_of_each(settings)
        async with follower_door(settings):
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
    await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        log.info("draining", signal=stopped.result())
        await asyncio.wait((ended,), timeout=settings.shutdown_timeout)
    failure = ended.result() if ended.done() else None
    if failure is not None:
        announce(f"eagre: {failure}")
        return EXIT_FAILURE
    return EXIT_OK
