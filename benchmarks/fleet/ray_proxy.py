"""The HTTP proxy of Ray Serve in front of servers that run already.

    python -m benchmarks.fleet.ray_proxy PORT URL...

One actor for each server passes requests on to it, piece by piece, as a replica of Ray Serve does that streams.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import aiohttp

MOST_ONGOING = 100_000  # requests of one actor, so that none waits


class Passing:
    """A deployment class of Ray Serve: each replica asks one of the servers over HTTP."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._url = ""
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Any) -> Any:  # Starlette's types, which come with Ray
        """The answer of the server, as it comes."""
        from ray import serve
        from starlette.responses import StreamingResponse

        if self._session is None:
            self._url = self._urls[serve.get_replica_context().rank.rank]
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=connector)
        answer = await self._session.request(
            request.method, self._url + request.url.path, data=await request.body(),
            headers={"Content-Type": request.headers.get("content-type", "")},
        )  # fmt: skip

        async def pieces() -> Any:
            async with answer:  # a client that leaves closes the generator, and with it the request
                async for piece in answer.content.iter_any():
                    yield piece

        return StreamingResponse(pieces(), status_code=answer.status, media_type=answer.headers.get("Content-Type"))


def main(port: int, urls: Sequence[str]) -> None:
    """Serves until SIGTERM."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray
    from ray import serve

    ray.init(address="local", include_dashboard=False, logging_level="error")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # after Ray, whose own handler ends the process with a trace
        signal.signal(number, lambda *_: ended.set())
    try:
        logging = {"enable_access_log": False, "log_level": "ERROR"}  # as for every other router
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port}, logging_config=logging)
        deployment = serve.deployment(
            Passing, num_replicas=len(urls), max_ongoing_requests=MOST_ONGOING, ray_actor_options={"num_cpus": 0},
            logging_config=logging,
        )  # fmt: skip
        serve.run(deployment.bind(list(urls)), route_prefix="/")
        ended.wait()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
