"""Measures disaggregated prefill: prompts on one server, answers on another, whose KV pages come over TCP.

    python -m benchmarks.fleet.disaggregation

Starts both servers with one thread each. In turn a new prompt goes to the second server alone, and another one first to
the first server for a single token and then to the second, which asks the first for its pages. Exits with 1 where an
answer has other tokens than the first server gives by itself, or where no pages came.
"""

import asyncio
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.fleet.replicas import FLAGS, ONE_THREAD
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.server_process import ServerProcess, free_port
from benchmarks.serving.stream_client import StreamClient, new_session, stream_completion
from server.cli.bench.load.workload import WORDS

PROGRAM = "benchmarks.fleet.disaggregation"
KEY = "a-secret-of-these-two-servers"
NUM_OUTPUT_TOKENS = 16
SETTLE_S = 1.0  # in which pages are written, and the second server has request which ones are new


def servers(folder: Path, num_pages: int) -> list[ServerProcess]:
    """The server for prompts and the one for answers, not started yet."""
    peer = f"127.0.0.1:{free_port()}"
    prefix = [*ONE_THREAD, f"EAGRE_PREFIX_CACHE_KEY={KEY}"]
    flags = [*FLAGS, "--num-pages", str(num_pages), "--prefix-cache-dir"]
    prompts = [*flags, str(folder / "prompts"), "--prefix-cache-listen", peer]
    answers = [*flags, str(folder / "answers"), "--prefix-cache-peers", peer]
    return [ServerProcess.eagre(prompts, prefix=prefix), ServerProcess.eagre(answers, prefix=prefix)]


async def compare(prompts: str, answers: str, num_rounds: int, num_words: int) -> list[str]:
    """Asks both servers, prints the figures, and returns what was wrong."""
    draw, failures = random.Random(0), []
    alone, disaggregated = list[StreamClient](), list[StreamClient]()

    def body() -> dict[str, Any]:
        prompt = " ".join(draw.choices(WORDS, k=num_words))
        return {"prompt": prompt, "max_tokens": NUM_OUTPUT_TOKENS, "ignore_eos": True, "temperature": 0}

    async with new_session() as session:
        for _ in range(num_rounds):
            alone.append(await stream_completion(session, answers, body()))
            request = body()
            await stream_completion(session, prompts, {**request, "max_tokens": 1})
            await asyncio.sleep(SETTLE_S)
            disaggregated.append(await stream_completion(session, answers, request))
            reference = await stream_completion(session, prompts, request)
            if disaggregated[-1].text != reference.text:
                failures.append(
                    f"{disaggregated[-1].text!r} came from the pages of the server that says {reference.text!r}"
                )
    num_tokens = sum(answer.usage["prompt_tokens"] for answer in disaggregated)
    num_transferred = sum(answer.num_cached_tokens for answer in disaggregated)
    first_alone, first_disaggregated = (
        median(answer.first_text for answer in each if answer.first_text is not None) for each in (alone, disaggregated)
    )
    print(
        f"prompts of {num_tokens // num_rounds} tokens: {num_transferred / num_tokens:.1%} came from the other server\n"
        f"first text after {1000 * first_alone:,.0f} ms alone and {1000 * first_disaggregated:,.0f} ms where they came "
        f"({first_disaggregated / first_alone:.1%})",
        flush=True,
    )
    return failures if num_transferred else [*failures, "no pages came"]


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--words", type=int, default=1000, help="of a prompt, about one token each")
    parser.add_argument("--num-pages", type=int, default=512, help="of each server, 16 tokens each")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = [stack.enter_context(server).url for server in servers(folder, options.num_pages)]
        failures = asyncio.run(compare(urls[0], urls[1], options.rounds, options.words))
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    run(PROGRAM, main)
