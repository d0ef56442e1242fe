"""TLS handshakes of a server (RFC 8446, section 4), counted and with a deadline.

asyncio can listen with TLS itself, but it tells a server of a connection only when its handshake is done: clients that
begin one and fall silent would be counted by nobody.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from server.http.transport.aiohttp_internals import untie_error, untie_transport

HANDSHAKE_S = 10.0  # that a handshake may take


class Handshakes:
    """The handshakes of one server that have begun and not ended."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, make_protocol: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """The protocol of a new connection.

        Args:
            make_protocol: called when the handshake is done; what it returns has the connection from then on.
        """
        return _Beginning(self, make_protocol)

    def start(self, transport: asyncio.Transport, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Called by the protocol of a new connection."""
        task = asyncio.create_task(self._shake(transport, make_protocol))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda task: _end(transport) if task.cancelled() else None)  # perhaps before it began

    async def close(self) -> None:
        """Ends the handshakes, and with them their connections."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _shake(self, transport: asyncio.Transport, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        waiting = _Waiting()
        try:
            tls = await asyncio.get_running_loop().start_tls(
                transport, waiting, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
            if tls is not None and not waiting.is_lost:
                waiting.hand_over(tls, make_protocol())
                return
        except OSError as error:
            # A failed handshake is the client's affair: whoever looks for open ports makes dozens of them.
            untie_error(error)
        except BaseException:
            _end(transport)
            raise
        _end(transport)


def _end(transport: asyncio.Transport) -> None:
    transport.abort()
    untie_transport(transport)


class _Beginning(asyncio.Protocol):
    """The protocol of a new connection; it starts the TLS handshake."""

    def __init__(self, handshakes: Handshakes, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._handshakes = handshakes
        self._make_protocol = make_protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # what comes now is for the handshake, which begins with the next turn of the loop
        self._handshakes.start(transport, self._make_protocol)


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
