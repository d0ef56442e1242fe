"""Measures what sending every step to follower hosts costs a leader: the idle time of a simulated device.

    python -m benchmarks.microbenchmarks.multihost --followers 3 --streams 64

The device takes 5 ms for a step and no processor. The followers are processes of this machine that read and unpack
every step, and compute nothing. Rounds with and without them alternate.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Sequence

from benchmarks.microbenchmarks.decoding import run_streams
from benchmarks.microbenchmarks.simulated_device import DeviceClock, SimulatedEngine, SimulatedRunner
from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.server_process import free_port
from benchmarks.serving.table import Turn
from engine.interface.address import HostAddress
from engine.interface.config import EngineConfig
from engine.multihost.follower import Follower
from engine.multihost.leader import Leader
from engine.multihost.leading_runner import LeadingRunner
from engine.multihost.messages import Kind
from engine.multihost.step_frame import StepFormat
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.step.shapes import ShapeTable

PROGRAM = "benchmarks.microbenchmarks.multihost"
NUM_OUTPUT_TOKENS = 300
NUM_PROMPT_TOKENS = 32
KEY = "a-key-of-all-hosts"


class LeadingSimulated(LeadingRunner, SimulatedRunner):
    """A simulated device whose steps are sent to followers."""


def listen(address: HostAddress, index: int, num_hosts: int, step_format: StepFormat) -> None:
    """A follower that computes nothing, in a process of its own."""
    follower = Follower(address, index, num_hosts, {}, KEY)
    while (message := follower.receive()).kind is not Kind.END:
        if message.kind is Kind.STEP:
            step_format.unpack(message.content)
    follower.close()


def idle_share(engine: SimulatedEngine, num_streams: int) -> float:
    """The share of time in which the device is idle while the streams decode."""
    engine.simulated.clock = clock = DeviceClock(engine.simulated.clock.step_seconds)
    prompts = [[1 + index] * NUM_PROMPT_TOKENS for index in range(num_streams)]
    run_streams(engine, prompts, NUM_OUTPUT_TOKENS, overlap=True)
    return clock.idle_seconds / (clock.idle_seconds + clock.num_steps * clock.step_seconds)


def measure(options: argparse.Namespace) -> list[Turn]:
    """The device's idle time of an engine alone and of one with followers."""
    num_followers, num_streams = options.followers, options.streams
    config = EngineConfig(num_pages=4096, max_num_seqs=num_streams, max_model_len=1024)
    address = HostAddress("127.0.0.1", free_port() - 1)
    leader = Leader(address, num_followers + 1, {}, KEY)
    alone = SimulatedEngine(config)
    runner = alone.simulated
    step_format = StepFormat(runner.max_pages_per_request, runner.state_shape)
    processes = multiprocessing.get_context("spawn")
    for index in range(1, num_followers + 1):
        processes.Process(target=listen, args=(address, index, num_followers + 1, step_format), daemon=True).start()
    leader.gather(lambda stage, done, total: None)

    def make_runner(buffer: SequenceBuffer, table: ShapeTable, step_seconds: float) -> LeadingSimulated:
        return LeadingSimulated(leader, buffer, table, step_seconds)

    def contender(engine: SimulatedEngine) -> Callable[[int], Measured]:
        return lambda _: Measured({"idle, %": 100 * idle_share(engine, num_streams)})

    contenders = {"alone": contender(alone), "leading": contender(SimulatedEngine(config, runner=make_runner))}
    load = f"{num_streams} streams, {num_followers} followers"
    turns = alternate(load, contenders, range(options.rounds), max_others=options.max_others)
    leader.close()
    return turns


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--followers", type=at_least_one, default=3)
    parser.add_argument("--streams", type=at_least_one, default=64)
    add_alternation_flags(parser, rounds=5)
    options = parser.parse_args(arguments)
    turns = measure(options)
    return finish(turns, ["alone", "leading"], options, PROGRAM, arguments)


if __name__ == "__main__":
    run(PROGRAM, main)
