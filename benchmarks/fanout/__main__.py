"""What does a streamed token cost between an engine that emits at once and the socket?

    python -m benchmarks.fanout --fastapi PYTHON

Both servers are measured alternately, over server-sent events (a connection for each stream) and over WebSockets (64
streams on each). PYTHON is that of an environment with fastapi and uvicorn; without it Eagre runs alone. Processor time
is that of the server's process, so that neither the reader nor other processes count; the reader's own is shown apart.
`--kinds` also measures Eagre's other streams: several answers in one, resumable ones, Responses and Messages.

Each cell is measured with short answers and with long ones, so that what a token costs and what a request costs are
told apart.

A stream's tokens come one in a turn of the asyncio loop, which is an engine that the server keeps up with, or several:
an engine that is ahead of it. Each token has an event of its own either way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from benchmarks.serving.processor import time_of
from benchmarks.serving.server_process import ROOT, free_port

STREAMS_ON_A_SOCKET = 64
OURS = "Eagre"
SHORT_TOKENS = 20  # of a stream's short answer
MIN_TOKENS, TOTAL_TOKENS = 200, 40_000  # of a stream's long answer; of all together, about


class Run(NamedTuple):
    """So many streams with answers of one length."""

    tokens: int
    events: int
    seconds: float
    processor: float  # seconds, of the server
    reader: float  # seconds, of this process


class Cell(NamedTuple):
    """What a run with long answers has over one with short answers."""

    tokens_per_second: float
    token: float  # processor seconds of the server for each token
    request: float  # for each request, but for its tokens
    reader: float  # processor seconds of this process for each token
    events: float  # for each token

    @classmethod
    def between(cls, short: Run, long: Run, num_streams: int) -> Cell:
        num_tokens = long.tokens - short.tokens
        token = (long.processor - short.processor) / num_tokens
        return cls(
            num_tokens / max(long.seconds - short.seconds, 1e-9),
            token,
            (short.processor - token * short.tokens) / num_streams,
            (long.reader - short.reader) / num_tokens,
            (long.events - short.events) / num_tokens,
        )


class Kind(NamedTuple):
    """A way to ask for a stream of server-sent events."""

    path: str
    body: dict[str, Any]
    length: str  # the field that limits the answer
    event: bytes  # what each event of an answer's text has once
    num_answers: int = 1


_COMPLETION: dict[str, Any] = {"prompt": "the tide", "stream": True, "temperature": 0, "ignore_eos": True}
WEBSOCKET = "WebSocket"
COMPARED = ("SSE", WEBSOCKET)  # that the other server has too
KINDS = {
    "SSE": Kind("/v1/completions", _COMPLETION, "max_tokens", b'data: {"id"'),
    "SSE, 4 answers": Kind("/v1/completions", {**_COMPLETION, "n": 4}, "max_tokens", b'data: {"id"', num_answers=4),
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
    """The deltas of the streams of one socket."""
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


async def _run(port: int, pid: int, transport: str, num_streams: int, num_tokens: int) -> Run:
    before, start, own = time_of(pid) or 0.0, time.perf_counter(), time.process_time()
    kind = KINDS.get(transport)
    if kind is not None:
        counts = await asyncio.gather(*(_read_events(port, kind, num_tokens) for _ in range(num_streams)))
    else:
        async with aiohttp.ClientSession() as session:
            shares = [
                min(STREAMS_ON_A_SOCKET, num_streams - first) for first in range(0, num_streams, STREAMS_ON_A_SOCKET)
            ]
            counts = await asyncio.gather(*(_read_messages(session, port, share, num_tokens) for share in shares))
    seconds = time.perf_counter() - start
    processor, reader = (time_of(pid) or 0.0) - before, time.process_time() - own
    num_answers = 1 if kind is None else kind.num_answers
    return Run(num_tokens * num_streams * num_answers, sum(counts), seconds, processor, reader)


async def _measure(port: int, pid: int, transport: str, num_streams: int) -> Cell:
    short = await _run(port, pid, transport, num_streams, SHORT_TOKENS)
    long = await _run(port, pid, transport, num_streams, max(MIN_TOKENS, TOTAL_TOKENS // num_streams))
    return Cell.between(short, long, num_streams)


async def _wait_ready(port: int) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/readiness"):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)


async def _compare(
    commands: dict[str, Sequence[str]], ahead: int, kinds: Sequence[str], streams: Sequence[int], rounds: int
) -> None:
    ports = {name: free_port() for name in commands}
    processes = {
        name: subprocess.Popen([*command, str(ports[name]), str(ahead)], cwd=ROOT)  # noqa: ASYNC220 - before anything is measured
        for name, command in commands.items()
    }
    try:
        for port in ports.values():
            await _wait_ready(port)
        print(f"\n{ahead} tokens of a stream in a turn of the loop:\n")
        print(
            "| transport | streams | server | tokens/s | processor µs per token | reader's | events | µs per request |"
        )
        print("|---" * 8 + "|")
        for transport in kinds:
            for num_streams in streams:
                best: dict[str, Cell] = {}
                for _ in range(rounds):
                    for name, process in processes.items():
                        if name != OURS and transport not in COMPARED:
                            continue
                        cell = await _measure(ports[name], process.pid, transport, num_streams)
                        if name not in best or cell.token < best[name].token:
                            best[name] = cell
                for name, cell in best.items():
                    token, reader, request = (1e6 * seconds for seconds in (cell.token, cell.reader, cell.request))
                    print(
                        f"| {transport} | {num_streams} | {name} | {cell.tokens_per_second:.0f} | {token:.1f} "
                        f"| {reader:.1f} | {cell.events:.2f} | {request:.0f} |"
                    )
                if len(best) == 2:
                    eagre, other = best.values()
                    print(f"| | | ratio | | {other.token / max(eagre.token, 1e-9):.1f} | | | |", flush=True)
    finally:
        for process in processes.values():
            process.terminate()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fastapi", metavar="PYTHON", help="of an environment with fastapi and uvicorn")
    parser.add_argument("--ahead", default="1,16", help="numbers of a stream's tokens in a turn of the loop")
    parser.add_argument("--streams", default="1,64,256,1024", help="numbers of streams at once")
    parser.add_argument("--rounds", type=int, default=2, help="of each cell; that of the least processor time is shown")
    parser.add_argument("--kinds", default=";".join(COMPARED), help=f"among {'; '.join((*KINDS, WEBSOCKET))}")
    options = parser.parse_args(arguments)
    kinds = options.kinds.split(";")
    if unknown := set(kinds) - {*KINDS, WEBSOCKET}:
        parser.error(f"--kinds names {', '.join(sorted(unknown))}; it may name {'; '.join((*KINDS, WEBSOCKET))}")
    commands: dict[str, Sequence[str]] = {OURS: [sys.executable, "-m", "benchmarks.fanout.eagre_server"]}
    if options.fastapi:
        commands["FastAPI"] = [options.fastapi, str(Path(__file__).with_name("fastapi_server.py"))]
    streams = [int(number) for number in options.streams.split(",")]
    for ahead in options.ahead.split(","):
        asyncio.run(_compare(commands, int(ahead), kinds, streams, options.rounds))


if __name__ == "__main__":
    main(sys.argv[1:])
