"""Converts page events to the batches that subscribers read.

The shapes are those of vLLM's `KVEventBatch`, `BlockStored`, `BlockRemoved` and `AllBlocksCleared`
(vllm/distributed/kv_events.py). A batch is an array; an event is a map with its name under `type`, or in earlier
versions of vLLM an array that begins with its name.
"""

from collections.abc import Sequence
from typing import Any

from cache.page import PageEvent, PageRemoved, PageStored

MEDIUM = "GPU"  # of the fastest memory that there is; subscribers know no other name for it
RANK = 0  # of the data-parallel engine


def block_hash(hash_value: bytes) -> int:
    """The last 64 bits of a page's hash. Every subscriber reads integers; only some read longer hashes."""
    return int.from_bytes(hash_value[-8:], "big")


def make_batch(
    events: Sequence[PageEvent], page_size: int, seconds: float, *, has_array_events: bool = False
) -> list[Any]:
    """The object that msgpack encodes for one message: time since the epoch, events, rank.

    Consecutive pages of one sequence become one event, and so do pages that are removed one after the other. With
    `has_array_events`, events are arrays, as earlier versions of vLLM wrote them.
    """
    entries: list[dict[str, Any]] = []
    previous: PageEvent | None = None
    for event in events:
        match event:
            case PageStored():
                if isinstance(previous, PageStored) and event.parent_hash == previous.page_hash.hash_value:
                    _extend(entries[-1], event)
                else:
                    entries.append(_stored(event, page_size))
            case PageRemoved(hash_value):
                if isinstance(previous, PageRemoved):
                    entries[-1]["block_hashes"].append(block_hash(hash_value))
                else:
                    entries.append({"type": "BlockRemoved", "block_hashes": [block_hash(hash_value)], "medium": MEDIUM})
            case _:
                entries.append({"type": "AllBlocksCleared"})
        previous = event
    return [seconds, [list(entry.values()) for entry in entries] if has_array_events else entries, RANK]


def _stored(event: PageStored, page_size: int) -> dict[str, Any]:
    """The order of the keys is that of the array."""
    entry: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": [],
        "parent_block_hash": None if event.parent_hash is None else block_hash(event.parent_hash),
        "token_ids": [],
        "block_size": page_size,
        "lora_id": None,
        "medium": MEDIUM,
        "lora_name": None,
        "extra_keys": [],
    }
    _extend(entry, event)
    return entry


def _extend(entry: dict[str, Any], event: PageStored) -> None:
    entry["block_hashes"].append(block_hash(event.page_hash.hash_value))
    entry["token_ids"].extend(event.page_hash.token_ids)
    entry["extra_keys"].append(list(event.page_hash.extra_keys) or None)
