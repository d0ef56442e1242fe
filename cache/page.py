"""One page of the KV cache, as the host knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache.hashing import PageHash

NULL_PAGE_ID = 0  # takes the writes of padding rows; never allocated, and what is read of it counts for nothing


@dataclass(slots=True, eq=False)
class CachePage:
    """Metadata of one page; the keys and values themselves are on the device.

    A page is in exactly one of three states: active (`ref_cnt > 0`), cached (`ref_cnt == 0`,
    hashed, in the free queue) or free (`ref_cnt == 0`, no hash, in the free queue).
    """

    page_id: int
    ref_cnt: int = 0
    page_hash: PageHash | None = None  # set once the page is full and all its tokens are committed
    prev_free_page: CachePage | None = field(default=None, repr=False)
    next_free_page: CachePage | None = field(default=None, repr=False)

    @property
    def is_null(self) -> bool:
        return self.page_id == NULL_PAGE_ID

    def incr_ref(self) -> None:
        self.ref_cnt += 1

    def decr_ref(self) -> None:
        if self.ref_cnt < 1:
            raise ValueError(f"page {self.page_id} is released more often than it was touched")
        self.ref_cnt -= 1

    def set_hash(self, page_hash: PageHash) -> None:
        if self.page_hash is not None:
            raise ValueError(f"page {self.page_id} has a hash already")
        self.page_hash = page_hash

    def reset_hash(self) -> None:
        """Forgets the content's name: the page is evicted."""
        self.page_hash = None
