"""The host's metadata of one page of the KV cache, and the events of pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from cache.hashing import PageHash

# The null page takes the writes of padding rows. It is never allocated, and no row reads its content unmasked.
NULL_PAGE_ID = 0


@dataclass(slots=True, eq=False)
class CachePage:
    """Metadata of a page on the device: active (`ref_cnt > 0`), cached (`ref_cnt == 0`, with a hash) or free."""

    page_id: int
    ref_cnt: int = 0
    page_hash: PageHash | None = None  # set once the page is full and all its tokens are committed
    prev_free_page: CachePage | None = field(default=None, repr=False)
    next_free_page: CachePage | None = field(default=None, repr=False)

    def incr_ref(self) -> None:
        self.ref_cnt += 1

    def decr_ref(self) -> None:
        """Raises ValueError if no request holds the page."""
        if self.ref_cnt < 1:
            raise ValueError(f"page {self.page_id} is released more often than it was touched")
        self.ref_cnt -= 1

    def set_hash(self, page_hash: PageHash) -> None:
        """Names the content of the page; raises ValueError if it has a hash already."""
        if self.page_hash is not None:
            raise ValueError(f"page {self.page_id} has a hash already")
        self.page_hash = page_hash

    def reset_hash(self) -> None:
        """Removes the name of the content, because the page is evicted or its content is wrong."""
        self.page_hash = None


class PageStored(NamedTuple):
    """A page can be found by its name from now on."""

    page_hash: PageHash
    parent_hash: bytes | None  # of the page before it, in the first group; None for the first page of a sequence


class PageRemoved(NamedTuple):
    """A page cannot be found by its name any more."""

    hash_value: bytes
    group: int = 0


class PagesCleared(NamedTuple):
    """No page can be found by a name any more."""


PageEvent: TypeAlias = PageStored | PageRemoved | PagesCleared
Listener: TypeAlias = Callable[[PageEvent], None]  # called in the engine thread, so it must return at once
