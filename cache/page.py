"""One page of the KV cache, as the host knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache.hashing import PageHash

# The null page takes the writes of padding rows. It is never allocated, and no row reads its content unmasked.
NULL_PAGE_ID = 0


@dataclass(slots=True, eq=False)
class CachePage:
    """Metadata of one page; the keys and values themselves are on the device.

    A page is in exactly one of three states: active (`ref_cnt > 0`), cached (`ref_cnt == 0`, with a hash,
    in the free queue) or free (`ref_cnt == 0`, without a hash, in the free queue).
    """

    page_id: int
    ref_cnt: int = 0
    page_hash: PageHash | None = None  # set once the page is full and all its tokens are committed
    prev_free_page: CachePage | None = field(default=None, repr=False)
    next_free_page: CachePage | None = field(default=None, repr=False)

    def incr_ref(self) -> None:
        """Counts one more request that holds the page."""
        self.ref_cnt += 1

    def decr_ref(self) -> None:
        """Counts one request fewer that holds the page.

        Raises:
            ValueError: no request holds it.
        """
        if self.ref_cnt < 1:
            raise ValueError(f"page {self.page_id} is released more often than it was touched")
        self.ref_cnt -= 1

    def set_hash(self, page_hash: PageHash) -> None:
        """Names the content of the page.

        Raises:
            ValueError: the page has a hash already.
        """
        if self.page_hash is not None:
            raise ValueError(f"page {self.page_id} has a hash already")
        self.page_hash = page_hash

    def reset_hash(self) -> None:
        """Removes the name of the content, because the page is evicted or its content is wrong."""
        self.page_hash = None
