"""What a step costs the host, and whether the device has to wait for it.

    python -m benchmarks.engine_host                       # 1, 64 and 256 rows, steps of 5 ms
    python -m benchmarks.engine_host --rows 256 --steps 1000 --rounds 5

A simulated device takes a fixed time a step. All rows decode; their tokens are published into an
asyncio loop in another thread, where every stream has a reader. Three variants take turns:

    overlapped      as the engine runs
    synchronous     its oracle: dispatch, result, commit
    no cache        overlapped, prefix caching off; no prompt hits in any variant
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from benchmarks.bare.simulated_device import STEP_SECONDS, VOCAB_SIZE, SimulatedEngine, SimulatedRunner
from engine.client import EngineClient, TokenStream
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.schedule.request_event import StepEvent
from engine.schedule.scheduler import Scheduler
from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.inputs import StepInputs
from engine.step.runner import PendingStep
from sampling.host.params import SamplingParams
from server.cli.collector import calm_collector

PAGE_SIZE = 32  # tokens
PROMPT_LENGTHS = range(4, 4 + PAGE_SIZE)  # spread, so that every step fills some rows' pages
NUM_TILES = 16  # of prompts a step, so that all rows run soon
NUM_SETTLING_STEPS = 20  # left out at either end of a run

VARIANTS = {
    "overlapped": {"overlap": True, "enable_prefix_caching": True},
    "synchronous": {"overlap": False, "enable_prefix_caching": True},
    "no cache": {"overlap": True, "enable_prefix_caching": False},
}

COLUMNS = "rows variant idle thread schedule build dispatch commit rest wait step".split()
LEGEND = (
    "idle: share of time that the device stood still; all others in us a step, medians of rounds. thread: processor\n"
    "time of the engine thread. The rest is wall time in it: build and dispatch are the step's arrays and programs;\n"
    "rest is inbox, publishing and the loop itself; wait is for the device."
)


class Marks(NamedTuple):
    """Running totals at the dispatch of one step, in seconds."""

    schedule: float
    build: float
    dispatch: float
    commit: float
    wait: float
    wall: float
    thread: float  # processor time of the engine thread
    idle: float  # of the device


@dataclass(slots=True)
class Meter:
    """Where the engine thread's time goes, in seconds so far. Written by that thread alone."""

    num_rows: int
    schedule: float = 0.0
    build: float = 0.0
    dispatch: float = 0.0
    commit: float = 0.0
    wait: float = 0.0
    full_steps: list[Marks] = field(default_factory=list)  # one for each step in which all rows decode

    def mark(self, plan: StepPlan, idle: float) -> None:
        """Notes the totals where the step decodes every row and does nothing else."""
        if plan.num_rows == plan.num_scheduled_tokens == self.num_rows and all(plan.samples):
            now = (time.perf_counter(), time.thread_time(), idle)
            self.full_steps.append(Marks(self.schedule, self.build, self.dispatch, self.commit, self.wait, *now))


class MeteredScheduler(Scheduler):
    """A scheduler that times itself."""

    def __init__(self, meter: Meter, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._meter = meter

    def schedule(self) -> StepPlan | None:
        start = time.perf_counter()
        plan = super().schedule()
        self._meter.schedule += time.perf_counter() - start
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[StepEvent]:
        start = time.perf_counter()
        events = super().commit(plan, result)
        self._meter.commit += time.perf_counter() - start
        return events


class MeteredRunner(SimulatedRunner):
    """A simulated runner that times itself."""

    def __init__(self, meter: Meter, *args: Any) -> None:
        super().__init__(*args)
        self._meter = meter

    def build(self, plan: StepPlan) -> StepInputs:
        start = time.perf_counter()
        step = super().build(plan)
        self._meter.build += time.perf_counter() - start
        return step

    def enqueue(self, plan: StepPlan, inputs: StepInputs) -> PendingStep:
        start = time.perf_counter()
        pending = super().enqueue(plan, inputs)
        self._meter.dispatch += time.perf_counter() - start
        self._meter.mark(plan, self.clock.idle_seconds)
        return pending

    def result(self, pending: PendingStep) -> StepResult:
        start = time.perf_counter()
        result = super().result(pending)
        self._meter.wait += time.perf_counter() - start
        return result


@dataclass(frozen=True, slots=True)
class HostCost:
    """Of one step while all rows decode; seconds, but for `idle`."""

    idle: float  # share of time that the device stood still, 0 to 1
    thread: float  # processor time of the engine thread
    schedule: float
    build: float
    dispatch: float
    commit: float
    rest: float  # inbox, publishing and the loop itself
    wait: float
    step: float  # from one dispatch to the next

    @classmethod
    def between(cls, first: Marks, last: Marks, num_steps: int, step_seconds: float) -> HostCost:
        """Of the steps from one mark to another, each of which took the device `step_seconds`."""
        total = Marks(*(after - before for before, after in zip(first, last, strict=True)))
        known = total.schedule + total.build + total.dispatch + total.commit + total.wait
        return cls(
            idle=total.idle / (total.idle + num_steps * step_seconds),
            thread=total.thread / num_steps,
            schedule=total.schedule / num_steps,
            build=total.build / num_steps,
            dispatch=total.dispatch / num_steps,
            commit=total.commit / num_steps,
            rest=(total.wall - known) / num_steps,
            wait=total.wait / num_steps,
            step=total.wall / num_steps,
        )

    @classmethod
    def median(cls, costs: Sequence[HostCost]) -> HostCost:
        """Of each figure by itself."""
        return cls(*(median(getattr(cost, each.name) for cost in costs) for each in fields(cls)))


def measure(
    num_rows: int, num_steps: int, step_seconds: float, *, overlap: bool, enable_prefix_caching: bool, seed: int
) -> HostCost:
    """Decodes `num_rows` streams at once for `num_steps` steps.

    Raises:
        RuntimeError: the streams did not all run for so long.
    """
    admission_steps = -(-num_rows // NUM_TILES)
    params = SamplingParams(max_tokens=num_steps + 2 * NUM_SETTLING_STEPS + 2 * admission_steps, ignore_eos=True)
    pages_per_row = -(-(PROMPT_LENGTHS.stop + params.max_tokens) // PAGE_SIZE) + 1
    config = EngineConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=NUM_TILES * TILE_SIZE,
        target_gap=0.0,
        page_size=PAGE_SIZE,
        num_pages=num_rows * pages_per_row + 2,
        overlap=overlap,
        enable_prefix_caching=enable_prefix_caching,
        seed=seed,
    )
    meter = Meter(num_rows)
    engine = SimulatedEngine(
        config, step_seconds, runner=partial(MeteredRunner, meter), scheduler=partial(MeteredScheduler, meter)
    )
    draw = random.Random(seed)
    prompts = [draw.choices(range(VOCAB_SIZE), k=draw.choice(PROMPT_LENGTHS)) for _ in range(num_rows)]
    calm_collector()  # as `eagre serve` does
    asyncio.run(_read_all(EngineClient(engine), prompts, params))
    full_steps = meter.full_steps[NUM_SETTLING_STEPS:]
    if len(full_steps) <= num_steps:
        raise RuntimeError(f"all {num_rows} rows decoded in {len(meter.full_steps)} steps only, {num_steps} are wanted")
    return HostCost.between(full_steps[0], full_steps[num_steps], num_steps, step_seconds)


async def _read_all(client: EngineClient, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
    client.start(asyncio.get_running_loop())
    try:
        await asyncio.gather(*[_read(client.submit(prompt, params)) for prompt in prompts])
    finally:
        client.shutdown()


async def _read(stream: TokenStream) -> None:
    async for _ in stream:
        pass


def print_row(cells: Sequence[str]) -> None:
    widths = [max(8, len(name)) for name in COLUMNS]
    widths[1] = max(map(len, VARIANTS))
    print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)


def table_row(num_rows: int, variant: str, cost: HostCost) -> list[str]:
    """One line of the table, by COLUMNS."""
    times = [getattr(cost, name) for name in COLUMNS[3:]]
    return [str(num_rows), variant, f"{cost.idle:.2%}", *(f"{1e6 * seconds:,.0f}" for seconds in times)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_host",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256], metavar="N")
    parser.add_argument("--step-ms", type=float, default=1000 * STEP_SECONDS, help="of the simulated device")
    parser.add_argument("--steps", type=int, default=400, help="measured in each run")
    parser.add_argument("--rounds", type=int, default=3, help="of all variants, in turn")
    options = parser.parse_args(arguments)
    print_row(COLUMNS)
    for num_rows in options.rows:
        costs: dict[str, list[HostCost]] = {variant: [] for variant in VARIANTS}
        for seed in range(options.rounds):
            for variant, choices in VARIANTS.items():
                cost = measure(num_rows, options.steps, options.step_ms / 1000, seed=seed, **choices)
                costs[variant].append(cost)
        for variant in VARIANTS:
            print_row(table_row(num_rows, variant, HostCost.median(costs[variant])))
        ratios = [on.thread / off.thread - 1 for on, off in zip(costs["overlapped"], costs["no cache"], strict=True)]
        print(f"{num_rows} rows: the prefix cache, never hit, adds {median(ratios):.1%} to the engine thread's time")
    print(LEGEND)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
