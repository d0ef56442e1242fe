"""All answers that are held for readers, found by their ids."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict

from server.holding.byte_budget import ByteBudget
from server.holding.event_log import EventLog
from server.holding.held_answer import HeldAnswer, Work
from server.wire.errors import RETRY_AFTER_S, ApiError, shorten

ID_BYTES = 16  # of randomness in an id, which is the only thing between an answer and another client of the same key
LOG_SHARE = 4  # one log may take this part of all the memory
ROOM_SHARE = 8  # this part of it must be free for a new answer, which could not keep its events otherwise


class HeldAnswers:
    """The held answers of a server, bounded in their number and in the bytes of their events.

    Where there are too many, the owner who holds the most gives way, so that one key cannot take all the room. Of that
    owner's answers the one that ended first goes before the others, among those that nobody reads. An answer that is
    being made is given up only for an owner who holds fewer, if nobody reads it and it is not of the background.
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
        self._ended: dict[str, HeldAnswer] = {}  # those of them that have ended, in the order of their ends

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
        log = EventLog(self._max_bytes // LOG_SHARE, self._budget)
        answer = HeldAnswer(answer_id, owner, log, self._grace, self, is_background=is_background)
        self._answers[answer_id] = answer
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
            self._ended.pop(answer.id, None)
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
        answers, self._answers, self._ended = tuple(self._answers.values()), {}, {}
        await asyncio.gather(*(answer.close() for answer in answers))

    def note_end(self, answer: HeldAnswer) -> None:
        """All events of the answer have been made: it may be given up where room is needed."""
        if self._answers.get(answer.id) is answer:
            self._ended[answer.id] = answer

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
        unread = [answer for answer in self._ended.values() if not answer.num_readers]
        if not unread:
            return False
        held = self._held_by_owner()
        self.forget(max(unread, key=lambda answer: held[answer.owner]))  # of equal ones the first
        return True

    def _forget_begun(self, owner: str | None) -> bool:
        """Stops an answer that nobody reads, of the owner who has the most, for one with fewer; False where none may
        be stopped.
        """
        held = self._held_by_owner()
        most = max(held, key=lambda name: held[name], default=owner)
        if most == owner or held[most][0] <= held[owner][0] + 1:
            return False
        of_most = (answer for answer in self._answers.values() if answer.owner == most)
        victim = next((answer for answer in of_most if not (answer.num_readers or answer.is_background)), None)
        if victim is None:
            return False
        self.forget(victim)
        return True

    def _held_by_owner(self) -> defaultdict[str | None, tuple[int, int]]:
        """How many answers each owner has, and their bytes; in the other order where it is the bytes that are short."""
        held: defaultdict[str | None, tuple[int, int]] = defaultdict(lambda: (0, 0))
        is_crowded = len(self._answers) >= self._max_answers
        for answer in self._answers.values():
            added = (1, answer.log.num_bytes) if is_crowded else (answer.log.num_bytes, 1)
            before = held[answer.owner]
            held[answer.owner] = (before[0] + added[0], before[1] + added[1])
        return held


def unknown_stream(answer_id: str) -> ApiError:
    """404, for an id that was never given, that has expired, or that belongs to another key."""
    return ApiError(
        f"no stream with the id {shorten(answer_id)} is held; it may have expired, or it was stopped",
        status=404,
        param="id",
        code="unknown_stream",
    )
