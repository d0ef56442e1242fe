"""All answers that are held for readers, found by their ids."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from server.protocol.errors import RETRY_AFTER_S, ApiError, shorten
from server.streams.byte_budget import ByteBudget, OwnedBytes
from server.streams.event_log import EventLog
from server.streams.held_answer import HeldAnswer, Work

ID_BYTES = 16  # of randomness in an id, which is the only thing between an answer and another client of the same key
LOG_SHARE = 4  # one log may take this part of all the memory
ROOM_SHARE = 8  # this part of it must be free for a new answer, which could not keep its events otherwise


@dataclass(slots=True)
class _Holding:
    """What one owner holds."""

    bytes: OwnedBytes
    answers: dict[str, HeldAnswer] = field(default_factory=dict)
    unread: dict[str, HeldAnswer] = field(default_factory=dict)  # that have ended; first the one unread for longest


class HeldAnswers:
    """The held answers of a server, bounded in their number and in the bytes of their events.

    Where there are too many, the owner who holds the most gives way, so that one key cannot take all the room. Of that
    owner's answers that have ended the one goes first that nobody has read for longest. An answer that is being made is
    given up only for an owner who holds fewer, if nobody reads it and it is not of the background.

    Room is made for every event while the budget is passed, so looking for the one to give up takes the same time
    however many answers there are.
    """

    def __init__(self, *, grace: float, max_bytes: int, max_answers: int) -> None:
        """Args:
        grace: seconds for which an answer that nobody reads goes on, and for which its events are kept afterwards.
        """
        self._grace = grace
        self._max_bytes = max_bytes
        self._max_answers = max_answers
        self._budget = ByteBudget(max_bytes, self._make_room)
        self._answers: dict[str, HeldAnswer] = {}
        self._holdings: dict[str | None, _Holding] = {}  # by owner; of those who hold an answer

    @property
    def num_answers(self) -> int:
        return len(self._answers)

    @property
    def num_bytes(self) -> int:
        """Of all events that are kept."""
        return self._budget.num_bytes

    def start(
        self, owner: str | None, work: Work, *, answer_id: str | None = None, is_background: bool = False
    ) -> HeldAnswer:
        """Begins to make an answer in a task of its own.

        Args:
            owner: the salt of the tenant that may read it.
            work: makes the events; called with the answer.
            answer_id: must not be known yet, and hard to guess; chosen here if None.
            is_background: the answer is made to its end, whether or not anybody reads it.

        Raises:
            ApiError: 429, as many answers are held as may be, and none of them can be given up.
        """
        while not self._has_room and (self._forget_one() or self._forget_begun(owner)):
            pass
        if not self._has_room:
            raise ApiError(
                f"{len(self._answers)} answers of {self.num_bytes} bytes are held; "
                f"the limits are {self._max_answers} and {self._max_bytes}",
                status=429,
                error_type="rate_limit_error",
                code="too_many_held_answers",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        if answer_id is None:
            answer_id = secrets.token_hex(ID_BYTES)
        if answer_id in self._answers:
            raise ValueError(f"the answer {answer_id} is held already")
        holding = self._holdings.setdefault(owner, _Holding(OwnedBytes(self._budget)))
        log = EventLog(self._max_bytes // LOG_SHARE, holding.bytes)
        answer = HeldAnswer(answer_id, owner, log, self._grace, self, is_background=is_background)
        self._answers[answer_id] = holding.answers[answer_id] = answer
        answer.start(work)
        return answer

    def get(self, owner: str | None, answer_id: str) -> HeldAnswer | None:
        """The answer with this id; None where there is none, or where it is somebody else's."""
        answer = self._answers.get(answer_id)
        return answer if answer is not None and answer.owner == owner else None

    def find(self, owner: str | None, answer_id: str) -> HeldAnswer:
        """
        Raises:
            ApiError: 404, there is none with this id, or it is somebody else's, which cannot be told apart.
        """
        answer = self.get(owner, answer_id)
        if answer is None:
            raise unknown_stream(answer_id)
        return answer

    def forget(self, answer: HeldAnswer) -> None:
        """Stops the answer and gives up its memory. Those who read it now read on to its end."""
        if self._answers.get(answer.id) is answer:
            del self._answers[answer.id]
            holding = self._holdings[answer.owner]
            del holding.answers[answer.id]
            holding.unread.pop(answer.id, None)
            if not holding.answers:
                del self._holdings[answer.owner]
            answer.free()
            if answer.on_forget is not None:
                answer.on_forget()

    def stop_unread(self) -> None:
        """Stops the answers that nobody reads, but for those of the background."""
        for answer in tuple(self._answers.values()):
            if not answer.num_readers and not answer.is_background:
                answer.stop()

    async def close(self) -> None:
        """Ends every task and frees every log."""
        answers, self._answers, self._holdings = tuple(self._answers.values()), {}, {}
        await asyncio.gather(*(answer.close() for answer in answers))

    def note_unread(self, answer: HeldAnswer) -> None:
        """The answer has ended, and nobody reads it: it may be given up where room is needed."""
        if self._answers.get(answer.id) is answer:
            self._holdings[answer.owner].unread[answer.id] = answer

    def note_reader(self, answer: HeldAnswer) -> None:
        """Somebody reads the answer: it is not given up."""
        if self._answers.get(answer.id) is answer:
            self._holdings[answer.owner].unread.pop(answer.id, None)

    @property
    def _has_room(self) -> bool:
        is_free = self.num_bytes <= self._max_bytes - self._max_bytes // ROOM_SHARE
        return is_free and len(self._answers) < self._max_answers

    def _make_room(self) -> None:
        """Called while the budget is passed."""
        while self._budget.is_passed and self._forget_one():
            pass

    def _forget_one(self) -> bool:
        """Gives up an ended answer that nobody reads, of the owner who has the most; False where there is none."""
        owner = self._who_has_most(owner for owner, holding in self._holdings.items() if holding.unread)
        if owner is None:
            return False
        self.forget(next(iter(owner.unread.values())))
        return True

    def _forget_begun(self, owner: str | None) -> bool:
        """Stops an answer that nobody reads, of the owner who has the most, for one with fewer; False where none may
        be stopped.
        """
        most, own = self._who_has_most(self._holdings), self._holdings.get(owner)
        if most is None or most is own or self._held_by(most)[0] <= (0 if own is None else self._held_by(own)[0]) + 1:
            return False
        victim = next((each for each in most.answers.values() if not (each.num_readers or each.is_background)), None)
        if victim is None:
            return False
        self.forget(victim)
        return True

    def _who_has_most(self, owners: Iterable[str | None]) -> _Holding | None:
        """The largest holding of those owners, of equal ones the first; None of nobody."""
        return max((self._holdings[owner] for owner in owners), key=self._held_by, default=None)

    def _held_by(self, holding: _Holding) -> tuple[int, int]:
        """How many answers an owner has, and their bytes; in the other order where it is the bytes that are short."""
        held = len(holding.answers), holding.bytes.num_bytes
        return held if len(self._answers) >= self._max_answers else held[::-1]


def unknown_stream(answer_id: str) -> ApiError:
    """404, for an id that was never given, that has expired, or that belongs to another key."""
    return ApiError(
        f"no stream with the id {shorten(answer_id)} is held; it may have expired, or it was stopped",
        status=404,
        param="id",
        code="unknown_stream",
    )
