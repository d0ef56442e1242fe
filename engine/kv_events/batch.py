"""From the events of pages to the batches that subscribers read.

The shapes are those of vLLM's `KVEventBatch`, `BlockStored`, `BlockRemoved` and `AllBlocksCleared`
(vllm/distributed/kv_events.py): structs that are written as arrays, the name of an event first. What vLLM calls a
block is a page here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cache.page_events import PageEvent, PageRemoved, PageStored

MEDIUM = "GPU"  # of the fastest memory that there is; subscribers know no other name for it
RANK = 0  # of the data-parallel engine


def block_hash(hash_value: bytes) -> int:
    """The last 64 bits of a page's hash. Integers are read by every subscriber; longer hashes by some alone."""
    return int.from_bytes(hash_value[-8:], "big")


def make_batch(events: Sequence[PageEvent], page_size: int, seconds: float) -> list[Any]:
    """What msgpack encodes for one message: time, events, rank.

    Pages that follow each other in one sequence become one event, and so do pages that are removed one after the other.

    Args:
        page_size: tokens of a page.
        seconds: since the epoch.
    """
    entries: list[list[Any]] = []
    previous: PageEvent | None = None
    for event in events:
        match event:
            case PageStored(page_hash, parent_hash):
                name = block_hash(page_hash.hash_value)
                extra = list(page_hash.extra_keys) or None
                if isinstance(previous, PageStored) and parent_hash == previous.page_hash.hash_value:
                    _, hashes, _, tokens, _, _, _, _, extras = entries[-1]
                    hashes.append(name)
                    tokens.extend(page_hash.token_ids)
                    extras.append(extra)
                else:
                    parent = None if parent_hash is None else block_hash(parent_hash)
                    tokens = list(page_hash.token_ids)
                    # Behind the size of a page stand the id of an adapter, the medium and the name of an adapter.
                    entries.append(["BlockStored", [name], parent, tokens, page_size, None, MEDIUM, None, [extra]])
            case PageRemoved(hash_value):
                if isinstance(previous, PageRemoved):
                    entries[-1][1].append(block_hash(hash_value))
                else:
                    entries.append(["BlockRemoved", [block_hash(hash_value)], MEDIUM])
            case _:
                entries.append(["AllBlocksCleared"])
        previous = event
    return [seconds, entries, RANK]
