"""Eagre's own router as a process in front of servers that run already.

    python -m benchmarks.fleet.router_process PORT FRONT_KEY POLICY URL...

With the policy `round_robin` the replicas take turns; with any other, the router chooses by prefix and load.
"""

import asyncio
import sys
from collections.abc import Sequence

from server.cli.listeners import start_sites
from server.cli.memory import freeze_gc
from server.router.application import make_router_runner, router_application
from server.router.policies import RoundRobin
from server.router.replicas import Replicas
from server.startup.logs import set_up_logs
from server.startup.settings import ServerSettings


async def main(port: int, key: str, policy: str, urls: Sequence[str]) -> None:
    """Serves for ever."""
    set_up_logs("error", "console")
    settings = ServerSettings(host="127.0.0.1", port=port, front_key=key)
    async with Replicas(RoundRobin() if policy == "round_robin" else None) as replicas:
        runner = make_router_runner(router_application(replicas, settings))
        await runner.setup()
        replicas.update({str(number): url for number, url in enumerate(urls)})
        freeze_gc()
        await start_sites(runner, ["127.0.0.1"], port)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
