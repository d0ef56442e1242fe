"""Measures what a step costs the host, and whether the device has to wait for it.

    python -m benchmarks.engine_host                       # 1, 64 and 256 rows, steps of 5 ms
    python -m benchmarks.engine_host --rows 256 --steps 1000 --rounds 5

A simulated device takes a fixed time a step. All rows decode; their tokens are published into an
asyncio loop in another thread, where every stream has a reader. Three variants alternate:

    overlapped      as the engine runs
    synchronous     its oracle: dispatch, result, commit
    no cache        overlapped, prefix caching off; no prompt hits in any variant, so that the ratio overlapped/no cache
                    is what the prefix cache costs when it is of no use
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

from benchmarks.microbenchmarks.simulated_device import STEP_SECONDS, VOCAB_SIZE, SimulatedEngine, SimulatedRunner
from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from engine.client import EngineClient, TokenStream
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.schedule.request_event import News
from engine.schedule.scheduler import Scheduler
from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.inputs import StepInputs
from engine.step.runner import PendingStep
from sampling.host.params import SamplingParams
from server.cli.collector import calm_collector

PROGRAM = "benchmarks.engine_host"
PAGE_SIZE = 32  # tokens
PROMPT_LENGTHS = range(4, 4 + PAGE_SIZE)  # spread, so that every step fills some rows' pages
NUM_TILES = 16  # of prompts a step, so that all rows run soon
NUM_SETTLING_STEPS = 20  # left out at either end of a run

VARIANTS = {
    "overlapped": {"overlap": True, "enable_prefix_caching": True},
    "synchronous": {"overlap": False, "enable_prefix_caching": True},
    "no cache": {"overlap": True, "enable_prefix_caching": False},
}

LEGEND = (
    "idle: share of time that the device stood still; all others in us a step. thread: processor time of the engine\n"
    "thread. The rest is wall time in it: build and dispatch are the step's arrays and programs; rest is inbox,\n"
    "publishing and the loop itself; wait is for the device."
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

    def commit(self, plan: StepPlan, result: StepResult) -> list[News]:
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

    def figures(self) -> dict[str, float]:
        """By name, in percent and microseconds."""
        times = {each.name: 1e6 * getattr(self, each.name) for each in fields(self)}
        return {"idle, %": 100 * times.pop("idle") / 1e6, **times}


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


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--rows", type=at_least_one, nargs="+", default=[1, 64, 256], metavar="N")
    parser.add_argument("--step-ms", type=float, default=1000 * STEP_SECONDS, help="of the simulated device")
    parser.add_argument("--steps", type=at_least_one, default=400, help="measured in each run")
    add_alternation_flags(parser)
    options = parser.parse_args(arguments)

    def contender(num_rows: int, choices: dict[str, bool]) -> Callable[[int], Measured]:
        return lambda seed: Measured(
            measure(num_rows, options.steps, options.step_ms / 1000, seed=seed, **choices).figures()
        )

    turns = []
    for num_rows in options.rows:
        contenders = {name: contender(num_rows, choices) for name, choices in VARIANTS.items()}
        turns += alternate(f"{num_rows} rows", contenders, range(options.rounds), max_others=options.max_others)
    ratios = [("overlapped", "synchronous"), ("overlapped", "no cache")]
    status = finish(turns, list(VARIANTS), options, PROGRAM, arguments, ratios=ratios)
    print(LEGEND)
    return status


if __name__ == "__main__":
    run(PROGRAM, main)
