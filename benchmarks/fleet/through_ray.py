"""What it costs to let tokens pass through Ray Serve: its proxy and one of its replicas, beside the front of Eagre.

    pip install 'eagre[ray]'
    python -m benchmarks.fleet.through_ray

Behind both stands Eagre's server over an engine that computes nothing. Through Ray a request goes to Ray's proxy, from
there to a replica that asks the server, and the tokens come back the same way. This is how a server that is no ASGI
application stands behind Ray Serve; `eagre deploy` uses Ray only to place servers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import aiohttp

from benchmarks.fleet.front_cost import FrontCost, instant_server, measure_front
from benchmarks.serving.command import run
from benchmarks.serving.server_process import RunningServer, free_port, running_server

OF_RAY = ("ray::ProxyActor", "ray::ServeReplica")  # as the processes through which tokens pass call themselves


class Relay:
    """A replica of Ray Serve that passes requests and streams on."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Any) -> Any:
        from starlette.responses import StreamingResponse

        if self._session is None:  # it wants the loop of the first request
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        answer = await self._session.post(self._url + request.url.path, data=await request.body())

        async def pieces() -> AsyncIterator[bytes]:
            async with answer:
                async for piece in answer.content.iter_any():
                    yield piece

        return StreamingResponse(pieces(), answer.status, media_type="text/event-stream")


@contextlib.contextmanager
def ray_front(server: RunningServer) -> Iterator[tuple[RunningServer, list[int]]]:
    """Ray's proxy and a relay before `server`, until the block ends: the proxy, and what else it needs."""
    import ray
    from ray import serve

    port = free_port()
    ray.init(address=os.environ.get("RAY_ADDRESS", "local"), logging_level="warning")
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        relay = serve.deployment(Relay, max_ongoing_requests=2000, ray_actor_options={"num_cpus": 0})
        serve.run(relay.bind(server.url), name="through-ray", route_prefix="/")
        proxy, *others = pids_of_ray()
        yield RunningServer(f"http://127.0.0.1:{port}", proxy, 0.0), others
    finally:
        serve.shutdown()
        ray.shutdown()


@contextlib.contextmanager
def own_front(server: RunningServer) -> Iterator[RunningServer]:
    """Eagre's front before `server`, until the block ends."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.fleet.bare_front", str(port), server.url]
    with running_server(command, f"http://127.0.0.1:{port}") as front:
        yield front


def pids_of_ray() -> list[int]:
    """The processes of Ray through which tokens pass."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split(maxsplit=1) for line in listed]
    return [int(row[0]) for row in rows if len(row) == 2 and row[1].startswith(OF_RAY)]


def main(arguments: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.fleet.through_ray", description=__doc__).parse_args(arguments)
    with instant_server() as server:
        with own_front(server) as front:
            print_cost("Eagre's front", asyncio.run(measure_front(front, server)))
        with ray_front(server) as (front, others):
            print_cost("through Ray", asyncio.run(measure_front(front, server, others)))
    return 0


def print_cost(name: str, cost: FrontCost) -> None:
    print(
        f"{name}: adds {cost.first_text_ms:.2f} ms to the first token; processor time a token "
        f"{cost.router_us:.1f} us, of Eagre's server {cost.eagre_us:.1f} us; "
        f"memory of an open stream {cost.router_bytes / 1024:.0f} KiB",
        flush=True,
    )


if __name__ == "__main__":
    run("benchmarks.fleet.through_ray", main)
