"""A front before servers over the fake engine, all in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import aiohttp
import pytest

from server.cli.listeners import start_sites
from server.router.application import make_router_runner, router_application, router_metrics_application
from server.router.replicas import Replicas
from server.router.router import ROUTER, Router
from server.startup.settings import ServerSettings
from tests.server.conftest import Address, RunningServer, eventually

FRONT_KEY = "a-secret-of-fronts-alone"


class RunningFront(Address):
    """A front and its metrics' port, and the servers behind it by their names."""

    router: Router
    metrics_url: str
    servers: dict[str, RunningServer]


StartFront = Callable[..., Awaitable[RunningFront]]


@pytest.fixture
async def start_front() -> AsyncIterator[StartFront]:
    """`await start_front([server, …], **settings)`: a front that is ready."""
    async with AsyncExitStack() as ending:

        async def start(servers: Sequence[RunningServer], **settings: object) -> RunningFront:
            replicas = await ending.enter_async_context(Replicas())
            of_front = ServerSettings(host="127.0.0.1", port=0, **settings)  # type: ignore[arg-type]
            app = router_application(replicas, of_front)
            urls = []
            for each in (app, router_metrics_application(app)):
                runner = make_router_runner(each)
                ending.push_async_callback(runner.cleanup)
                await runner.setup()
                await start_sites(runner, ["127.0.0.1"], 0)
                urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
            running = RunningFront(urls[0], await ending.enter_async_context(aiohttp.ClientSession()))
            running.router, running.metrics_url = app[ROUTER], urls[1]
            running.servers = {str(number): server for number, server in enumerate(servers)}
            replicas.update({name: server.url for name, server in running.servers.items()})
            if servers:
                await eventually(lambda: replicas.is_ready)
            return running

        yield start
