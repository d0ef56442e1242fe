"""Runs one load on one server and records a trace of each request."""

import asyncio
import random
import time
from typing import Any

import aiohttp
import orjson

from server.cli.bench.load.http_clients import HttpClients, RequestFailed
from server.cli.bench.load.report import Report
from server.cli.bench.load.socket_clients import SocketClients
from server.cli.bench.load.trace import Trace
from server.cli.bench.load.workload import Workload

# Seconds that a client waits after a failed request, if the duration alone bounds the number of requests. Without
# this pause, a server that refuses at once would get as many requests as the processor can make.
_PAUSE_AFTER_FAILURE = 0.1


class Load:
    """A run of a workload; `traces` has every request sent so far, in order, `is_cut` where a cancellation ended it."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.traces: list[Trace] = []
        self.began: float | None = None  # time.perf_counter, when connections could be made
        self.num_waiting = 0  # requests that are due, for which no client is free
        self.num_unsent = 0  # requests for which no client became free in time

    async def run(self) -> None:
        """Sends the whole workload; a trace has the error of its request. Raises what opening the WebSockets raises."""
        key = self.workload.api_key
        connector = aiohttp.TCPConnector(limit=0, force_close=not self.workload.keep_alive)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None),
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
        ) as session:
            clients: HttpClients | SocketClients
            if self.workload.route == "websocket":
                clients = await SocketClients.connect(session, self.workload)
            else:
                clients = HttpClients(session, self.workload)
            self.began = time.perf_counter()
            await (self._closed(clients) if self.workload.rate is None else self._open(clients, self.workload.rate))
            await clients.close()

    def report(self) -> Report:
        workload = self.workload
        is_length_known = workload.ignore_eos and not workload.dataset
        return Report.of(
            self.traces,
            concurrency=workload.concurrency if workload.rate is None else None,
            num_output_tokens=workload.num_output_tokens if is_length_known else None,
        )

    @property
    def is_over(self) -> bool:
        duration, began = self.workload.duration, self.began
        return duration is not None and began is not None and time.perf_counter() - began >= duration

    async def _closed(self, clients: HttpClients | SocketClients) -> None:
        bodies = self.workload.bodies()  # one iterator for all clients: each body is sent once
        is_unbounded = not self.workload.num_requests

        async def client() -> None:
            for body in bodies:
                if self.is_over:
                    return
                trace = await self._send(clients, body, None)
                if is_unbounded and trace.error is not None:
                    await asyncio.sleep(_PAUSE_AFTER_FAILURE)

        num_clients = self.workload.concurrency
        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients if is_unbounded else min(num_clients, self.workload.num_requests)):
                group.create_task(client())

    async def _open(self, clients: HttpClients | SocketClients, rate: float) -> None:
        gaps = random.Random(f"{self.workload.seed} arrivals")
        concurrency = self.workload.concurrency
        free = asyncio.Semaphore(concurrency) if concurrency else None

        async def arrive(body: dict[str, Any], due: float) -> None:
            if free is None:
                await self._send(clients, body, due)
                return
            self.num_waiting += 1
            try:
                await free.acquire()
            finally:
                self.num_waiting -= 1
            try:
                if self.is_over:
                    self.num_unsent += 1
                else:
                    await self._send(clients, body, due)
            finally:
                free.release()

        due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for body in self.workload.bodies():
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                if self.is_over:
                    break
                group.create_task(arrive(body, due))
                due += gaps.expovariate(rate)

    async def _send(self, clients: HttpClients | SocketClients, body: dict[str, Any], due: float | None) -> Trace:
        trace = Trace(due=due)
        self.traces.append(trace)
        try:
            async with asyncio.timeout(self.workload.timeout):
                await clients.run(trace, body)
        except TimeoutError:
            trace.error = f"not ended after {self.workload.timeout:g} s"
        except RequestFailed as error:
            trace.error = str(error)
        except (aiohttp.ClientError, OSError, orjson.JSONDecodeError) as error:
            trace.error = f"{type(error).__name__}: {error}"
        except (AttributeError, KeyError, TypeError) as error:
            trace.error = f"the server's answer has another shape: {type(error).__name__}: {error}"
        except asyncio.CancelledError:
            trace.is_cut = True
            raise
        finally:
            trace.ended = time.perf_counter()
        return trace
