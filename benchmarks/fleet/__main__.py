"""Several Eagres behind the routers that people use: is every stream whole, and what does the router cost or save?

    python -m benchmarks.fleet --router /path/to/sglang-router /path/to/vllm-router
    python -m benchmarks.fleet --router /path/to/sglang-router --measure --rounds 3
    python -m benchmarks.fleet --router eagre --replicas 4
    python -m benchmarks.fleet --router deploy --replicas 4
    python -m benchmarks.fleet --router ray-proxy eagre --measure

The router `eagre` is our own front, `deploy` the same before replicas that Ray places (`eagre deploy`), and `ray-proxy`
the HTTP proxy of Ray Serve. The last two want the extra `ray`.

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

from benchmarks.fleet.checks import CHECKS, checks_of
from benchmarks.fleet.deployed import deployed
from benchmarks.fleet.front_cost import instant_server, measure_front, measure_memory
from benchmarks.fleet.replicas import DEPLOYED, RAY_PROXY, Server, replicas, router
from benchmarks.fleet.shared_prefixes import Outcome, PrefixLoad, run_load
from benchmarks.fleet.streams import StreamLost
from benchmarks.serving.command import run

POLICIES = ("round_robin", "cache_aware")


async def check(front: str, servers: Sequence[Server], names: Sequence[str]) -> list[str]:
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


def compare_policies(program: Path, servers: Sequence[Server], rounds: int) -> None:
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
            f"  processor time a token: router {cost.router_us:.1f} us, Eagre's server {cost.eagre_us:.1f} us",
            flush=True,
        )
        try:
            memory = asyncio.run(measure_memory(front, server))
        except StreamLost as lost:
            print(f"  memory of an open stream: not known, {lost}", flush=True)
            return
        print(
            f"  memory of an open stream: router {memory.router_bytes / 1024:.0f} KiB, "
            f"Eagre {memory.eagre_bytes / 1024:.0f} KiB",
            flush=True,
        )


def measure(program: Path, servers: Sequence[Server], rounds: int) -> None:
    """Prints what the router costs and, where it knows prefixes, what that saves."""
    print_front_cost(program)
    if program != RAY_PROXY and rounds:
        compare_policies(program, servers, rounds)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--router", type=Path, nargs="+", required=True, help="the programs of the routers")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--num-pages", type=int, default=512, help="of each replica, 16 tokens each")
    parser.add_argument("--checks", nargs="*", choices=tuple(CHECKS), default=tuple(CHECKS))
    parser.add_argument("--measure", action="store_true", help="measure in the place of checking")
    parser.add_argument("--rounds", type=int, default=2, help="of each policy, with --measure; 0: costs alone")
    options = parser.parse_args(arguments)
    flags, failures = ["--num-pages", str(options.num_pages)], []
    alone = [program for program in options.router if program != DEPLOYED]
    if options.measure and len(alone) < len(options.router):
        parser.error("the front of `deploy` is that of `eagre`, and is measured there")
    if alone:
        has_load = not options.measure or options.rounds
        with replicas(options.replicas if has_load else 0, flags) as servers:
            for program in alone:
                print(f"{program.name}, {options.replicas} replicas", flush=True)
                if options.measure:
                    measure(program, servers, options.rounds)
                    continue
                with router(program, [server.url for server in servers], "cache_aware") as front:
                    failures += asyncio.run(check(front.url, servers, checks_of(program, options.checks)))
    if len(alone) < len(options.router):
        print(f"{DEPLOYED}, {options.replicas} replicas", flush=True)
        with deployed(options.replicas, flags) as (url, placed):
            failures += asyncio.run(check(url, placed, checks_of(DEPLOYED, options.checks)))
    return 1 if failures else 0


if __name__ == "__main__":
    run("benchmarks.fleet", main)
