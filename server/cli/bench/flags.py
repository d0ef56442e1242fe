"""The flags of `eagre bench`. A flag that `vllm bench serve` has too also takes that name."""

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

EXAMPLES = """examples:
  eagre bench
  eagre bench --url http://127.0.0.1:8000 --concurrency 1 4 16 --html report.html
  eagre bench --url http://10.0.0.5:8000 --rate 2 4 8 --duration 60 --route chat
  eagre bench --url http://127.0.0.1:8000 --compare http://127.0.0.1:8001 --rounds 5
  eagre bench --dataset prompts.jsonl --concurrency 8 --json figures.json

The server is any that speaks OpenAI's API. Prompts are random words, about one token each, and
answers have --output-tokens tokens if the server knows `ignore_eos`. Ctrl-C ends the running
load; the figures until then are printed and written. The load generator needs processor time
too, which the server lacks if both run on one machine.
"""

_MAX_NUMBER = 10**9


def add_flags(command: argparse.ArgumentParser) -> None:
    """Adds all flags except `--api-key`."""
    where = command.add_argument_group("the server")
    where.add_argument(
        "--url", "--base-url", default=os.environ.get("EAGRE_URL"),
        help="its address (EAGRE_URL; default: port 8000 here)",
    )  # fmt: skip
    where.add_argument("--model", help="the model to ask for (default: the first that the server lists)")
    where.add_argument(
        "--route", choices=("completions", "chat", "websocket"), default="completions",
        help="the route: one of OpenAI's API, or Eagre's /v1/stream (default completions)",
    )  # fmt: skip
    where.add_argument(
        "--connections", type=_whole(1), default=1, metavar="N", help="number of WebSockets, which all clients share"
    )
    where.add_argument(
        "--compare", metavar="URL",
        help="a second server; the two take turns under the same loads, each request over a connection of its own",
    )  # fmt: skip
    where.add_argument("--compare-model", metavar="MODEL", help="the second server's model (default: as for the first)")
    where.add_argument("--compare-api-key", metavar="KEY", help="the second server's key; it never gets --api-key")
    load = command.add_argument_group("the load")
    load.add_argument(
        "--concurrency", "--max-concurrency", type=_whole(1), nargs="+", metavar="N",
        help="number of clients, each of which sends its next request when its last one has ended; with --rate, the "
        "limit of concurrent requests. Several numbers are measured in turn (default 1 4 16; with --rate no limit)",
    )  # fmt: skip
    load.add_argument(
        "--rate", "--request-rate", type=_positive, nargs="+", metavar="R",
        help="requests per second, at random times (Poisson), whether or not earlier ones have ended",
    )  # fmt: skip
    load.add_argument(
        "--requests", "--num-prompts", type=_whole(1), metavar="N",
        help="requests of each load (default: 4 a client and at least 8; the lines of FILE; with --rate those of 30 s)",
    )  # fmt: skip
    load.add_argument("--duration", type=_positive, metavar="S", help="seconds for which requests are sent")
    load.add_argument(
        "--input-tokens", "--random-input-len", type=_whole(1), default=128, metavar="N",
        help="tokens of a prompt (default 128)",
    )  # fmt: skip
    load.add_argument(
        "--output-tokens", "--random-output-len", type=_whole(1), default=128, metavar="N",
        help="tokens of an answer (default 128)",
    )  # fmt: skip
    load.add_argument(
        "--shared-prefix", type=_whole(0), default=0, metavar="N",
        help="tokens at the start of a prompt that are the same in all requests (default 0)",
    )  # fmt: skip
    load.add_argument(
        "--dataset", "--dataset-path", type=Path, metavar="FILE",
        help="JSONL: each line has `prompt` or `messages`, and other parameters of its request",
    )  # fmt: skip
    load.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="generate answers of full length (default: yes, except with --dataset)",
    )
    load.add_argument("--temperature", type=_from_zero, default=0.0, metavar="T", help="(default 0)")
    load.add_argument("--extra-body", metavar="JSON", help="an object with more parameters for every request")
    load.add_argument("--seed", type=_whole(0), metavar="N", help="seed of prompts and arrivals (default: random)")
    load.add_argument("--rounds", type=_whole(1), metavar="N", help="rounds of all loads (default 1; with --compare 3)")
    load.add_argument(
        "--num-warmups", type=_whole(0), default=1, metavar="N", help="short requests before the first load (default 1)"
    )
    load.add_argument(
        "--timeout", type=_positive, default=600.0, metavar="S", help="seconds for one request (default 600)"
    )
    out = command.add_argument_group("output")
    out.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    out.add_argument("--html", type=Path, metavar="FILE", help="a report with plots")


def _whole(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text[:20]) <= _MAX_NUMBER:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {_MAX_NUMBER:,}")
        return int(text)

    return number


def _from_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {_MAX_NUMBER:,}")
    return value


def _positive(text: str) -> float:
    if not (value := _from_zero(text)):
        raise argparse.ArgumentTypeError("must be above 0")
    return value
