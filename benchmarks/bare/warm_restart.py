"""Time to first token of a prompt that an earlier process has computed, beside that of a new one.

    python -m benchmarks.bare.warm_restart
    python -m benchmarks.bare.warm_restart --rounds 5 --prompt-tokens 500

The real model. A first process computes prompts with a folder for its pages, and ends. A second one is asked for them,
in turn with prompts that nobody has computed, one request at a time; all pages of the second kind come from the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from statistics import median

from benchmarks.prefix import Pair, first_token
from engine.client import EngineClient
from engine.interface.config import EngineConfig
from server.model_sources.cache_folder import cache_folder
from server.model_sources.model_store import ensure_model
from server.startup.progress import ProgressReporter
from server.startup.settings import DEFAULT_MODEL

_OPEN_SECONDS = 30.0  # for the digest of the model's files


def prompt_of(seed: str, num_tokens: int, vocab_size: int) -> list[int]:
    """Random tokens, the same in each process."""
    return random.Random(seed).choices(range(vocab_size), k=num_tokens)


async def fill(client: EngineClient, num_tokens: int, num_rounds: int) -> None:
    """Computes the prompts whose pages the next process is to find."""
    client.start(asyncio.get_running_loop())
    try:
        for index in range(num_rounds):
            await first_token(client, prompt_of(f"kept {index}", num_tokens, client.model_info.vocab_size))
        num_bytes = 0
        async with asyncio.timeout(_OPEN_SECONDS):
            while not num_bytes or client.stats().kept.num_exported_bytes > num_bytes:
                num_bytes = client.stats().kept.num_exported_bytes
                await asyncio.sleep(0.5)
    finally:
        client.shutdown()


async def measure(client: EngineClient, num_tokens: int, num_rounds: int) -> list[Pair]:
    """New prompts and kept ones in turn.

    Raises:
        RuntimeError: a new prompt was found in the cache, or a kept one was not.
    """
    client.start(asyncio.get_running_loop())
    try:
        vocab_size = client.model_info.vocab_size
        # Maps memory and wakes threads; meanwhile the folder is opened.
        await first_token(client, prompt_of("first", num_tokens, vocab_size))
        pairs = []
        for index in range(num_rounds):
            cold = await first_token(client, prompt_of(f"new {index}", num_tokens, vocab_size))
            warm = await first_token(client, prompt_of(f"kept {index}", num_tokens, vocab_size))
            if cold.num_cached_tokens or warm.num_cached_tokens + client.stats().page_size < num_tokens:
                raise RuntimeError(f"{cold.num_cached_tokens} new and {warm.num_cached_tokens} kept tokens were cached")
            pairs.append(Pair(cold, warm))
        return pairs
    finally:
        client.shutdown()


def print_pairs(pairs: Sequence[Pair]) -> None:
    """One line for each pair, and the medians."""
    print(f"{'new (ms)':>10} {'kept (ms)':>10} {'kept / new':>11}")
    for pair in pairs:
        print(f"{1e3 * pair.cold.seconds:>10.1f} {1e3 * pair.warm.seconds:>10.1f} {pair.ratio:>11.1%}")
    print(f"kept / new, median of {len(pairs)} pairs: {median(pair.ratio for pair in pairs):.1%}")


def main(arguments: Sequence[str]) -> int:
    """Fills a folder in another process and measures in this one."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bare.warm_restart",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name or a path to a GGUF file")
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="fills this folder and ends; the benchmark calls itself so")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="eagre-warm-restart-") as temporary:
        if options.folder is None:
            again = [sys.executable, "-m", "benchmarks.bare.warm_restart", *arguments, "--folder", temporary]
            subprocess.run(again, check=True)
        config = EngineConfig(
            max_num_seqs=8,
            compilation_cache=str(cache_folder() / "compiled"),
            prefix_cache_dir=options.folder or temporary,
        )
        with ProgressReporter() as progress:
            client = EngineClient.load(ensure_model(options.model, progress), config, progress)
        if options.folder is not None:
            asyncio.run(fill(client, options.prompt_tokens, options.rounds))
        else:
            print_pairs(asyncio.run(measure(client, options.prompt_tokens, options.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
