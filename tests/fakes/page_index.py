"""What a listener to a pool believes to be remembered."""

from __future__ import annotations

from cache.hashing import NONE_HASH, hash_of_group, sha256_hash
from cache.page import PageEvent, PageRemoved, PageStored
from cache.pool import PagePool


class PageIndex:
    """Follows the events of one pool from its beginning on, and refuses those that contradict each other."""

    def __init__(self, pool: PagePool) -> None:
        self.names: set[bytes] = set()
        self._pool = pool
        pool.listener = self.take

    def take(self, event: PageEvent) -> None:
        match event:
            case PageStored(name, parent):
                assert name.hash_value not in self.names
                of_first = sha256_hash(parent or NONE_HASH, name.token_ids, name.extra_keys)
                assert name.hash_value == hash_of_group(of_first, name.group)
                self.names.add(name.hash_value)
            case PageRemoved(hash_value):
                self.names.remove(hash_value)
            case _:
                self.names.clear()

    def check(self) -> None:
        """The names that are believed to be there are those of the pool."""
        assert self.names == {page.page_hash.hash_value for page in self._pool.pages if page.page_hash is not None}
