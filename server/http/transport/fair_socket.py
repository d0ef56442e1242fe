"""The server's side of a WebSocket, on which no client has the loop for itself."""

from __future__ import annotations

from typing import Any

from aiohttp import WSMessage, WSMsgType, web

from server.admission.loop_throttle import LoopThrottle

_ANSWERED_HERE = (WSMsgType.PING, WSMsgType.PONG)


class FairSocket(web.WebSocketResponse):
    """A WebSocket whose every frame asks for a turn of the loop.

    aiohttp hands on what has arrived, and answers pings, without ever waiting: one read may bring forty thousand
    frames.
    """

    def __init__(self, turns: LoopThrottle, **options: Any) -> None:
        """Args:
        options: of `web.WebSocketResponse`, but for `autoping`.
        """
        super().__init__(autoping=False, **options)
        self._turns = turns

    async def receive(self, timeout: float | None = None) -> WSMessage:  # noqa: ASYNC109
        """The next message; pings on the way are answered."""
        while True:
            message: WSMessage = await super().receive(timeout)
            if message.type is WSMsgType.PING:
                await self.pong(message.data)
            await self._turns.next()
            if message.type not in _ANSWERED_HERE:
                return message

    def forget(self) -> None:
        """Gives up what keeps the socket, when its handler has ended.

        aiohttp keeps the error that has ended it, whose traceback keeps the socket and every message that nobody has
        read, and a timer of the next ping. They would be kept until a garbage collection, or until that ping.
        """
        self._exception = None
        self._heartbeat = None  # so that what still comes does not set the timer again
        if hasattr(self, "_cancel_heartbeat"):
            self._cancel_heartbeat()
