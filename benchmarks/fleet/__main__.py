"""Several Eagres behind the routers that people use: is every stream whole, and what does the router cost or save?

    python -m benchmarks.fleet --router /path/to/sglang-router /path/to/vllm-router
    python -m benchmarks.fleet --router /path/to/sglang-router --measure --rounds 3
    python -m benchmarks.fleet --router eagre --checks kill

The router `eagre` is our own front.

Starts replicas with few pages and one thread each, and each router in front of them. Exits with 1 where a check fails.
With --measure it prints, for a load of shared prefixes, what routing by prefixes saves against taking turns, and what
the router adds to a stream. `python -m benchmarks.fleet.simulation` goes on from there to a hundred replicas.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import aiohttp

from benchmarks.fleet.checks import CHECKS, FRONT_ALONE
from benchmarks.fleet.front_cost import instant_server, measure_front
from benchmarks.fleet.replicas import EAGRE, Replica, replicas, router
from benchmarks.fleet.shared_prefixes import Outcome, PrefixLoad, run_load
from benchmarks.serving.command import run

POLICIES = ("round_robin", "cache_aware")


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


def compare_policies(program: Path, servers: Sequence[Replica], rounds: int) -> None:
    """Prints the figures of each policy; the policies take turns."""
    load = PrefixLoad()
    outcomes: dict[str, list[Outcome]] = {policy: [] for policy in POLICIES}
    for seed in range(rounds):
        for policy in POLICIES:
            with router(program, [server.url for server in servers], policy) as front:
                # Both policies of a round have prompts of their own, and as many of each kind.
                key = 2 * seed + POLICIES.index(policy)
                outcomes[policy].append(asyncio.run(run_load(front.url, load, key)))
    for policy, found in outcomes.items():
        hits, rates, firsts = zip(*found, strict=True)
        print(
            f"  {policy:>12}: {median(hits):6.1%} of the prompts' tokens from the cache, "
            f"{median(rates):5.2f} requests/s ({min(rates):.2f} to {max(rates):.2f}), "
            f"first text {1000 * median(firsts):,.0f} ms",
            flush=True,
        )


def print_front_cost(program: Path) -> None:
    with instant_server() as server, router(program, [server.url], "cache_aware") as front:
        cost = asyncio.run(measure_front(front, server))
    print(
        f"  adds {cost.first_text_ms:.2f} ms to the first token\n"
        f"  processor time a token: router {cost.router_us:.1f} us, Eagre's server {cost.eagre_us:.1f} us\n"
        f"  memory of an open stream: router {cost.router_bytes / 1024:.0f} KiB, "
        f"Eagre {cost.eagre_bytes / 1024:.0f} KiB",
        flush=True,
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--router", type=Path, nargs="+", required=True, help="the programs of the routers")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--num-pages", type=int, default=512, help="of each replica, 16 tokens each")
    parser.add_argument("--checks", nargs="*", choices=tuple(CHECKS), default=tuple(CHECKS))
    parser.add_argument("--measure", action="store_true", help="measure in the place of checking")
    parser.add_argument("--rounds", type=int, default=2, help="of each policy, with --measure")
    options = parser.parse_args(arguments)
    failures = []
    with replicas(options.replicas, ["--num-pages", str(options.num_pages)]) as servers:
        for program in options.router:
            print(f"{program.name}, {options.replicas} replicas", flush=True)
            if options.measure:
                print_front_cost(program)
                if program == EAGRE:
                    continue  # it has one policy
                compare_policies(program, servers, options.rounds)
                continue
            with router(program, [server.url for server in servers], "cache_aware") as front:
                names = [name for name in options.checks if program == EAGRE or name not in FRONT_ALONE]
                failures += asyncio.run(check(front.url, servers, names))
    return 1 if failures else 0


if __name__ == "__main__":
    run("benchmarks.fleet", main)
