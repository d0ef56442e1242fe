"""TLS handshakes of a server (RFC 8446, section 4), counted and with a deadline.

asyncio can listen with TLS itself, but it tells a server of a connection only when its handshake is done: clients that
begin one and fall silent would be counted by nobody.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from server.admission.loop_throttle import LoopThrottle
from server.http.transport.aiohttp_internals import (
    TLS_BUFFER_BYTES,
    limit_tls_buffers,
    untie_error,
    untie_transport,
)

HANDSHAKE_S = 10.0  # that a handshake may take
COMPUTED_AT_ONCE = 2  # messages of clients, in one turn of the loop: one takes about a millisecond, for a signature


class Handshakes:
    """The handshakes of one server that have begun and not ended."""

    def __init__(self, context: ssl.SSLContext) -> None:
        limit_tls_buffers()
        self._context = context
        # The newest first: behind a crowd from its own address, a probe would else wait for as long as all of them
        # take, and where that is longer than the deadline, every handshake would be computed for nothing.
        self._turns = LoopThrottle(COMPUTED_AT_ONCE, newest_first=True)
        self._running: set[asyncio.Task[None]] = set()

    def start(
        self,
        transport: asyncio.Transport,
        owner: str,
        make_protocol: Callable[[], asyncio.Protocol],
        on_failed: Callable[[], None],
    ) -> None:
        """Begins the handshake of a new connection.

        Args:
            owner: the client, by its address; clients take turns.
            make_protocol: called when the handshake is done; what it returns has the connection from then on.
            on_failed: called when the handshake has ended otherwise, and the connection with it.
        """

        def end_if_cancelled(task: asyncio.Task[None]) -> None:  # perhaps before it began
            if task.cancelled():
                _end(transport)
                on_failed()

        transport.pause_reading()  # what comes now is for the handshake, which begins with the next turn of the loop
        task = asyncio.create_task(self._shake(transport, owner, make_protocol, on_failed))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(end_if_cancelled)

    async def close(self) -> None:
        """Ends the handshakes, and with them their connections."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _shake(
        self,
        transport: asyncio.Transport,
        owner: str,
        make_protocol: Callable[[], asyncio.Protocol],
        on_failed: Callable[[], None],
    ) -> None:
        loop, waiting, in_turn = asyncio.get_running_loop(), _Waiting(), _InTurn(transport, self._turns, owner)
        try:
            loop.call_soon(in_turn.begin)  # when asyncio has set its protocol, and before it reads
            tls = await loop.start_tls(
                transport, waiting, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
            in_turn.end()
            if tls is not None and not waiting.is_lost:
                waiting.hand_over(tls, make_protocol())
                return
        except OSError as error:
            # A failed handshake is the client's affair: whoever looks for open ports makes dozens of them.
            untie_error(error)
        except BaseException:
            _end(transport)
            on_failed()
            raise
        _end(transport)
        on_failed()


def _end(transport: asyncio.Transport) -> None:
    transport.abort()
    untie_transport(transport)


class _InTurn(asyncio.BufferedProtocol):
    """Stands before the protocol of a handshake, which computes each message of the client in its turn of the loop.

    A crowd that opens its connections first, and sends all its messages at once, would else hold up the loop for as
    long as they all take.
    """

    def __init__(self, transport: asyncio.Transport, turns: LoopThrottle, owner: str) -> None:
        self._transport = transport
        self._turns = turns
        self._owner = owner
        self._tls: asyncio.BufferedProtocol | None = None
        self._buffer = bytearray()
        self._data = b""  # that waits for its turn, while nothing is read
        self._waiting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Takes the place of the transport's protocol, unless the connection is lost."""
        tls = self._transport.get_protocol()
        if not self._transport.is_closing() and isinstance(tls, asyncio.BufferedProtocol):
            self._tls = tls
            self._transport.set_protocol(self)

    def end(self) -> None:
        """Gives the place back."""
        tls, self._tls = self._tls, None
        if tls is not None and not self._transport.is_closing():
            self._transport.set_protocol(tls)
            self._pass_on(tls)
        self._stop_waiting()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(TLS_BUFFER_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._transport.pause_reading()
        self._data, self._buffer = bytes(self._buffer[:nbytes]), bytearray()
        self._waiting = asyncio.create_task(self._wait())

    def eof_received(self) -> bool | None:
        return None if self._tls is None else self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        tls, self._tls = self._tls, None
        self._stop_waiting()
        if tls is not None:
            tls.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.resume_writing()

    async def _wait(self) -> None:
        await self._turns.next(self._owner)
        if self._tls is not None:
            self._pass_on(self._tls)

    def _pass_on(self, tls: asyncio.BufferedProtocol) -> None:
        """Passes on what has come; reading goes on."""
        data, self._data = memoryview(self._data), b""
        while data:
            buffer = memoryview(tls.get_buffer(len(data)))
            num_taken = min(len(buffer), len(data))
            buffer[:num_taken] = data[:num_taken]
            tls.buffer_updated(num_taken)
            data = data[num_taken:]
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class _Waiting(asyncio.Protocol):
    """Buffers the bytes that a client sends before the server learns that the handshake has ended."""

    def __init__(self) -> None:
        self.is_lost = False
        self._data = bytearray()
        self._has_ended = False

    def data_received(self, data: bytes) -> None:
        self._data += data

    def eof_received(self) -> None:
        self._has_ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Gives the connection and the buffered bytes to `protocol`."""
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._data:
            protocol.data_received(bytes(self._data))
        if self._has_ended:
            protocol.eof_received()
