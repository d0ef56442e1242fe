"""Measures what a streamed token costs the server between an engine that computes nothing and the socket.

    python -m benchmarks.fanout
    python -m benchmarks.fanout --kinds all --streams 64 --ahead 1
    python -m benchmarks.fanout --fastapi PYTHON
    python -m benchmarks.fanout --list-kinds

The kinds of streams alternate: plain server-sent events (SSE, a connection for each stream), WebSockets (64 streams on
each), and with `--kinds` several choices in one stream, resumable streams, Responses and Messages; the last column is a
kind's processor time a token divided by that of plain SSE. With `--fastapi` the same is measured of a FastAPI server;
PYTHON is that of an environment with fastapi and uvicorn. Processor time is that of the server's process, so that
neither the clients nor other processes count; that of the clients has a column of its own.

Each kind is measured with short answers and with long ones, and the difference is divided by the difference of tokens,
so that the cost of a token and the cost of a request are two figures.

A stream's tokens come one in a turn of the asyncio loop, which is an engine that the server keeps up with, or several:
an engine that is ahead of it (`--ahead`). Each token has an event of its own either way.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate
from benchmarks.serving.command import new_parser, run, write_figures
from benchmarks.serving.resources import time_of
from benchmarks.serving.server_process import ServerProcess
from benchmarks.serving.table import Row, Turn, number, print_columns, rows_of

STREAMS_ON_A_SOCKET = 64
PROGRAM = "benchmarks.fanout"
PLAIN, WEBSOCKET = "SSE", "WebSocket"
TOKEN_COST = "us per token"
SHORT_TOKENS = 20  # of a stream's short answer
MIN_TOKENS, TOTAL_TOKENS = 200, 40_000  # of a stream's long answer; of all together, about


class Run(NamedTuple):
    tokens: int
    events: int
    seconds: float
    processor: float  # seconds, of the server
    client: float  # seconds, of this process


def cost_between(short: Run, long: Run, num_streams: int) -> dict[str, float]:
    """The figures of a kind, from a run with short answers and one with long ones."""
    num_tokens = long.tokens - short.tokens
    token = (long.processor - short.processor) / num_tokens
    return {
        "tokens/s": num_tokens / max(long.seconds - short.seconds, 1e-9),
        TOKEN_COST: 1e6 * token,
        "us per request": 1e6 * (short.processor - token * short.tokens) / num_streams,
        "clients' us per token": 1e6 * (long.client - short.client) / num_tokens,
        "events per token": (long.events - short.events) / num_tokens,
    }


class Kind(NamedTuple):
    path: str
    body: dict[str, Any]
    length: str  # the field that limits the answer
    event: bytes  # what each event with text contains once
    num_choices: int = 1


_COMPLETION: dict[str, Any] = {"prompt": "the tide", "stream": True, "temperature": 0, "ignore_eos": True}
COMPARED = (PLAIN, WEBSOCKET)  # that the other server has too
KINDS = {
    PLAIN: Kind("/v1/completions", _COMPLETION, "max_tokens", b'data: {"id"'),
    "SSE, 4 choices": Kind("/v1/completions", {**_COMPLETION, "n": 4}, "max_tokens", b'data: {"id"', num_choices=4),
    "SSE, resumable": Kind("/v1/completions", {**_COMPLETION, "resumable": True}, "max_tokens", b'data: {"id"'),
    "Responses": Kind(
        "/v1/responses",
        {"input": "the tide", "stream": True, "store": False},
        "max_output_tokens",
        b"event: response.output_text.delta",
    ),
    "Messages": Kind(
        "/v1/messages",
        {"messages": [{"role": "user", "content": "the tide"}], "stream": True},
        "max_tokens",
        b"event: content_block_delta",
    ),
}


async def _read_events(port: int, kind: Kind, num_tokens: int) -> int:
    """The events of one stream, with no more work than finding their ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({**kind.body, kind.length: num_tokens}).encode()
    head = f"POST {kind.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    num_events, last = 0, b""
    while data := await reader.read(1 << 16):
        data = last + data
        num_events += data.count(kind.event) - last.count(kind.event)
        last = data[-len(kind.event) - 16 :]
    assert last.endswith((b"\r\n0\r\n\r\n", b"[DONE]\n\n")), last
    writer.close()
    return num_events


async def _read_messages(session: aiohttp.ClientSession, port: int, num_streams: int, num_tokens: int) -> int:
    num_deltas = num_done = 0
    async with session.ws_connect(f"http://127.0.0.1:{port}/v1/stream", max_msg_size=0) as socket:
        for number in range(num_streams):
            request = {"type": "generate", "id": str(number), "prompt": "the tide", "max_tokens": num_tokens}
            await socket.send_json({**request, "temperature": 0, "ignore_eos": True})
        while num_done < num_streams:
            message = await socket.receive_str()
            assert '"error"' not in message, message
            num_deltas += '"type":"delta"' in message
            num_done += '"type":"done"' in message or '"type": "done"' in message
    return num_deltas


async def _run(server: ServerProcess, name: str, num_streams: int, num_tokens: int) -> Run:
    before, start, own = time_of(server.pid) or 0.0, time.perf_counter(), time.process_time()
    port, kind = int(server.url.rpartition(":")[2]), KINDS.get(name)
    if kind is not None:
        counts = await asyncio.gather(*(_read_events(port, kind, num_tokens) for _ in range(num_streams)))
    else:
        async with aiohttp.ClientSession() as session:
            shares = [
                min(STREAMS_ON_A_SOCKET, num_streams - first) for first in range(0, num_streams, STREAMS_ON_A_SOCKET)
            ]
            counts = await asyncio.gather(*(_read_messages(session, port, share, num_tokens) for share in shares))
    seconds = time.perf_counter() - start
    processor, client = (time_of(server.pid) or 0.0) - before, time.process_time() - own
    num_choices = 1 if kind is None else kind.num_choices
    return Run(num_tokens * num_streams * num_choices, sum(counts), seconds, processor, client)


def measure(server: ServerProcess, kind: str, num_streams: int) -> Measured:
    num_tokens = max(MIN_TOKENS, TOTAL_TOKENS // num_streams)
    short, long = (asyncio.run(_run(server, kind, num_streams, each)) for each in (SHORT_TOKENS, num_tokens))
    return Measured(cost_between(short, long, num_streams))


def print_costs(rows: Sequence[Row], contenders: Sequence[str]) -> None:
    """One line for each load and kind, with the medians of its figures."""
    loads = dict.fromkeys(row.load for row in rows)
    figures = [row.figure for row in rows if row.load == next(iter(loads))]
    lines = [["streams", "kind", *figures, f"to {PLAIN}"]]
    for load in loads:
        of_load = {row.figure: row for row in rows if row.load == load}
        for name in contenders:
            ratio = of_load[TOKEN_COST].ratio(name, PLAIN)
            medians = [of_load[figure].median(name) for figure in figures]
            cells = ["-" if value is None else number(value) for value in medians]
            lines.append([load, name, *cells, "-" if ratio is None else f"{ratio:.2f}"])
    print_columns(lines)


def server_of(command: Sequence[str], ahead: int) -> ServerProcess:
    return ServerProcess("Eagre", lambda port: [*command, str(port), str(ahead)])


def main(arguments: Sequence[str]) -> int:
    names = (*KINDS, WEBSOCKET)
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--fastapi", metavar="PYTHON", help="of an environment with fastapi and uvicorn")
    parser.add_argument("--ahead", default="1,16", help="numbers of a stream's tokens in a turn of the loop")
    parser.add_argument("--streams", default="1,64,256,1024", help="numbers of streams at once")
    parser.add_argument("--kinds", default=";".join(COMPARED), help=f"all, or among {'; '.join(names)}")
    parser.add_argument("--list-kinds", action="store_true", help="print the kinds and exit")
    add_alternation_flags(parser, rounds=2)
    options = parser.parse_args(arguments)
    if options.list_kinds:
        print("\n".join(names))
        return 0
    kinds = list(names) if options.kinds == "all" else options.kinds.split(";")
    if unknown := set(kinds) - {*names}:
        parser.error(f"--kinds names {', '.join(sorted(unknown))}; it may name {'; '.join(names)}")
    commands: dict[str, Sequence[str]] = {"": [sys.executable, "-m", "benchmarks.fanout.eagre_server"]}
    if options.fastapi:
        commands["FastAPI "] = [options.fastapi, str(Path(__file__).with_name("fastapi_server.py"))]
    turns, contenders = list[Turn](), dict[str, Callable[[int], Measured]]()

    def contender(server: ServerProcess, kind: str, num_streams: int) -> Callable[[int], Measured]:
        return lambda _: measure(server, kind, num_streams)

    for ahead in map(int, options.ahead.split(",")):
        with contextlib.ExitStack() as stack:
            servers = {name: stack.enter_context(server_of(command, ahead)) for name, command in commands.items()}
            for num_streams in map(int, options.streams.split(",")):
                contenders = {
                    f"{name}{kind}": contender(server, kind, num_streams)
                    for name, server in servers.items() for kind in kinds if not name or kind in COMPARED
                }  # fmt: skip
                load = f"{num_streams}, {ahead} ahead"
                turns += alternate(load, contenders, range(options.rounds), max_others=options.max_others)
    rows = rows_of(turns, list(contenders))
    print_costs(rows, list(contenders))
    write_figures(options.json, PROGRAM, arguments, table=[row.to_dict() for row in rows], turns=turns)
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
