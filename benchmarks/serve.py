"""Measures a whole server under load: tokens per second, time to first token and inter-token latency.

    python -m benchmarks.serve                                # starts `eagre serve`, measures, stops it
    python -m benchmarks.serve --route websocket --concurrency 16 64
    python -m benchmarks.serve --url http://127.0.0.1:8000    # measures a server that runs

The clients are a process of their own on the same machine, and take their share of the processor. `eagre bench` draws
the same loads live, for users of any server; this one has token ids as prompts and the benchmarks' table.
"""

import argparse
import contextlib
import random
import shlex
from collections.abc import Sequence
from typing import get_args

from benchmarks.serving.alternation import ServerUnderTest, add_alternation_flags, finish, under_loads
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.loads import decode
from benchmarks.serving.server_process import served_model, started_server
from server.cli.bench.load.workload import PromptKind, Route

PROGRAM = "benchmarks.serve"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--url", help="of a running server; without it one is started on a free port")
    parser.add_argument("--model", help="for the started server: a name or a path to a GGUF file")
    parser.add_argument("--server-args", default="", help="further arguments of the started server, as one string")
    parser.add_argument(
        "--concurrency", type=at_least_one, nargs="+", default=[1, 4, 16, 64], metavar="N", help="clients"
    )
    parser.add_argument("--requests", type=at_least_one, help="of each load (default: 2 a client, at least 4)")
    parser.add_argument("--prompt-tokens", type=at_least_one, default=128)
    parser.add_argument("--output-tokens", type=at_least_one, default=128)
    parser.add_argument("--prompt-kind", choices=get_args(PromptKind), default="ids")
    parser.add_argument("--route", choices=get_args(Route), default="completions")
    parser.add_argument("--connections", type=at_least_one, default=1, help="WebSockets that the clients share")
    add_alternation_flags(parser, rounds=1)
    # A running server may have the prompts of earlier runs in its prefix cache.
    parser.set_defaults(seed=random.SystemRandom().getrandbits(32))
    options = parser.parse_args(arguments)
    if options.url and (options.model or options.server_args):
        parser.error("--model and --server-args are for a server that is started here, not for --url")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    loads = [
        decode(concurrency).with_options(
            num_requests=options.requests or max(4, 2 * concurrency), num_prompt_tokens=options.prompt_tokens,
            num_output_tokens=options.output_tokens, num_connections=options.connections, route=options.route,
            prompt_kind=options.prompt_kind,
        )
        for concurrency in options.concurrency
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        model = ["--model", options.model] if options.model else []
        flags = [*model, *shlex.split(options.server_args)]
        url = options.url.rstrip("/") if options.url else stack.enter_context(started_server(flags))
        server = ServerUnderTest(url, served_model(url))
        turns = under_loads({"server": server}, loads, options, range(options.rounds), random.Random(options.seed))
    return finish(turns, ["server"], options, PROGRAM, arguments)


if __name__ == "__main__":
    run(PROGRAM, main)
