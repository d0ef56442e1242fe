"""Names for page contents: chained SHA-256 hashes over token ids.

A page's hash covers its parent's hash, so equal hashes mean equal prefixes. The token ids and
the extra keys travel with the hash and are compared on a hit, so a collision is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

# (parent hash, token ids, extra keys) -> hash of 32 bytes
HashFunction = Callable[[bytes, Sequence[int], tuple[str, ...]], bytes]

# The parent of every first page. A constant, not a secret: tenants are told apart by extra keys.
NONE_HASH: bytes = sha256(b"eagre: no parent page").digest()


class PageHash(NamedTuple):
    """The name of a full page's content."""

    hash_value: bytes
    token_ids: tuple[int, ...]
    extra_keys: tuple[str, ...] = ()


@lru_cache(maxsize=16)  # an engine has one page size
def _layout(num_tokens: int) -> Struct:
    """Parent hash, number of tokens, tokens."""
    return Struct(f"<{len(NONE_HASH)}sQ{num_tokens}I")


def sha256_hash(parent_hash: bytes, token_ids: Sequence[int], extra_keys: tuple[str, ...]) -> bytes:
    """SHA-256 of the parent's hash, the token ids as 32-bit integers and the extra keys.

    Every part carries its length, so that no two different inputs make the same message.
    """
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
    """The name of one full page, given its parent's hash (None for a first page)."""
    parent = NONE_HASH if parent_page_hash is None else parent_page_hash
    token_ids = tuple(curr_page_token_ids)
    return PageHash(hash_function(parent, token_ids, extra_keys), token_ids, extra_keys)


def hash_request_tokens(
    hash_function: HashFunction,
    page_size: int,
    token_ids: Sequence[int],
    extra_keys: tuple[str, ...] = (),
    known: Sequence[PageHash] = (),
) -> list[PageHash]:
    """The names of all full pages of a token sequence, in order.

    Args:
        page_size: tokens.
        token_ids: of the request from its first token; a last, partial page has no name.
        extra_keys: what else tells this request's pages apart, a cache salt for instance.
        known: names of the first pages, already computed; they are not computed again.
    """
    hashes = list(known)
    extend_page_hashes(hash_function, page_size, token_ids, extra_keys, hashes)
    return hashes


def extend_page_hashes(
    hash_function: HashFunction,
    page_size: int,
    token_ids: Sequence[int],
    extra_keys: tuple[str, ...],
    hashes: list[PageHash],
) -> None:
    """Appends to `hashes`, which has the names of a sequence's first pages, those of its other full pages.

    The work of `hash_request_tokens` without a new list, for a sequence that grows page by page.
    """
    if len(token_ids) < (len(hashes) + 1) * page_size:
        return
    parent = hashes[-1].hash_value if hashes else NONE_HASH
    unnamed = tuple(token_ids[len(hashes) * page_size :])
    for end in range(page_size, len(unnamed) + 1, page_size):
        page = unnamed[end - page_size : end]
        parent = hash_function(parent, page, extra_keys)
        hashes.append(PageHash(parent, page, extra_keys))
