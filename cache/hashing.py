"""Names of page contents: chained SHA-256 hashes over token ids.

A hash covers that of the page's parent, so equal hashes mean equal prefixes. The token ids and extra keys are stored
with the hash and compared on a hit, so a collision is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

# (parent hash, token ids, extra keys) -> hash of 32 bytes
HashFunction = Callable[[bytes, Sequence[int], tuple[str, ...]], bytes]

# The parent of every first page. It is a constant and no secret: extra keys keep tenants apart.
NONE_HASH: bytes = sha256(b"eagre: no parent page").digest()


class PageHash(NamedTuple):
    """The name of the content of a full page."""

    hash_value: bytes
    token_ids: tuple[int, ...]
    extra_keys: tuple[str, ...] = ()
    group: int = 0  # of layers, whose keys and values are in the page

    def of_group(self, group: int) -> PageHash:
        """The name of the page of the same tokens in another group, of this name in the first one."""
        if not group:
            return self
        return PageHash(hash_of_group(self.hash_value, group), self.token_ids, self.extra_keys, group)


def hash_of_group(hash_value: bytes, group: int) -> bytes:
    """The hash in a group of layers, of a page with this one in the first group."""
    return hash_value[:-1] + bytes((hash_value[-1] ^ group,)) if group else hash_value


@lru_cache(maxsize=16)  # an engine has one page size
def _layout(num_tokens: int) -> Struct:
    """The layout of a message: parent hash, number of tokens, tokens."""
    return Struct(f"<{len(NONE_HASH)}sQ{num_tokens}I")


def sha256_hash(parent_hash: bytes, token_ids: Sequence[int], extra_keys: tuple[str, ...]) -> bytes:
    """SHA-256 of the parent's hash, the token ids as 32-bit integers and the extra keys, each part with its length."""
    num_tokens = len(token_ids)
    message = _layout(num_tokens).pack(parent_hash, num_tokens, *token_ids)
    for key in extra_keys:
        encoded = key.encode()
        message += len(encoded).to_bytes(8, "little") + encoded
    return sha256(message).digest()


def hash_page_tokens(
    hash_function: HashFunction,
    parent_page_hash: bytes | None,
    curr_page_token_ids: Sequence[int],
    extra_keys: tuple[str, ...] = (),
) -> PageHash:
    """The name of one full page; `parent_page_hash` is None for the first page of a sequence."""
    parent = NONE_HASH if parent_page_hash is None else parent_page_hash
    token_ids = tuple(curr_page_token_ids)
    return PageHash(hash_function(parent, token_ids, extra_keys), token_ids, extra_keys)


class NamedSpan(NamedTuple):
    """Positions whose content the token ids do not tell, such as those of a picture."""

    start: int
    end: int
    name: str  # of the content


def hash_request_tokens(
    hash_function: HashFunction,
    page_size: int,
    token_ids: Sequence[int],
    extra_keys: tuple[str, ...] = (),
    known: Sequence[PageHash] = (),
    spans: Sequence[NamedSpan] = (),
) -> list[PageHash]:
    """The names of the full pages of a request's tokens, in order, without the first ones, which are `known`.

    Args:
        extra_keys: what else distinguishes this request's pages, for example a cache salt.
        spans: in the order of their positions; a page with a part of one has its name as a further key, which is never
            the first one, because clients choose that.
    """
    hashes: list[PageHash] = []
    first = len(known) * page_size
    if len(token_ids) < first + page_size:
        return hashes
    parent = known[-1].hash_value if known else None
    unnamed = tuple(token_ids[first:])
    for end in range(page_size, len(unnamed) + 1, page_size):
        keys = extra_keys
        if spans:
            begin = first + end - page_size
            names = tuple(span.name for span in spans if span.start < begin + page_size and span.end > begin)
            if names:
                keys = (*(extra_keys or ("",)), *names)
        page_hash = hash_page_tokens(hash_function, parent, unnamed[end - page_size : end], keys)
        parent = page_hash.hash_value
        hashes.append(page_hash)
    return hashes
