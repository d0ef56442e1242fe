"""Things that wait, each for its owner, whose turn comes as often as that of others."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue in which owners take turns, each with the oldest of its things.

    Between two things of one owner comes one of each other owner that waits: however many things somebody has put,
    another's next one waits for one of them at most.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()  # whose turn is next comes first

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def put(self, owner: str, thing: T) -> None:
        """Has `thing` wait behind the owner's others; an owner that had none is the last to have its turn."""
        self._waiting.setdefault(owner, deque()).append(thing)

    def take(self) -> T:
        """The next thing, which waits no longer.

        Raises:
            KeyError: nothing waits.
        """
        owner, things = self._waiting.popitem(last=False)
        thing = things.popleft()
        if things:
            self._waiting[owner] = things
        return thing
