"""The places of a server's open connections: how many there are, who may have one, and who makes room for others.

A connection that waits for its client, such as one whose first request does not come, keeps its place only as long as
nobody needs it. So a client that opens connections and says nothing shuts nobody out: where no place is free, a new
connection takes that of the client which waits with the most. nginx reuses idle connections in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import IntEnum

FIRST_HEAD_S = 10.0  # in which a connection must have sent its first head, where all places are free
LEAST_HEAD_S = 1.0  # the same where none is
MAX_EXTRA = 64  # connections beyond the limit: probes are answered there, and other clients learn that there is no room


class Phase(IntEnum):
    """What a connection does. The lowest gives up its place first; the last one never does."""

    NEW = 0  # it has not sent a whole head yet
    IDLE = 1  # it waits for another request
    RECEIVING = 2  # it waits for the rest of a request's body, or may yet be refused for want of a key
    IDLE_WITH_KEY = 3
    WORKING = 4  # the server is at work for it


# In which order they make room: where more connections are new than are spared, and where they are not.
_FIRST_NEW = (Phase.NEW, Phase.IDLE, Phase.RECEIVING, Phase.IDLE_WITH_KEY)
_FIRST_IDLE = (Phase.IDLE, Phase.RECEIVING, Phase.NEW, Phase.IDLE_WITH_KEY)


class Place:
    """One connection's place.

    Args:
        owner: the client, by its address.
        close: ends the connection.
        is_extra: it is one beyond the limit.
    """

    __slots__ = ("_places", "close", "has_key", "is_extra", "is_receiving", "is_released", "owner", "phase", "since")

    def __init__(
        self, places: ConnectionPlaces, owner: str, close: Callable[[], None], since: float, *, is_extra: bool
    ) -> None:
        self._places = places
        self.owner = owner
        self.close = close
        self.since = since
        self.is_extra = is_extra
        self.is_released = False
        self.has_key = False
        self.phase = Phase.NEW
        self.is_receiving: Callable[[], bool] = _never  # as `Phase.RECEIVING` says

    @property
    def limit(self) -> int:
        return self._places.limit

    def assign(self, owner: str) -> bool:
        """Makes this the place of another client, for whom a proxy has sent a request. Whether that client may have it;
        where it may not, nothing changes.
        """
        return self._places.assign(self, owner)

    def promote(self) -> bool:
        """Whether this is a place within the limit, by now."""
        return self._places.promote(self)

    def begin(self, is_receiving: Callable[[], bool]) -> None:
        """A head has arrived."""
        self.is_receiving = is_receiving
        self._places.move(self, Phase.RECEIVING if is_receiving() else Phase.WORKING)

    def end(self) -> None:
        """The request is answered."""
        self.is_receiving = _never
        self._places.move(self, Phase.IDLE_WITH_KEY if self.has_key else Phase.IDLE)

    def authenticate(self) -> None:
        """The client has shown a valid key."""
        self.has_key = True
        if self.phase is Phase.RECEIVING:
            self._places.move(self, Phase.WORKING)

    def release(self) -> None:
        """The connection has ended. Idempotent."""
        self._places.release(self)


class _Line:
    """The places of one phase that may have to be given up.

    However many owners there are, none of its methods looks at all of them: a flood of connections from thousands of
    addresses asks for the owner with the most places at each.
    """

    def __init__(self) -> None:
        self._num_places = 0
        self._places: dict[str, dict[Place, None]] = {}  # by owner, the oldest first
        self._owners: dict[int, dict[str, None]] = {}  # by how many places they hold, in this phase or another

    def num_places(self, owner: str | None) -> int:
        """How many places of an owner are here; None: of all."""
        return self._num_places if owner is None else len(self._places.get(owner, ()))

    def add(self, place: Place, num_held: int) -> None:
        self._num_places += 1
        if place.owner not in self._places:
            self._places[place.owner] = {}
            self._owners.setdefault(num_held, {})[place.owner] = None
        self._places[place.owner][place] = None

    def remove(self, place: Place, num_held: int) -> None:
        self._num_places -= 1
        places = self._places[place.owner]
        del places[place]
        if not places:
            del self._places[place.owner]
            self._forget(place.owner, num_held)

    def recount(self, owner: str, before: int, now: int) -> None:
        """Notes that an owner holds more places, or fewer."""
        if owner in self._places:
            self._forget(owner, before)
            self._owners.setdefault(now, {})[owner] = None

    def oldest(self, owner: str | None) -> Place | None:
        """The oldest place of an owner; None: of one of those who hold the most."""
        if owner is None and self._owners:
            owner = next(iter(self._owners[max(self._owners)]))  # of n places there are fewer than 2√n numbers
        return next(iter(self._places.get(owner or "", ())), None)

    def _forget(self, owner: str, num_held: int) -> None:
        owners = self._owners[num_held]
        del owners[owner]
        if not owners:
            del self._owners[num_held]


class ConnectionPlaces:
    """All places of a server.

    Args:
        limit: of all connections.
        clock: in seconds.
        first_head: seconds in which a connection must have sent its first head, at most.
    """

    def __init__(self, limit: int, clock: Callable[[], float], *, first_head: float = FIRST_HEAD_S) -> None:
        self.limit = limit
        # One address leaves an eighth of all places to others, whatever its connections do.
        self.share = limit - limit // 8
        # So many new connections are spared while others wait. Beside a crowd whose connections are idle, they would
        # else end each other before the server has read what they say.
        self._num_spared = limit // 8
        self.max_extra = min(MAX_EXTRA, max(2, limit // 8))
        self._clock = clock
        self._first_head = min(first_head, FIRST_HEAD_S)
        self._held: Counter[str] = Counter()
        self._num_open = 0
        self._new: dict[Place, None] = {}  # by their age, those beyond the limit included
        self._extra: dict[Place, None] = {}
        self._lines = {phase: _Line() for phase in Phase if phase < Phase.WORKING}

    def __len__(self) -> int:
        return self._num_open

    def held_by(self, owner: str) -> int:
        return self._held[owner]

    def take(self, owner: str, close: Callable[[], None], *, is_trusted: bool, is_scarce: bool = False) -> Place | None:
        """A place for a new connection, if need be one beyond the limit; None where there is none of these either.

        Args:
            is_trusted: whether its address may have all places.
            is_scarce: whether the process has hardly any descriptors left.
        """
        has_room = self._make_room(owner, is_trusted=is_trusted, is_scarce=is_scarce)
        if not has_room and (is_scarce or not self._make_extra_room()):
            return None
        place = Place(self, owner, close, self._clock(), is_extra=not has_room)
        self._new[place] = None
        if has_room:
            self._count(place)
        else:
            self._extra[place] = None
        return place

    def assign(self, place: Place, owner: str) -> bool:
        """As `Place.assign`."""
        if place.owner != owner and not place.is_released and not place.is_extra:
            if not self._has_share(owner) and not self._evict(owner):
                return False
            self._discount(place)
            place.owner = owner
            self._count(place)
        return True

    def promote(self, place: Place) -> bool:
        """As `Place.promote`."""
        if place.is_extra and self._make_room(place.owner, is_trusted=False, is_scarce=False):
            del self._extra[place]
            place.is_extra = False
            self._count(place)
        return not place.is_extra

    def move(self, place: Place, phase: Phase) -> None:
        """Notes what a connection does from now on."""
        if place.is_released:
            return
        self._leave_line(place)
        place.phase = phase
        self._enter_line(place)

    def release(self, place: Place) -> None:
        """The place is free. Idempotent."""
        if place.is_released:
            return
        if place.is_extra:
            del self._extra[place]
            self._new.pop(place, None)
        else:
            self._discount(place)
        place.is_released = True
        place.close, place.is_receiving = _nothing, _never  # they hold the connection

    def first_head_timeout(self) -> float:
        """In how many seconds a first head must have arrived: the fewer, the fewer places are free."""
        least = min(LEAST_HEAD_S, self._first_head)
        return least + (self._first_head - least) * max(0.0, 1 - self._num_open / self.limit)

    @property
    def has_new(self) -> bool:
        """Whether a connection has not sent its first head yet."""
        return bool(self._new)

    def end_overdue(self, most: int) -> int:
        """Ends connections, the oldest first, whose first head has not arrived in time; no more than `most` at once.
        Returns how many.
        """
        for num_ended in range(most):
            place = next(iter(self._new), None)
            if place is None:
                return num_ended
            timeout = min(LEAST_HEAD_S, self._first_head) if place.is_extra else self.first_head_timeout()
            if self._clock() - place.since < timeout:
                return num_ended
            self._end(place)
        return most

    def _has_share(self, owner: str) -> bool:
        return self._held[owner] < self.share

    def _make_room(self, owner: str, *, is_trusted: bool, is_scarce: bool) -> bool:
        if not is_trusted and not self._has_share(owner):
            return self._evict(owner)
        return (self._num_open < self.limit and not is_scarce) or self._evict()

    def _make_extra_room(self) -> bool:
        if len(self._extra) < self.max_extra:
            return True
        oldest = next((place for place in self._extra if place.phase is Phase.NEW), None)
        if oldest is not None:
            self._end(oldest)
        return oldest is not None

    def _evict(self, owner: str | None = None) -> bool:
        """Ends a connection that waits for its client: one of `owner`, or of the client that waits with the most."""
        is_crowd = self._lines[Phase.NEW].num_places(owner) > self._num_spared
        for phase in _FIRST_NEW if is_crowd else _FIRST_IDLE:
            line = self._lines[phase]
            while (place := line.oldest(owner)) is not None:
                if phase is Phase.RECEIVING and not place.is_receiving():
                    self.move(place, Phase.WORKING)
                    continue
                self._end(place)
                return True
        return False

    def _end(self, place: Place) -> None:
        place.close()
        place.release()

    def _count(self, place: Place) -> None:
        self._num_open += 1
        self._change_held(place.owner, 1)
        self._enter_line(place)

    def _discount(self, place: Place) -> None:
        self._leave_line(place)
        self._num_open -= 1
        self._change_held(place.owner, -1)

    def _change_held(self, owner: str, by: int) -> None:
        before = self._held[owner]
        self._held[owner] = before + by
        for line in self._lines.values():
            line.recount(owner, before, before + by)
        if not self._held[owner]:
            del self._held[owner]

    def _enter_line(self, place: Place) -> None:
        if place.phase is Phase.NEW:
            self._new[place] = None
        if place.phase is not Phase.WORKING and not place.is_extra:
            self._lines[place.phase].add(place, self._held[place.owner])

    def _leave_line(self, place: Place) -> None:
        self._new.pop(place, None)
        if place.phase is not Phase.WORKING and not place.is_extra:
            self._lines[place.phase].remove(place, self._held[place.owner])


def _nothing() -> None:
    pass


def _never() -> bool:
    return False
