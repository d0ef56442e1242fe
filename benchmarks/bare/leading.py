"""What it costs a leader to tell its followers every step: how long a simulated device stands idle, with and without.

    python -m benchmarks.bare.leading --followers 3 --streams 64

The device takes 5 ms for a step and no processor. The followers are processes of this machine that read and unpack
every step, and compute nothing. Turns with and without them alternate.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
from collections.abc import Callable
from statistics import median

from benchmarks.bare.engine_streams import run_streams
from benchmarks.bare.simulated_device import DeviceClock, SimulatedEngine, SimulatedRunner
from engine.interface.address import HostAddress
from engine.interface.config import EngineConfig
from engine.multihost.follower import Follower
from engine.multihost.leader import Leader
from engine.multihost.leading_runner import LeadingRunner
from engine.multihost.messages import Kind
from engine.multihost.step_frame import StepFormat
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.step.shapes import ShapeTable

NUM_OUTPUT_TOKENS = 300
NUM_PROMPT_TOKENS = 32


class LeadingSimulated(LeadingRunner, SimulatedRunner):
    """A simulated device whose steps followers are told."""


def listen(address: HostAddress, index: int, num_hosts: int, step_format: StepFormat) -> None:
    """A follower that computes nothing, in a process of its own."""
    follower = Follower(address, index, num_hosts, {})
    while (message := follower.receive()).kind is not Kind.END:
        if message.kind is Kind.STEP:
            step_format.unpack(message.content)
    follower.close()


def idle_share(engine: SimulatedEngine, num_streams: int) -> float:
    """Of the device, while the streams decode."""
    engine.simulated.clock = clock = DeviceClock(engine.simulated.clock.step_seconds)
    prompts = [[1 + index] * NUM_PROMPT_TOKENS for index in range(num_streams)]
    run_streams(engine, prompts, NUM_OUTPUT_TOKENS, overlap=True)
    return clock.idle_seconds / (clock.idle_seconds + clock.num_steps * clock.step_seconds)


def measure(num_followers: int, num_streams: int, num_turns: int, write: Callable[[str], object]) -> None:
    """Writes the idle shares of all turns."""
    config = EngineConfig(num_pages=4096, max_num_seqs=num_streams, max_model_len=1024)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = HostAddress("127.0.0.1", probe.getsockname()[1] - 1)
    leader = Leader(address, num_followers + 1, {})
    alone = SimulatedEngine(config)
    runner = alone.simulated
    step_format = StepFormat(runner.max_pages_per_request, runner.state_shape)
    processes = multiprocessing.get_context("spawn")
    for index in range(1, num_followers + 1):
        processes.Process(target=listen, args=(address, index, num_followers + 1, step_format), daemon=True).start()
    leader.gather(lambda stage, done, total: None)

    def make_runner(buffer: SequenceBuffer, table: ShapeTable, step_seconds: float) -> LeadingSimulated:
        return LeadingSimulated(leader, buffer, table, step_seconds)

    engines = {"alone": alone, f"{num_followers} followers": SimulatedEngine(config, runner=make_runner)}
    shares: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(num_turns):
        for name, engine in engines.items():
            shares[name].append(idle_share(engine, num_streams))
    leader.close()
    for name, found in shares.items():
        write(f"{name}: idle {median(found):.2%} ({min(found):.2%} to {max(found):.2%}) of the device's time\n")


if __name__ == "__main__":
    import sys

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--followers", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    measure(options.followers, options.streams, options.turns, sys.stdout.write)
