"""The memory that all held answers may take together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Budget(Protocol):
    """What counts the bytes of an event log."""

    @property
    def is_passed(self) -> bool:
        """Whether more bytes are kept than may be."""
        ...

    def take(self, num_bytes: int) -> None:
        """Counts bytes that are kept from now on."""

    def give_back(self, num_bytes: int) -> None:
        """Counts bytes that are kept no longer."""


class ByteBudget:
    """Counts bytes. Where they pass the limit, it asks its owner for room; who adds bytes then has to give way."""

    def __init__(self, max_bytes: int, make_room: Callable[[], None]) -> None:
        """Args:
        make_room: called while the budget is passed; frees what nobody needs.
        """
        self._max_bytes = max_bytes
        self._make_room = make_room
        self.num_bytes = 0

    @property
    def is_passed(self) -> bool:
        return self.num_bytes > self._max_bytes

    def take(self, num_bytes: int) -> None:
        """Counts bytes that are kept from now on."""
        self.num_bytes += num_bytes
        if self.is_passed:
            self._make_room()

    def give_back(self, num_bytes: int) -> None:
        """Counts bytes that are kept no longer."""
        self.num_bytes -= num_bytes


class OwnedBytes:
    """One owner's part of a budget, so that who holds the most is known without adding up."""

    def __init__(self, whole: ByteBudget) -> None:
        self._whole = whole
        self.num_bytes = 0

    @property
    def is_passed(self) -> bool:
        return self._whole.is_passed

    def take(self, num_bytes: int) -> None:
        """As that of the whole budget."""
        self.num_bytes += num_bytes
        self._whole.take(num_bytes)

    def give_back(self, num_bytes: int) -> None:
        """As that of the whole budget."""
        self.num_bytes -= num_bytes
        self._whole.give_back(num_bytes)
