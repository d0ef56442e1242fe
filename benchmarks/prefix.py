"""Measures the time to first token of a prompt whose beginning is in the prefix cache, against that of a cold one.

    python -m benchmarks.prefix
    python -m benchmarks.prefix --rounds 15 --prompt-tokens 512 --cached-tokens 480
    python -m benchmarks.prefix --restart --prompt-tokens 2000

The real model, in this process, one request at a time, alternating. Cold prompts are random throughout; warm ones begin
with tokens that are in the cache and end with random ones of their own. With --restart, warm prompts were computed
whole by an earlier process, and their pages come from its folder (--prefix-cache-dir of `eagre serve`).
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.serving.alternation import Measured, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.engines import COMPILED, load_engine, running_client
from benchmarks.serving.table import Turn
from engine.client import EngineClient
from engine.interface.config import STEP_TOKENS, EngineConfig
from engine.interface.types import FinishReason
from sampling.host.params import SamplingParams
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.prefix"
EXPORT_TIMEOUT_S = 30.0  # for the digest of the model's files, and the pages that are written


class FirstToken(NamedTuple):
    seconds: float  # from submit until its reader had it
    num_cached_tokens: int  # of the prompt


async def first_token(client: EngineClient, prompt: Sequence[int]) -> FirstToken:
    """Runs a prompt until its first token; raises RuntimeError if it ended otherwise."""
    start = time.perf_counter()
    event = await anext(client.submit(prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)))
    seconds = time.perf_counter() - start
    if event.finish_reason is not FinishReason.LENGTH:
        raise RuntimeError(f"the request ended with {event.finish_reason}: {event.error}")
    return FirstToken(seconds, event.num_cached_tokens)


class Prompts:
    """Cold and warm prompts, the same in each process for the same seed."""

    def __init__(self, client: EngineClient, options: argparse.Namespace) -> None:
        self._vocab_size = client.model_info.vocab_size
        self._options = options

    def tokens(self, name: str, count: int) -> list[int]:
        return random.Random(f"{self._options.seed} {name}").choices(range(self._vocab_size), k=count)

    def cold(self, number: int) -> list[int]:
        return self.tokens(f"cold {number}", self._options.prompt_tokens)

    def warm(self, number: int) -> list[int]:
        if self._options.restart:
            return self.tokens(f"warm {number}", self._options.prompt_tokens)
        num_cached = self._options.cached_tokens
        end = self.tokens(f"warm {number}", self._options.prompt_tokens - num_cached)
        return [*self.tokens("prefix", num_cached), *end]


def fill_folder(client: EngineClient, options: argparse.Namespace) -> None:
    """Computes the prompts whose pages the next process is to find, and waits until their pages are written."""
    prompts = Prompts(client, options)
    with running_client(client) as runner:
        for number in range(options.rounds):
            runner.run(first_token(client, prompts.warm(number)))
        num_bytes, deadline = 0, time.monotonic() + EXPORT_TIMEOUT_S
        while not num_bytes or client.stats().kept.num_exported_bytes > num_bytes:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the pages were not written in {EXPORT_TIMEOUT_S:g} s")
            num_bytes = client.stats().kept.num_exported_bytes
            runner.run(asyncio.sleep(0.5))


def measure(client: EngineClient, options: argparse.Namespace) -> list[Turn]:
    """Cold and warm prompts in turn; raises RuntimeError where the cache had a cold one, or lacked a warm one."""
    prompts, turns = Prompts(client, options), list[Turn]()
    with running_client(client) as runner:

        def measured(prompt: list[int], is_cached: bool, seed: int) -> Measured:
            seconds, num_cached = runner.run(first_token(client, prompt))
            least = len(prompt) - client.stats().page_size if options.restart else 1
            if num_cached < least if is_cached else num_cached:
                raise RuntimeError(f"{num_cached} tokens of a {'warm' if is_cached else 'cold'} prompt were cached")
            return Measured({"first token, ms": 1000 * seconds, "cached tokens": num_cached})

        runner.run(first_token(client, prompts.warm(-1)))  # fills the cache, maps memory, opens the folder
        for number in range(options.rounds):
            contenders = {
                "warm": partial(measured, prompts.warm(number), True),
                "cold": partial(measured, prompts.cold(number), False),
            }
            turns += alternate("prompt", contenders, [number])
    return turns


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name or a path to a GGUF file")
    parser.add_argument("--prompt-tokens", type=at_least_one, default=1024)
    parser.add_argument("--cached-tokens", type=at_least_one, default=960, help="without --restart")
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--max-num-batched-tokens", type=int, default=STEP_TOKENS)
    parser.add_argument("--restart", action="store_true", help="warm prompts are those of an earlier process")
    parser.add_argument("--folder", help=argparse.SUPPRESS)  # fills this folder and exits
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.json = None
    if not options.restart and options.cached_tokens >= options.prompt_tokens:
        parser.error("--cached-tokens must be less than --prompt-tokens")
    with tempfile.TemporaryDirectory(prefix="eagre-restart-") as temporary:
        folder = options.folder or (temporary if options.restart else None)
        if options.restart and not options.folder:
            again = [sys.executable, "-m", PROGRAM, *arguments, "--folder", temporary]
            subprocess.run(again, check=True)
        config = EngineConfig(
            max_num_seqs=8,
            max_num_batched_tokens=options.max_num_batched_tokens,
            compilation_cache=COMPILED,
            prefix_cache_dir=folder,
        )
        client = EngineClient(load_engine(options.model, config))
        if options.folder:
            fill_folder(client, options)
            return 0
        return finish(measure(client, options), ["warm", "cold"], options, PROGRAM, arguments)


if __name__ == "__main__":
    run(PROGRAM, main)
