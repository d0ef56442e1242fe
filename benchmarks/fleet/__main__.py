"""Several Eagres behind the routers that people use: is every stream whole, and what does the router cost or save?

    python -m benchmarks.fleet --router /path/to/sglang-router /path/to/vllm-router

Starts replicas with few pages and one thread each, and each router in front of them. Exits with 1 where a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from benchmarks.fleet.checks import CHECKS
from benchmarks.fleet.replicas import Replica, replicas, router
from benchmarks.serving.command import run


async def check(front: str, servers: Sequence[Replica], names: Sequence[str]) -> list[str]:
    """Runs the checks of these names, with a line for each, and returns what failed."""
    failures = []
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
    for name in names:
        # A router may close an idle connection at any moment; a client of its own for each check does not meet that.
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            failed = await CHECKS[name](session, front, servers)
        print(f"  {name}: {'; '.join(failed) or 'holds'}", flush=True)
        failures += failed
    return failures


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--router", type=Path, nargs="+", required=True, help="the programs of the routers")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--num-pages", type=int, default=512, help="of each replica, 16 tokens each")
    parser.add_argument("--checks", nargs="*", choices=tuple(CHECKS), default=tuple(CHECKS))
    options = parser.parse_args(arguments)
    failures = []
    with replicas(options.replicas, ["--num-pages", str(options.num_pages)]) as servers:
        for program in options.router:
            with router(program, [server.url for server in servers], "cache_aware") as front:
                print(f"{program.name}, {options.replicas} replicas", flush=True)
                failures += asyncio.run(check(front.url, servers, options.checks))
    return 1 if failures else 0


if __name__ == "__main__":
    run("benchmarks.fleet", main)
