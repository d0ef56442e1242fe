"""Byte budgets: the memory that all stream logs may take together, and one owner's part of it."""

from collections.abc import Callable


class ByteBudget:
    """Counts the bytes of all logs, and asks for room where they exceed the limit."""

    def __init__(self, max_bytes: int, make_room: Callable[[], None]) -> None:
        """Args:
        make_room: called while the budget is exceeded; frees what can be freed.
        """
        self.max_bytes = max_bytes
        self._make_room = make_room
        self.num_bytes = 0

    @property
    def is_exceeded(self) -> bool:
        return self.num_bytes > self.max_bytes

    def take(self, num_bytes: int) -> bool:
        """Counts more bytes; returns whether the budget is exceeded although room was asked for."""
        self.num_bytes += num_bytes
        return self.is_exceeded and not self.made_room()

    def made_room(self) -> bool:
        """Asks for room; returns whether the budget is not exceeded any more."""
        self._make_room()
        return not self.is_exceeded

    def give_back(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes


class OwnerBudget(ByteBudget):
    """One owner's part of a budget, so that the owner with the most is known without adding up."""

    def __init__(self, whole: ByteBudget) -> None:
        super().__init__(whole.max_bytes, whole._make_room)
        self._whole = whole

    @property
    def is_exceeded(self) -> bool:
        return self._whole.is_exceeded

    def take(self, num_bytes: int) -> bool:
        whole = self._whole
        self.num_bytes += num_bytes
        whole.num_bytes += num_bytes
        return whole.num_bytes > whole.max_bytes and not whole.made_room()

    def give_back(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        self._whole.num_bytes -= num_bytes
