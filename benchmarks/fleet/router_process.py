"""Eagre's own router as a process in front of servers that run already.

    python -m benchmarks.fleet.router_process PORT FRONT_KEY POLICY URL...

With the policy `round_robin` the replicas take turns; with any other, the router chooses by prefix and load.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from itertools import count

from aiohttp import web

from server.cli.collector import calm_collector
from server.router.application import front_application, make_front_runner
from server.router.replica import Replica
from server.router.replicas import Replicas
from server.startup.logs import set_up_logs
from server.startup.settings import ServerSettings


class RoundRobinReplicas(Replicas):
    """Replicas that get the requests in turn: the baseline of routing by prefixes."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = count()

    def choose(self, blocks: Sequence[int] = (), avoid: Collection[Replica] = ()) -> Replica:
        usable = self.usable
        candidates = [replica for replica in usable if replica not in avoid] or usable
        return candidates[next(self._turns) % len(candidates)] if candidates else super().choose()


async def main(port: int, key: str, policy: str, urls: Sequence[str]) -> None:
    """Serves for ever."""
    set_up_logs("error", "console")
    settings = ServerSettings(host="127.0.0.1", port=port, front_key=key)
    async with RoundRobinReplicas() if policy == "round_robin" else Replicas() as replicas:
        runner = make_front_runner(front_application(replicas, settings))
        await runner.setup()
        replicas.update({str(number): url for number, url in enumerate(urls)})
        calm_collector()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
