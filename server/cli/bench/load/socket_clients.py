"""Clients over WebSockets at /v1/stream, which may share a socket."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import orjson

from server.cli.bench.load.http_clients import RequestFailed, take_usage
from server.cli.bench.load.trace import Arrival, Trace
from server.cli.bench.load.workload import Workload
from server.cli.client.address import root_of

_MAX_QUOTED = 300  # characters of an error


class StreamSocket:
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
            message = orjson.dumps({**body, "type": "generate", "id": request_id}).decode()
            trace.sent = time.perf_counter()
            await self._socket.send_str(message)
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
        except (aiohttp.ClientError, OSError, orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            for _, done in self._open.values():
                if not done.done():
                    done.set_exception(RequestFailed(reason))

    def _take(self, now: float, event: dict[str, Any]) -> None:
        """Records one event; events of requests that timed out are dropped."""
        if event.get("id") not in self._open:
            return
        trace, done = self._open[event["id"]]
        match event["type"]:
            case "delta":
                # A delta without tokens has the rest of a text whose tokens were counted before.
                if num_tokens := len(event["token_ids"]):
                    trace.arrivals.append(Arrival(now, num_tokens))
            case "start":
                trace.num_prompt_tokens = (event.get("usage") or {}).get("prompt_tokens")
            case "done":
                num_prompt_tokens = trace.num_prompt_tokens
                trace.finish_reason = event["finish_reason"]
                take_usage(trace, event["usage"])
                trace.num_prompt_tokens = trace.num_prompt_tokens or num_prompt_tokens
                if not done.done():
                    done.set_result(None)
            case "error" if not done.done():
                done.set_exception(RequestFailed(f"error event: {event['error']}"[:_MAX_QUOTED]))
            case _:
                pass


class SocketClients:
    """Sends requests over one or several WebSockets, in turn."""

    def __init__(self, sockets: Sequence[StreamSocket]) -> None:
        self._sockets = sockets
        self._turn = itertools.count()

    @classmethod
    async def connect(cls, session: aiohttp.ClientSession, workload: Workload) -> SocketClients:
        """Opens the WebSockets; raises aiohttp.ClientError or OSError where one cannot be opened."""
        url = root_of(workload.url) + "/v1/stream"
        sockets = [await session.ws_connect(url, max_msg_size=0) for _ in range(workload.num_connections)]
        return cls([StreamSocket(socket) for socket in sockets])

    async def run(self, trace: Trace, body: dict[str, Any]) -> None:
        """Sends one request and records its answer in `trace`.

        Raises RequestFailed where the server refused it or closed the socket, aiohttp.ClientError or OSError where it
        broke.
        """
        turn = next(self._turn)
        await self._sockets[turn % len(self._sockets)].run(str(turn), trace, body)

    async def close(self) -> None:
        for socket in self._sockets:
            await socket.close()
