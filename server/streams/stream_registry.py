"""The registry of logged streams: found by their ids, bounded in number and bytes, shared fairly between owners."""

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from server.protocol.errors import RETRY_AFTER_S, ApiError, shorten
from server.streams.byte_budget import ByteBudget, OwnerBudget
from server.streams.stream import LoggedStream, Producer
from server.streams.stream_log import StreamLog

ID_BYTES = 16  # of randomness in an id, which alone protects a stream from other clients of the same key
LOG_SHARE = 4  # one log may take this part of all the memory
ROOM_SHARE = 8  # this part of it must be free for a new stream, which could not keep its events otherwise


@dataclass(slots=True)
class _Holding:
    """The streams of one owner."""

    bytes: OwnerBudget
    streams: dict[str, LoggedStream] = field(default_factory=dict)
    unread: dict[str, LoggedStream] = field(default_factory=dict)  # that have ended; first the one unread for longest


class StreamRegistry:
    """The logged streams of a server, bounded in number and in the bytes of their events.

    Where there are too many, the owner with the most gives way: of its ended streams the one that nobody has read for
    longest, or a growing one, without readers and not of the background, only for an owner with fewer. Finding it takes
    the same time however many there are.
    """

    def __init__(self, *, grace: float, max_bytes: int, max_streams: int) -> None:
        """A stream that nobody reads goes on, and its events are kept afterwards, for `grace` seconds."""
        self._grace = grace
        self._max_bytes = max_bytes
        self._max_streams = max_streams
        self._budget = ByteBudget(max_bytes, self._make_room)
        self._streams: dict[str, LoggedStream] = {}
        self._holdings: dict[str | None, _Holding] = {}  # by owner; of those with a stream

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def num_bytes(self) -> int:
        """Of all events that are kept."""
        return self._budget.num_bytes

    def start(
        self, owner: str | None, producer: Producer, *, stream_id: str | None = None, num_choices: int = 1,
        is_recomputed: bool = False, is_background: bool = False,
    ) -> LoggedStream:  # fmt: skip
        """Begins to produce a stream in a task of its own; raises ApiError (429) where no other can be given up.

        Args:
            owner: the salt of the tenant that may read it.
            stream_id: must not be known yet, and hard to guess; chosen here if None.
            is_background: the answer is made to its end, whether or not anybody reads it.
        """
        while not self._has_room and (self._forget_ended() or self._forget_running(owner)):
            pass
        if not self._has_room:
            raise ApiError(
                f"{len(self._streams)} answers of {self.num_bytes} bytes are held; "
                f"the limits are {self._max_streams} and {self._max_bytes}",
                status=429,
                error_type="rate_limit_error",
                code="too_many_held_answers",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        if stream_id is None:
            stream_id = secrets.token_hex(ID_BYTES)
        if stream_id in self._streams:
            raise ValueError(f"there is a stream {stream_id} already")
        holding = self._holdings.setdefault(owner, _Holding(OwnerBudget(self._budget)))
        log = StreamLog(self._max_bytes // LOG_SHARE, holding.bytes, num_choices, is_recomputed=is_recomputed)
        stream = LoggedStream(stream_id, owner, log, self._grace, self, is_background=is_background)
        self._streams[stream_id] = holding.streams[stream_id] = stream
        stream.start(producer)
        return stream

    def get(self, owner: str | None, stream_id: str) -> LoggedStream | None:
        """The stream with this id; None where there is none, or where it has another owner."""
        stream = self._streams.get(stream_id)
        return stream if stream is not None and stream.owner == owner else None

    def find(self, owner: str | None, stream_id: str) -> LoggedStream:
        """Raises ApiError: 404, there is none with this id, or it has another owner, which cannot be told apart."""
        stream = self.get(owner, stream_id)
        if stream is None:
            raise unknown_stream(stream_id)
        return stream

    def forget(self, stream: LoggedStream) -> None:
        """Stops the stream and gives up its memory. Those who read it now read on to its end."""
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
            holding = self._holdings[stream.owner]
            del holding.streams[stream.id]
            holding.unread.pop(stream.id, None)
            if not holding.streams:
                del self._holdings[stream.owner]
            stream.free()
            if stream.on_forget is not None:
                stream.on_forget()

    def stop_unread(self) -> None:
        """Stops the streams that nobody reads, but for those of the background."""
        for stream in tuple(self._streams.values()):
            if not stream.num_readers and not stream.is_background:
                stream.stop()

    async def close(self) -> None:
        """Ends every task and frees every log."""
        streams, self._streams, self._holdings = tuple(self._streams.values()), {}, {}
        await asyncio.gather(*(stream.close() for stream in streams))

    def note_unread(self, stream: LoggedStream) -> None:
        """The stream has ended, and nobody reads it: it may be given up where room is needed."""
        if self._streams.get(stream.id) is stream:
            self._holdings[stream.owner].unread[stream.id] = stream

    def note_reader(self, stream: LoggedStream) -> None:
        """Somebody reads the stream: it is not given up."""
        if self._streams.get(stream.id) is stream:
            self._holdings[stream.owner].unread.pop(stream.id, None)

    @property
    def _has_room(self) -> bool:
        is_free = self.num_bytes <= self._max_bytes - self._max_bytes // ROOM_SHARE
        return is_free and len(self._streams) < self._max_streams

    def _make_room(self) -> None:
        """Drops ended, unread streams while the budget is exceeded."""
        while self._budget.is_exceeded and self._forget_ended():
            pass

    def _forget_ended(self) -> bool:
        """Gives up an ended, unread stream of the owner with the most; returns False where there is none."""
        holding = self._largest(owner for owner, holding in self._holdings.items() if holding.unread)
        if holding is None:
            return False
        self.forget(next(iter(holding.unread.values())))
        return True

    def _forget_running(self, owner: str | None) -> bool:
        """Stops an unread stream of the owner with the most, for `owner`, who has fewer; returns False without one."""
        most, own = self._largest(self._holdings), self._holdings.get(owner)
        if most is None or most is own or self._size(most)[0] <= (0 if own is None else self._size(own)[0]) + 1:
            return False
        victim = next((each for each in most.streams.values() if not (each.num_readers or each.is_background)), None)
        if victim is None:
            return False
        self.forget(victim)
        return True

    def _largest(self, owners: Iterable[str | None]) -> _Holding | None:
        """Returns the largest holding among the owners; the first of equal ones."""
        return max((self._holdings[owner] for owner in owners), key=self._size, default=None)

    def _size(self, holding: _Holding) -> tuple[int, int]:
        """Sort key of a holding: (streams, bytes), or (bytes, streams) if it is bytes that have run out."""
        size = len(holding.streams), holding.bytes.num_bytes
        return size if len(self._streams) >= self._max_streams else size[::-1]


def unknown_stream(stream_id: str) -> ApiError:
    """404, for an id that was never given, that has expired, or that belongs to another key."""
    return ApiError(
        f"no stream with the id {shorten(stream_id)} is held; it may have expired, or it was stopped",
        status=404,
        param="id",
        code="unknown_stream",
    )
