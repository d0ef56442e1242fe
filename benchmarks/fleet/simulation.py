"""Simulates large fleets: what a routing policy is worth, from the costs of steps measured on this machine.

    python -m benchmarks.fleet.simulation
    python -m benchmarks.fleet.simulation --replicas 2 8 32 100 --arrivals recorded.jsonl
    python -m benchmarks.fleet.simulation --measure-costs    # those of another machine, for step_costs.py

Synthetic arrivals are Poisson, `--rate` for each replica; recorded ones have a JSON object on each line (`at`,
`prefix`, `num_shared`, `num_own`, `num_output`). The router and the network take no time.
"""

import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.fleet.arrivals import SHARED_TOKENS, Arrival, Synthetic, read_arrivals
from benchmarks.fleet.policies import POLICIES, Policy
from benchmarks.fleet.simulated_replica import NUM_PAGES, ReplicaSize, Served, SimulatedReplica
from benchmarks.fleet.step_costs import MEASURED, StepCost, measure_costs
from benchmarks.serving.command import new_parser, run
from benchmarks.serving.table import print_columns
from server.cli.bench.load.report import percentile
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.fleet.simulation"


class FleetFigures(NamedTuple):
    """What clients of a fleet see."""

    hit_rate: float  # cached tokens of the prompts' tokens
    requests_per_s: float
    first_token: tuple[float, float]  # p50 and p99, in seconds
    busy: float  # share of the replicas' time, from the first arrival to the last end


def simulate(
    arrivals: Iterable[Arrival], choose: Policy, num_replicas: int, size: ReplicaSize, cost: StepCost
) -> tuple[list[Served], list[SimulatedReplica]]:
    """Runs every request of the arrivals, which are in the order of their times, to its end."""
    replicas = [SimulatedReplica(size, cost) for _ in range(num_replicas)]
    steps: list[tuple[float, int]] = []  # (end, replica) of the steps under way
    requests = []

    def begin(index: int, now: float) -> None:
        replicas[index].begin_step(now)
        end = replicas[index].busy_until
        if end is not None:
            heapq.heappush(steps, (end, index))

    def end_steps(until: float) -> None:
        while steps and steps[0][0] <= until:
            now, index = heapq.heappop(steps)
            replicas[index].end_step(now)
            begin(index, now)

    for arrival in arrivals:
        end_steps(arrival.at)
        served = Served(arrival)
        requests.append(served)
        index = choose(arrival, replicas)
        replicas[index].waiting.append(served)
        if replicas[index].busy_until is None:
            begin(index, arrival.at)
    end_steps(float("inf"))
    return requests, replicas


def figures(requests: Sequence[Served], replicas: Sequence[SimulatedReplica]) -> FleetFigures:
    firsts = sorted(served.first_token for served in requests if served.first_token is not None)
    seconds = max(served.ended or 0.0 for served in requests)
    return FleetFigures(
        sum(served.num_cached for served in requests) / sum(served.arrival.num_prompt for served in requests),
        len(requests) / seconds,
        (percentile(firsts, 50), percentile(firsts, 99)),
        sum(replica.busy_ms for replica in replicas) / 1000 / seconds / len(replicas),
    )


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 10, 100])
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second for each replica")
    parser.add_argument("--requests", type=int, default=200, help="for each replica")
    parser.add_argument("--prefixes", type=int, default=20, help="beginnings of prompts, for each replica")
    parser.add_argument("--shared-tokens", type=int, default=SHARED_TOKENS)
    parser.add_argument("--num-pages", type=int, default=NUM_PAGES, help="of each replica")
    parser.add_argument("--arrivals", type=Path, help="recorded ones, instead of synthetic ones")
    parser.add_argument("--measure-costs", action="store_true", help="measure steps on this machine, and print them")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="whose steps are measured")
    options = parser.parse_args(arguments)
    if options.measure_costs:
        print(measure_costs(options.model))
        return 0
    size = ReplicaSize(num_pages=options.num_pages)
    lines = [["replicas", "policy", "tokens from the cache", "requests/s", "first token p50", "p99", "replicas busy"]]
    for num_replicas in options.replicas:
        if options.arrivals is None:
            synthetic = Synthetic(
                rate=options.rate * num_replicas, num_requests=options.requests * num_replicas,
                num_prefixes=options.prefixes * num_replicas, num_shared=options.shared_tokens,
            )  # fmt: skip
            arrivals = list(synthetic.arrivals())
        else:
            arrivals = read_arrivals(options.arrivals)
        for name, make in POLICIES.items():
            found = figures(*simulate(arrivals, make(), num_replicas, size, MEASURED))
            p50, p99 = (f"{seconds:.2f} s" for seconds in found.first_token)
            cells = [f"{found.hit_rate:.0%}", f"{found.requests_per_s:.1f}", p50, p99, f"{found.busy:.0%}"]
            lines.append([str(num_replicas), name, *cells])
    print_columns(lines)
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
