"""Checks several Eagres behind routers: is every stream whole, and what does the router cost or save?

    python -m benchmarks.fleet --router /path/to/sglang-router /path/to/vllm-router
    python -m benchmarks.fleet --router /path/to/sglang-router --measure --rounds 3
    python -m benchmarks.fleet --router eagre --replicas 4
    python -m benchmarks.fleet --router deploy --replicas 4
    python -m benchmarks.fleet --router ray-proxy eagre --measure

The router `eagre` is our own, `deploy` the same before replicas that Ray places (`eagre deploy`), and `ray-proxy`
the HTTP proxy of Ray Serve. The last two want the extra `ray`.

Starts replicas with few pages and one thread each, and each router in front of them. Exits with 1 where a check fails.
With --measure it prints, for a load of shared prefixes, what routing by prefixes saves against round-robin, and what
the router adds to a stream. `python -m benchmarks.fleet.simulation` goes on from there to a hundred replicas.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.fleet.checks import CHECKS, Server, checks_of
from benchmarks.fleet.deployed import deployed
from benchmarks.fleet.front_cost import instant_server, measure_front, measure_memory
from benchmarks.fleet.replicas import DEPLOYED, RAY_PROXY, replicas, router
from benchmarks.fleet.shared_prefixes import PrefixLoad, run_load
from benchmarks.serving.alternation import Measured, alternate
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.stream_client import StreamLost, new_session
from benchmarks.serving.table import print_table, rows_of

PROGRAM = "benchmarks.fleet"
POLICIES = ("round_robin", "cache_aware")


async def check(front: str, servers: Sequence[Server], names: Sequence[str]) -> list[str]:
    failures = []
    for name in names:
        # A router may close an idle connection at any moment; a client of its own for each check does not meet that.
        async with new_session() as session:
            failed = await CHECKS[name](session, front, servers)
        print(f"  {name}: {'; '.join(failed) or 'holds'}", flush=True)
        failures += failed
    return failures


def compare_policies(program: Path, servers: Sequence[Server], rounds: int) -> None:
    def contender(policy: str) -> Callable[[int], Measured]:
        def measured(seed: int) -> Measured:
            with router(program, [server.url for server in servers], policy) as front:
                # The policies of a round have prompts of their own, and as many of each kind.
                own_seed = len(POLICIES) * seed + POLICIES.index(policy)
                return Measured(asyncio.run(run_load(front.url, PrefixLoad(), own_seed)))

        return measured

    turns = alternate(program.name, {policy: contender(policy) for policy in POLICIES}, range(rounds))
    print_table(rows_of(turns, POLICIES, [POLICIES]), POLICIES)


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
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--router", type=Path, nargs="+", required=True, help="the programs of the routers")
    parser.add_argument("--replicas", type=at_least_one, default=2)
    parser.add_argument("--num-pages", type=int, default=512, help="of each replica, 16 tokens each")
    parser.add_argument("--checks", nargs="*", choices=tuple(CHECKS), default=tuple(CHECKS))
    parser.add_argument("--measure", action="store_true", help="measure instead of checking")
    parser.add_argument("--rounds", type=int, default=2, help="of each policy, with --measure; 0: costs alone")
    options = parser.parse_args(arguments)
    flags, failures = ["--num-pages", str(options.num_pages)], []
    alone = [program for program in options.router if program != DEPLOYED]
    if options.measure and len(alone) < len(options.router):
        parser.error("the router of `deploy` is that of `eagre`, and is measured there")
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
    run(PROGRAM, main)
