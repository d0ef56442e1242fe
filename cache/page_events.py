"""What a pool tells of its named pages, for whoever wants to know from outside which prefixes are remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from cache.hashing import PageHash


class PageStored(NamedTuple):
    """A page can be found by its name from now on."""

    page_hash: PageHash
    parent_hash: bytes | None  # of the page before it; None for the first page of a sequence


class PageRemoved(NamedTuple):
    """A page cannot be found by its name any more."""

    hash_value: bytes


class PagesCleared(NamedTuple):
    """No page can be found by a name any more."""


PageEvent: TypeAlias = PageStored | PageRemoved | PagesCleared
Listener: TypeAlias = Callable[[PageEvent], None]  # called in the engine thread, so it must return at once
