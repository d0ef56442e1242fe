"""Prompts computed on one server and answers on another: which pages come over TCP, and what that saves the second one.

    python -m benchmarks.fleet.apart

Starts both servers with one thread each. In turn a new prompt goes to the second server alone, and another one first to
the first server for a single token and then to the second, which asks the first for its pages. Exits with 1 where an
answer has other tokens than the first server gives by itself, or where no pages came.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from benchmarks.fleet.replicas import FLAGS
from benchmarks.fleet.streams import Answer, ask
from benchmarks.serving.command import run
from benchmarks.serving.server_process import eagre_command, free_port, running_server
from server.cli.bench.load.workload import WORDS

KEY = "a-secret-of-these-two-servers"
NUM_OUTPUT_TOKENS = 16
SETTLE_S = 1.0  # in which pages are written, and the second server has asked which ones are new


def commands(folder: Path, num_pages: int) -> tuple[tuple[list[str], str], tuple[list[str], str]]:
    """The command lines and the addresses of the server for prompts and of the one for answers."""
    peer = f"127.0.0.1:{free_port()}"
    made = []
    for name, flag in (("prompts", "--prefix-cache-listen"), ("answers", "--prefix-cache-peers")):
        port = free_port()
        flags = [*FLAGS, "--num-pages", str(num_pages), "--prefix-cache-dir", str(folder / name), flag, peer]
        environment = ["env", "EAGRE_THREADS=1", f"EAGRE_PREFIX_CACHE_KEY={KEY}"]
        made.append(([*environment, *eagre_command(port, flags)], f"http://127.0.0.1:{port}"))
    return made[0], made[1]


async def compare(prompts: str, answers: str, num_rounds: int, num_words: int) -> list[str]:
    """Asks both servers, prints the figures, and returns what was wrong."""
    draw, failures = random.Random(0), []
    alone, apart = list[Answer](), list[Answer]()

    def body() -> dict[str, Any]:
        prompt = " ".join(draw.choices(WORDS, k=num_words))
        return {"prompt": prompt, "max_tokens": NUM_OUTPUT_TOKENS, "ignore_eos": True, "temperature": 0}

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_read=120)) as session:
        for _ in range(num_rounds):
            alone.append(await ask(session, answers, body()))
            asked = body()
            await ask(session, prompts, {**asked, "max_tokens": 1})
            await asyncio.sleep(SETTLE_S)
            apart.append(await ask(session, answers, asked))
            wanted = await ask(session, prompts, asked)
            if apart[-1].text != wanted.text:
                failures.append(f"{apart[-1].text!r} came from the pages of the server that says {wanted.text!r}")
    num_tokens = sum(answer.usage["prompt_tokens"] for answer in apart)
    num_taken = sum(answer.num_cached_tokens for answer in apart)
    first_alone, first_apart = (
        median(answer.first_text for answer in each if answer.first_text is not None) for each in (alone, apart)
    )
    print(
        f"prompts of {num_tokens // num_rounds} tokens: {num_taken / num_tokens:.1%} came from the other server\n"
        f"first text after {1000 * first_alone:,.0f} ms alone and {1000 * first_apart:,.0f} ms where they came "
        f"({first_apart / first_alone:.1%})",
        flush=True,
    )
    return failures if num_taken else [*failures, "no pages came"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.apart", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--words", type=int, default=1000, help="of a prompt, about one token each")
    parser.add_argument("--num-pages", type=int, default=512, help="of each server, 16 tokens each")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {options.rounds}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = [
            stack.enter_context(running_server(command, url)).url
            for command, url in commands(folder, options.num_pages)
        ]
        failures = asyncio.run(compare(urls[0], urls[1], options.rounds, options.words))
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    run("benchmarks.fleet.apart", main)
