"""One server behind the front: where it is, how it is, and what is open on it."""

from __future__ import annotations

import asyncio
import errno
import io
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum

import aiohttp
import orjson
from yarl import URL

from server.admission.probes import READINESS
from server.router.prefixes import RememberedPrefixes

UNIX = "unix:"
CONNECT_S = 5.0  # a server that runs accepts at once
HEALTH_S = 5.0  # for an answer about its health; a busy one may take a while
# A server that has left so many looks at its health without an answer is frozen: what is open on it is given up. They
# are counted, and not the seconds, so that a front that was frozen itself does not blame its replicas.
MOST_UNANSWERED = 3
# So many looks at its health, one after the other, may find no way to its machine. One without power never ends the
# connections that it has, and the network refuses new ones in its place, often at once; a route comes back sooner.
MOST_UNREACHABLE = 30
_NO_WAY = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT})
# A Unix socket whose queue is full takes nobody in, and asyncio finds that out at the first write. A network would let
# the look wait, so this one waits too: a server that is only busy empties its queue meanwhile, a frozen one never does.
_CROWDED = errno.ENOTCONN
# The front itself has no room for a connection more, which says nothing of the replica.
_OWN_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
IDLE_S = 20.0  # after which an unused connection is closed, before the server closes it at any moment
_MANY_BYTES = 1 << 18  # of a body
_MAX_READINESS = 1 << 20  # bytes of an answer about readiness


class State(StrEnum):
    """How a replica is, as far as the front knows."""

    STARTING = "starting"  # nobody has answered there yet
    READY = "ready"
    NOT_READY = "not_ready"  # it answers that it loads or drains, or does not answer
    GONE = "gone"  # it refuses connections


class ReplicaLost(Exception):
    """A replica broke off before the end of its answer, or could not be reached."""

    def __init__(self, reason: str, *, was_asked: bool) -> None:
        """Args:
        was_asked: whether the request may have reached it.
        """
        super().__init__(reason)
        self.was_asked = was_asked


class Replica:
    """A server at `unix:/path`, `http://host:port` or `https://host:port`. Made in a running event loop."""

    def __init__(self, name: str, address: str) -> None:
        """
        Raises:
            ValueError: the address has another form.
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
        self.state = State.STARTING
        self.detail = "nobody has answered there yet"
        self.is_leaving = False  # it gets nothing new and is forgotten once nothing is open on it
        self.has_been_ready = False
        self.num_open = 0
        self.num_unanswered = 0  # looks at its health, one after the other
        self._num_unreachable = 0  # likewise
        self._asking: set[asyncio.Timeout] = set()  # of requests that have no answer yet
        self._reading: set[aiohttp.ClientResponse] = set()  # answers that have begun
        self.prefixes = RememberedPrefixes()
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
        """Whether it may get something new."""
        return self.state is State.READY and not self.is_leaving

    def num_remembered(self, blocks: Sequence[int]) -> int:
        """How many blocks at the beginning of these it has met."""
        return self.prefixes.count(blocks)

    @contextmanager
    def use(self, blocks: Sequence[int] = ()) -> Iterator[None]:
        """Counts a request as open on it while the context lasts; it is expected to remember the prompt's blocks."""
        self.num_open += 1
        self.prefixes.remember(blocks)
        try:
            yield
        finally:
            self.num_open -= 1

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request, whose body is still to be read. Leaving the context before its end breaks it off.

        Args:
            path: with the query, as the client has written them.

        Raises:
            ReplicaLost: there was no answer.
        """
        try:
            async with asyncio.timeout(None) as deadline:
                self._asking.add(deadline)
                try:
                    answer = await self._session.request(
                        method, URL(self._url + path, encoded=True), headers=headers,
                        data=body if body is None or len(body) < _MANY_BYTES else io.BytesIO(body),  # sent in pieces
                        allow_redirects=False,
                    )  # fmt: skip
                finally:
                    self._asking.discard(deadline)
        except aiohttp.ClientConnectorError as error:
            if error.errno not in _OWN_SHORTAGE:
                self.note_gone(str(error))
            raise ReplicaLost(f"{self.name} cannot be reached", was_asked=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or "it is silent"
            raise ReplicaLost(f"{self.name} gave no answer: {reason}", was_asked=True) from error
        self._reading.add(answer)
        try:
            yield answer
        finally:
            self._reading.discard(answer)
            answer.close()  # does nothing where the answer was read to its end, and the connection is used again

    async def check(self) -> None:
        """Asks the replica whether it is ready, and notes what it says.

        One that is frozen, or whose machine is gone, loses what is open on it.
        """
        self._fail_ended()
        try:
            async with asyncio.timeout(HEALTH_S):
                async with self.ask("GET", READINESS, headers={}) as answer:
                    status, told = answer.status, orjson.loads(await _read_readiness(answer))
        except ReplicaLost as lost:
            number = lost.__cause__.errno if isinstance(lost.__cause__, OSError) else None
            if number in _OWN_SHORTAGE:
                return
            if number == _CROWDED:
                await asyncio.sleep(HEALTH_S)
                self._note_unanswered("it accepts nobody")
                return
            if isinstance(lost.__cause__, aiohttp.ConnectionTimeoutError):
                self._note_unanswered("no connection")
                return
            if lost.was_asked:  # a server that runs answers; whether this one does, the next look tells
                self._note(State.NOT_READY, str(lost))
            elif number in _NO_WAY:
                self._num_unreachable += 1
                if self._num_unreachable >= MOST_UNREACHABLE:
                    self._break_off()
                return
        except TimeoutError:
            self._note_unanswered("no answer")
            return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._note(State.NOT_READY, f"no sense in its answer: {error}")
        else:
            detail = str(told.get("detail", "")) if isinstance(told, dict) else ""
            self._note(State.READY if status == 200 else State.NOT_READY, detail)
        self.num_unanswered = self._num_unreachable = 0

    def note_gone(self, reason: str) -> None:
        """Nobody listens there."""
        if self.state is not State.STARTING:
            self._note(State.GONE, reason)

    @asynccontextmanager
    async def open_socket(
        self, path: str, headers: Mapping[str, str], protocols: Sequence[str], heartbeat: float, max_message: int
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse[bool]]:
        """A WebSocket to it, which is closed with the context.

        Args:
            heartbeat: seconds between two pings.
            max_message: bytes; a longer one closes the socket with the code 1009.

        Raises:
            aiohttp.ClientError, OSError: there is none, or not within `HEALTH_S`.
        """
        async with asyncio.timeout(HEALTH_S):
            socket = await self._session.ws_connect(
                URL(self._url + path, encoded=True), headers=headers, protocols=protocols,
                heartbeat=heartbeat, max_msg_size=max_message, compress=0,
            )  # fmt: skip
        async with socket:
            yield socket

    async def close(self) -> None:
        """Breaks off everything that is open on it."""
        await self._session.close()

    def _note_unanswered(self, what: str) -> None:
        self.num_unanswered += 1
        self._note(State.NOT_READY, f"{what} within {HEALTH_S:g} s, {self.num_unanswered} times")
        if self.num_unanswered >= MOST_UNANSWERED:
            self._break_off()

    def _break_off(self) -> None:
        """Ends every request to it with `ReplicaLost`. Its connections cannot tell: the system holds them open."""
        now = asyncio.get_running_loop().time()
        for deadline in self._asking:
            deadline.reschedule(now)
        for answer in self._reading:
            answer.content.set_exception(aiohttp.ClientPayloadError("the server is silent"))

    def _fail_ended(self) -> None:
        """Ends answers whose connection has ended while aiohttp leaves their readers waiting: it does so where what
        came was no HTTP.
        """
        for answer in self._reading:
            connection, content = answer.connection, answer.content
            is_waiting = not content.is_eof() and content.exception() is None
            if is_waiting and connection is not None and connection.transport is None:
                content.set_exception(aiohttp.ClientPayloadError("what came is no HTTP"))

    def _note(self, state: State, detail: str) -> None:
        if State.GONE in (state, self.state):
            self.prefixes.forget()  # whoever listens there next starts with an empty cache
        self.state, self.detail = state, detail
        self.has_been_ready |= state is State.READY


async def _read_readiness(answer: aiohttp.ClientResponse) -> bytes:
    """
    Raises:
        ValueError: it is too long to be one.
    """
    body = bytearray()
    while piece := await answer.content.readany():
        body += piece
        if len(body) > _MAX_READINESS:
            raise ValueError(f"it is longer than {_MAX_READINESS} bytes")
    return bytes(body)
