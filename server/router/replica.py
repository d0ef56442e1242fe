"""The HTTP client of one server behind the router: its health, its open requests, and the prefixes it has seen."""

from __future__ import annotations

import asyncio
import errno
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import aiohttp
import orjson
from yarl import URL

from server.admission.probes import READINESS
from server.router.records.prefixes import PrefixIndex

UNIX = "unix:"
CONNECT_S = 5.0  # a server that runs accepts at once
HEALTH_S = 5.0  # for the answer to a health check; a busy server may take a while
# A server that leaves so many health checks in a row unanswered is frozen: the requests open on it fail. Checks are
# counted, and not seconds, so that a router that was frozen itself does not blame its replicas.
MOST_UNANSWERED = 3
# So many health checks in a row may find no route to the machine. One without power never ends its connections, and the
# network refuses new ones for it, often at once; a route that was lost for a moment comes back sooner.
MOST_UNREACHABLE = 30
_NO_ROUTE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT})
# A Unix socket whose backlog is full refuses connections, which asyncio finds out at the first write. A network would
# let the check wait, so this one waits too: a server that is only busy accepts meanwhile, a frozen one never does.
_BACKLOG_FULL = errno.ENOTCONN
# The router itself can open no further connection, which says nothing of the replica.
_OWN_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
IDLE_S = 20.0  # after which an unused connection is closed, before the server closes it at any moment
_MANY_BYTES = 1 << 18  # of a body
_MAX_READINESS = 1 << 20  # bytes of an answer about readiness
MAX_BUFFERED = 1 << 26  # bytes of an answer that is read whole, however long it says that it is


Preparing: TypeAlias = Callable[["Replica"], AbstractAsyncContextManager[None]]


def unprepared(_: Replica) -> AbstractAsyncContextManager[None]:
    """The context in which a replica becomes ready that lacks nothing."""
    return nullcontext()


class ReplicaState(StrEnum):
    """The state of a replica by its last health check."""

    STARTING = "starting"  # it has not answered yet
    READY = "ready"
    NOT_READY = "not_ready"  # it answers that it loads or drains, or does not answer
    GONE = "gone"  # it refuses connections


class ReplicaLost(Exception):
    """A replica could not be reached, or broke off before the end of its answer."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        """`was_sent`: whether the request may have reached it."""
        super().__init__(reason)
        self.was_sent = was_sent


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A client's request as it is sent to a replica, and again to another one."""

    method: str
    path: str  # with its query
    headers: Mapping[str, str]
    body: bytes | None = None
    fields: Mapping[str, str | bool] = field(default_factory=dict)  # of the body, those that decide about the replica
    blocks: tuple[int, ...] = ()  # of its prompt


class Replica:
    """A server at `unix:/path`, `http://host:port` or `https://host:port`. Made in a running event loop."""

    def __init__(self, name: str, address: str, preparing: Preparing = unprepared) -> None:
        """
        Args:
            preparing: a context in which the replica becomes ready, and before which it is given what it lacks; it may
                raise ReplicaLost.

        Raises ValueError: the address has another form.
        """
        connector: aiohttp.BaseConnector
        if address.startswith(UNIX):
            connector = aiohttp.UnixConnector(address.removeprefix(UNIX), limit=0, keepalive_timeout=IDLE_S)
            self._url = "http://localhost"
        elif address.startswith(("http://", "https://")):
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
            self._url = address.rstrip("/")
        else:
            raise ValueError(f"the address is {address!r}; it must begin with {UNIX}, http:// or https://")
        self.name = name
        self.address = address
        self.state = ReplicaState.STARTING
        self.detail = "nobody has answered there yet"
        self.is_leaving = False  # it gets no new requests, and is removed once none is open on it
        self.has_been_ready = False
        self.num_open = 0  # requests
        self.num_unanswered = 0  # health checks in a row
        self._num_unreachable = 0  # likewise
        self._preparing = preparing
        self._pending: set[asyncio.Timeout] = set()  # of requests whose answers have not begun
        self._answers: set[aiohttp.ClientResponse] = set()  # that are being read
        self.prefixes = PrefixIndex()
        # Answers come when the model has them, so only connecting has a deadline.
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    @property
    def is_usable(self) -> bool:
        """Whether it may get new requests."""
        return self.state is ReplicaState.READY and not self.is_leaving

    def num_cached_blocks(self, blocks: Sequence[int]) -> int:
        """How many blocks at the beginning of a prompt are probably in its prefix cache."""
        return self.prefixes.match(blocks)

    @contextmanager
    def track(self, blocks: Sequence[int] = ()) -> Iterator[None]:
        """Counts a request as open while the context lasts, and the prompt's blocks as cached from now on."""
        self.num_open += 1
        self.prefixes.add(blocks)
        try:
            yield
        finally:
            self.num_open -= 1

    @asynccontextmanager
    async def request(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request and gives its answer, whose body is still to be read. Leaving the context breaks it off.

        `path` has its query, percent-encoded. Raises ReplicaLost where there was no answer.
        """
        try:
            async with asyncio.timeout(None) as deadline:
                self._pending.add(deadline)
                try:
                    answer = await self._session.request(
                        method, URL(self._url + path, encoded=True), headers=headers,
                        data=body if body is None or len(body) < _MANY_BYTES else io.BytesIO(body),  # sent in pieces
                        allow_redirects=False,
                    )  # fmt: skip
                finally:
                    self._pending.discard(deadline)
        except aiohttp.ClientConnectorError as error:
            if error.errno not in _OWN_SHORTAGE and self.state is not ReplicaState.STARTING:
                self._set_state(ReplicaState.GONE, str(error))
            raise ReplicaLost(f"{self.name} cannot be reached", was_sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or "it is silent"
            raise ReplicaLost(f"{self.name} gave no answer: {reason}", was_sent=True) from error
        self._answers.add(answer)
        try:
            yield answer
        finally:
            self._answers.discard(answer)
            answer.close()  # does nothing where the answer was read to its end, and the connection is used again

    def send(self, proxied: ProxyRequest) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """`request` of a client's request."""
        return self.request(proxied.method, proxied.path, headers=proxied.headers, body=proxied.body)

    async def check_health(self) -> None:
        """Requests the replica's readiness and notes its state. Fails the open requests of one that is frozen, or whose
        machine is gone.
        """
        self._fail_ended()
        try:
            async with asyncio.timeout(HEALTH_S):
                async with self.request("GET", READINESS, headers={}) as answer:
                    status, fields = answer.status, orjson.loads(await read_whole(answer, self.name, _MAX_READINESS))
        except ReplicaLost as lost:
            number = lost.__cause__.errno if isinstance(lost.__cause__, OSError) else None
            if number in _OWN_SHORTAGE:
                return
            if number == _BACKLOG_FULL:
                await asyncio.sleep(HEALTH_S)
                self._note_unanswered("it accepts nobody")
                return
            if isinstance(lost.__cause__, aiohttp.ConnectionTimeoutError):
                self._note_unanswered("no connection")
                return
            if lost.was_sent:  # a server that runs answers; whether this one does, the next check shows
                self._set_state(ReplicaState.NOT_READY, str(lost))
            elif number in _NO_ROUTE:
                self._num_unreachable += 1
                if self._num_unreachable >= MOST_UNREACHABLE:
                    self._fail_open_requests()
                return
        except TimeoutError:
            self._note_unanswered("no answer")
            return
        except ValueError as error:
            self._set_state(ReplicaState.NOT_READY, f"no sense in its answer: {error}")
        else:
            detail = str(fields.get("detail", "")) if isinstance(fields, dict) else ""
            if status != 200:
                self._set_state(ReplicaState.NOT_READY, detail)
            elif self.state is ReplicaState.READY:
                self.detail = detail
            else:
                await self._become_ready(detail)
        self.num_unanswered = self._num_unreachable = 0

    @asynccontextmanager
    async def connect_websocket(
        self, path: str, headers: Mapping[str, str], protocols: Sequence[str], heartbeat: float, max_message: int
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse[bool]]:
        """Opens a WebSocket with pings every `heartbeat` seconds, closed with the context or by a long message.

        Raises aiohttp.ClientError or OSError: it was not opened within `HEALTH_S`.
        """
        async with asyncio.timeout(HEALTH_S):
            socket = await self._session.ws_connect(
                URL(self._url + path, encoded=True), headers=headers, protocols=protocols,
                heartbeat=heartbeat, max_msg_size=max_message, compress=0,
            )  # fmt: skip
        async with socket:
            yield socket

    async def close(self) -> None:
        """Closes all connections, which fails the open requests."""
        await self._session.close()

    def distrust(self, detail: str) -> None:
        """Gives the replica no new requests until it has been prepared again, because it may lack something."""
        if self.state is ReplicaState.READY:
            self._set_state(ReplicaState.NOT_READY, detail)

    async def _become_ready(self, detail: str) -> None:
        try:
            async with self._preparing(self):
                self._set_state(ReplicaState.READY, detail)
        except ReplicaLost as lost:
            self._set_state(ReplicaState.NOT_READY, str(lost))

    def _note_unanswered(self, what: str) -> None:
        self.num_unanswered += 1
        self._set_state(
            ReplicaState.NOT_READY, f"{what} within {HEALTH_S:g} s, {self.num_unanswered} times"
        )  # fmt: skip
        if self.num_unanswered >= MOST_UNANSWERED:
            self._fail_open_requests()

    def _fail_open_requests(self) -> None:
        """Ends every request with `ReplicaLost`, because the system holds connections to a dead machine open."""
        now = asyncio.get_running_loop().time()
        for deadline in self._pending:
            deadline.reschedule(now)
        for answer in self._answers:
            answer.content.set_exception(aiohttp.ClientPayloadError("the server is silent"))

    def _fail_ended(self) -> None:
        """Fails answers whose connection has ended while aiohttp leaves their readers waiting, as it does where what
        came was not HTTP.
        """
        for answer in self._answers:
            connection, content = answer.connection, answer.content
            is_waiting = not content.is_eof() and content.exception() is None
            if is_waiting and connection is not None and connection.transport is None:
                content.set_exception(aiohttp.ClientPayloadError("what came is no HTTP"))

    def _set_state(self, state: ReplicaState, detail: str) -> None:
        if ReplicaState.GONE in (state, self.state):
            self.prefixes.clear()  # the server that listens there next starts with an empty cache
        self.state, self.detail = state, detail
        self.has_been_ready |= state is ReplicaState.READY


async def read_piece(answer: aiohttp.ClientResponse, replica: str) -> bytes:
    """The next bytes of a body; empty at its end. Raises `ReplicaLost` where the connection ended before."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise ReplicaLost(f"{replica} broke off in its answer", was_sent=True) from error


async def read_whole(answer: aiohttp.ClientResponse, replica: str, max_bytes: int = MAX_BUFFERED) -> bytes:
    """A whole body. Raises `ReplicaLost` where it breaks off or is longer than `max_bytes`."""
    body = bytearray()
    while piece := await read_piece(answer, replica):
        body += piece
        if len(body) > max_bytes:
            raise ReplicaLost(f"no sense in the answer of {replica}: more than {max_bytes} bytes", was_sent=True)
    return bytes(body)
