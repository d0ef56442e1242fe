"""All answers that are held for readers, found by their ids."""

from __future__ import annotations

import asyncio
import secrets

from server.holding.byte_budget import ByteBudget
from server.holding.event_log import EventLog
from server.holding.held_answer import HeldAnswer, Work
from server.wire.errors import RETRY_AFTER_S, ApiError, shorten

ID_BYTES = 16  # of randomness in an id, which is the only thing between an answer and another client of the same key
LOG_SHARE = 4  # one log may take this part of all the memory
ROOM_SHARE = 8  # this part of it must be free for a new answer, which could not keep its events otherwise


class HeldAnswers:
    """The held answers of a server, bounded in their number and in the bytes of their events.

    Where there are too many, those that have ended and that nobody reads make room, the one that ended first before
    the others. An answer that is being made is never given up for another.
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
        while not self._has_room and self._forget_one():
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
        """Gives up the answer that ended first of those that nobody reads; False where there is none."""
        answer = next((answer for answer in self._ended.values() if not answer.num_readers), None)
        if answer is not None:
            self.forget(answer)
        return answer is not None


def unknown_stream(answer_id: str) -> ApiError:
    """404, for an id that was never given, that has expired, or that belongs to another key."""
    return ApiError(
        f"no stream with the id {shorten(answer_id)} is held; it may have expired, or it was stopped",
        status=404,
        param="id",
        code="unknown_stream",
    )
