"""A queue that serves its owners round-robin."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue for each owner, first in first out or newest first; `take` goes round the owners, whatever one puts."""

    def __init__(self, *, newest_first: bool = False) -> None:
        self._newest_first = newest_first
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()  # the next owner first

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def put(self, owner: str, item: T) -> None:
        """Appends `item` to the owner's queue; an owner that had none is served last."""
        self._waiting.setdefault(owner, deque()).append(item)

    def take(self) -> T:
        """Removes and returns the next item; raises KeyError where nothing waits."""
        owner, items = self._waiting.popitem(last=False)
        item = items.pop() if self._newest_first else items.popleft()
        if items:
            self._waiting[owner] = items
        return item
