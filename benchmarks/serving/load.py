"""Closed-loop load on a server: each of N clients sends its next request when its last one has ended.

    python -m benchmarks.serving.load --url http://127.0.0.1:8000 --model smollm2-135m-instruct --concurrency 16

The clients need the processor too, and must not share an interpreter with the server that they measure, so
`measure_apart` runs them in their own process. `benchmarks.serving.trace` defines the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Literal, TypeVar, get_args

import aiohttp
import orjson

from benchmarks.serving.sse import SSEParser
from benchmarks.serving.trace import Arrival, Report, Trace

Transport = Literal["sse", "ws"]
PromptKind = Literal["ids", "text"]
T = TypeVar("T")
CHOICES = {"transport": get_args(Transport), "prompt_kind": get_args(PromptKind)}

# Words so common that each is about one token, together with the space before it.
WORDS = (
    "able about after again air all along always animal answer around back because before below better between big "
    "black book boy car change children city close cold country day door earth end every eyes face family far father "
    "feet few field fire fish food form friend game girl good great green ground group hand hard head hear help high "
    "home horse hot hour house idea island keep kind king land large late learn letter life light line list little long"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests to the server. Tokens that are not shared are random, so a prefix cache does not help with them."""

    url: str  # http://host:port
    model: str
    transport: Transport = "sse"
    concurrency: int = 1  # clients
    num_requests: int = 4  # in all
    num_prompt_tokens: int = 128  # exact for ids, approximate for text
    num_shared_tokens: int = 0  # how many tokens at the start of the prompt are the same in all requests
    num_output_tokens: int = 128
    num_connections: int = 1  # WebSockets that the clients share; with SSE each client has its own connection
    keep_alive: bool = True  # with SSE: a client uses one connection for all its requests
    return_token_ids: bool = True  # with SSE: chunks have token ids; without, a chunk counts as one token
    prompt_kind: PromptKind = "ids"
    token_ids: tuple[int, int] = (1000, 20000)  # prompts are drawn from here, the end excluded
    seed: int = 0
    timeout: float = 600.0  # seconds for one request

    def token_prompts(self) -> list[list[int]]:
        """One prompt for each request, as token ids."""
        rng = random.Random(self.seed)
        return self._prompts(lambda: rng.randrange(*self.token_ids))

    def text_prompts(self) -> list[str]:
        """One prompt for each request, as words."""
        rng = random.Random(self.seed)
        return [" ".join(words) for words in self._prompts(lambda: rng.choice(WORDS))]

    def _prompts(self, draw: Callable[[], T]) -> list[list[T]]:
        shared = [draw() for _ in range(self.num_shared_tokens)]
        num_own = self.num_prompt_tokens - self.num_shared_tokens
        return [[*shared, *(draw() for _ in range(num_own))] for _ in range(self.num_requests)]

    def bodies(self) -> Iterator[dict[str, Any]]:
        """The parameters of the requests, in the form that both transports take."""
        for prompt in self.token_prompts() if self.prompt_kind == "ids" else self.text_prompts():
            yield {
                "model": self.model,
                "prompt": prompt,
                "max_tokens": self.num_output_tokens,
                "temperature": 0,
                "ignore_eos": True,
            }


class RequestFailed(RuntimeError):
    """The server refused the request, reported an error in its stream, or ended the stream too early."""


class SSEClients:
    """Sends requests with POST /v1/completions; requests at the same time use different connections."""

    def __init__(self, session: aiohttp.ClientSession, workload: Workload) -> None:
        self._session = session
        self._url = workload.url.rstrip("/") + "/v1/completions"
        self._options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        if workload.return_token_ids:
            self._options["return_token_ids"] = True

    async def run(self, trace: Trace, body: dict[str, Any]) -> None:
        body |= self._options
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        async with self._session.post(self._url, data=orjson.dumps(body), headers=headers) as response:
            if response.status != 200:
                raise RequestFailed(f"HTTP {response.status}: {(await response.text())[:300]}")
            parser = SSEParser()
            event = b""
            # The answer is read to its end, so that the connection can be used again.
            async for chunk in response.content.iter_any():
                now = time.perf_counter()
                for event in parser.feed(chunk):
                    if event != b"[DONE]":
                        self._take(trace, now, orjson.loads(event))
        if event != b"[DONE]":
            raise RequestFailed("the stream ended without [DONE]")

    @staticmethod
    def _take(trace: Trace, now: float, event: dict[str, Any]) -> None:
        if event.get("error"):
            raise RequestFailed(f"error in the stream: {event['error']}"[:300])
        if event.get("usage"):
            trace.num_output_tokens = event["usage"]["completion_tokens"]
            trace.num_cached_tokens = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        for choice in event.get("choices", ()):
            # Without ids, a chunk with text counts as one token. So does the end of a stream without any text,
            # because a token may be only a part of a character.
            has_token = choice.get("text") or (choice.get("finish_reason") and not trace.arrivals)
            num_tokens = len(choice.get("token_ids") or ()) or int(bool(has_token))
            if num_tokens:
                trace.arrivals.append(Arrival(now, num_tokens))
            trace.finish_reason = choice.get("finish_reason") or trace.finish_reason

    async def close(self) -> None:
        """Does nothing, because no connection is kept here."""


class StreamSocket:
    """One WebSocket at /v1/stream, and the requests that share it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._open: dict[str, tuple[Trace, asyncio.Future[None]]] = {}
        self._reader = asyncio.create_task(self._read())

    async def run(self, request_id: str, trace: Trace, body: dict[str, Any]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[request_id] = (trace, done)
        try:
            if self._reader.done():
                raise RequestFailed("the socket is closed")
            await self._socket.send_str(orjson.dumps({"type": "generate", "id": request_id, **body}).decode())
            await done
        finally:
            del self._open[request_id]

    async def close(self) -> None:
        await self._socket.close()
        await self._reader

    async def _read(self) -> None:
        reason = "the socket was closed"
        try:
            async for message in self._socket:
                now = time.perf_counter()
                if message.type is aiohttp.WSMsgType.TEXT:
                    self._take(now, orjson.loads(message.data))
        except (aiohttp.ClientError, OSError, orjson.JSONDecodeError) as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            for _, done in self._open.values():
                if not done.done():
                    done.set_exception(RequestFailed(reason))

    def _take(self, now: float, event: dict[str, Any]) -> None:
        """Takes one event; events of requests that were given up are dropped."""
        if event.get("id") not in self._open:
            return
        trace, done = self._open[event["id"]]
        match event["type"]:
            case "delta":
                trace.arrivals.append(Arrival(now, len(event["token_ids"])))
            case "done":
                trace.finish_reason = event["finish_reason"]
                trace.num_output_tokens = event["usage"]["completion_tokens"]
                if not done.done():
                    done.set_result(None)
            case "error" if not done.done():
                done.set_exception(RequestFailed(f"error event: {event['error']}"[:300]))
            case _:
                pass


class WebSocketClients:
    """Sends requests over one or several WebSockets at /v1/stream, in turn."""

    def __init__(self, sockets: Sequence[StreamSocket]) -> None:
        self._sockets = sockets
        self._turn = itertools.count()

    @classmethod
    async def connect(cls, session: aiohttp.ClientSession, workload: Workload) -> WebSocketClients:
        url = workload.url.rstrip("/") + "/v1/stream"
        return cls([StreamSocket(await session.ws_connect(url)) for _ in range(workload.num_connections)])

    async def run(self, trace: Trace, body: dict[str, Any]) -> None:
        turn = next(self._turn)
        await self._sockets[turn % len(self._sockets)].run(str(turn), trace, body)

    async def close(self) -> None:
        for socket in self._sockets:
            await socket.close()


async def run_clients(workload: Workload) -> list[Trace]:
    """Sends the whole workload and returns a trace of each request; the trace of a failed one has its error.

    Raises:
        aiohttp.ClientError: the WebSockets could not be opened.
    """
    traces: list[Trace] = []
    bodies = workload.bodies()  # one iterator for all clients: each body is sent once

    async def client(transport: SSEClients | WebSocketClients) -> None:
        for body in bodies:
            trace = Trace()
            traces.append(trace)
            try:
                async with asyncio.timeout(workload.timeout):
                    await transport.run(trace, body)
            except TimeoutError:
                trace.error = f"not ended after {workload.timeout:g} s"
            except (RequestFailed, aiohttp.ClientError, OSError, orjson.JSONDecodeError) as error:
                trace.error = f"{type(error).__name__}: {error}"
            trace.ended = time.perf_counter()

    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, force_close=not workload.keep_alive)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        transport: SSEClients | WebSocketClients
        if workload.transport == "sse":
            transport = SSEClients(session, workload)
        else:
            transport = await WebSocketClients.connect(session, workload)
        await asyncio.gather(*(client(transport) for _ in range(workload.concurrency)))
        await transport.close()
    return traces


def measure(workload: Workload) -> Report:
    """Runs the workload in this process.

    Raises:
        aiohttp.ClientError: the WebSockets could not be opened.
    """
    traces = asyncio.run(run_clients(workload))
    return Report.of(traces, concurrency=workload.concurrency, num_output_tokens=workload.num_output_tokens)


def measure_apart(workload: Workload) -> Report:
    """As `measure`, but in a new process; needed if the server runs in this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, workload).result()


def parse_arguments(arguments: Sequence[str]) -> Workload:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.load", description="Load on a server, as one JSON object."
    )
    for option in dataclasses.fields(Workload):
        name = "--" + option.name.replace("_", "-")
        if option.name in ("url", "model"):
            parser.add_argument(name, required=True)
        elif option.name in CHOICES:
            parser.add_argument(name, choices=CHOICES[option.name], default=option.default)
        elif option.name == "token_ids":
            parser.add_argument(name, type=int, nargs=2, metavar=("FIRST", "END"), default=option.default)
        elif isinstance(option.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=option.default)
        else:
            parser.add_argument(name, type=type(option.default), default=option.default)
    values = vars(parser.parse_args(arguments))
    return Workload(**{**values, "token_ids": tuple(values["token_ids"])})


def main() -> int:
    workload = parse_arguments(sys.argv[1:])
    report = measure(workload)
    figures = {"workload": workload, "report": report}
    sys.stdout.buffer.write(orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return 1 if report.num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
