"""Converts page events to the batches that subscribers read.

The shapes are those of vLLM's `KVEventBatch`, `BlockStored`, `BlockRemoved` and `AllBlocksCleared`
(vllm/distributed/kv_events.py). A batch is an array; an event is a map with its name under `type`, or in earlier
versions of vLLM an array that begins with its name.
"""

from collections.abc import Sequence
from typing import Any

from cache.hashing import hash_of_group
from cache.page import PageEvent, PageRemoved, PageStored

MEDIUM = "GPU"  # of the fastest memory that there is; subscribers know no other name for it
RANK = 0  # of the data-parallel engine
FULL, WINDOW = "full_attention", "sliding_window"  # kinds of groups of layers, in vLLM's words


def block_hash(hash_value: bytes) -> int:
    """The last 64 bits of a page's hash. Every subscriber reads integers; only some read longer hashes."""
    return int.from_bytes(hash_value[-8:], "big")


def make_batch(
    events: Sequence[PageEvent], page_size: int, seconds: float, *,
    windows: Sequence[int] = (0,), has_array_events: bool = False,
) -> list[Any]:  # fmt: skip
    """The object that msgpack encodes for one message: time since the epoch, events, rank.

    Consecutive pages of one sequence become one event of each group, and so do pages that are removed one after the
    other. Pages of the same tokens have the same hash in all groups, as in vLLM; events of a model with several groups
    say which one it is, and what its layers see. With `has_array_events`, events are arrays, as earlier versions of
    vLLM wrote them.

    Args:
        windows: of each group of layers with pages of its own; 0: they see all.
    """
    entries: list[dict[str, Any]] = []
    latest: dict[int, tuple[dict[str, Any], bytes | None]] = {}  # of each group: what pages of one kind are added to
    kind: type[PageEvent] | None = None
    for event in events:
        if type(event) is not kind:
            latest.clear()
            kind = type(event)
        match event:
            case PageStored():
                group = event.page_hash.group
                name = hash_of_group(event.page_hash.hash_value, group)  # in the first group
                entry, last = latest.get(group, ({}, None))
                if not entry or last != event.parent_hash:
                    entry = _stored(event.parent_hash, page_size, windows, group)
                    entries.append(entry)
                _extend(entry, name, event)
                latest[group] = entry, name
            case PageRemoved(hash_value, group):
                entry, _ = latest.get(group, ({}, None))
                if not entry:
                    entry = {"type": "BlockRemoved", "block_hashes": [], "medium": MEDIUM}
                    entry |= {"group_idx": group} if len(windows) > 1 else {}
                    entries.append(entry)
                entry["block_hashes"].append(block_hash(hash_of_group(hash_value, group)))
                latest[group] = entry, None
            case _:
                entries.append({"type": "AllBlocksCleared"})
    return [seconds, [list(entry.values()) for entry in entries] if has_array_events else entries, RANK]


def _stored(parent_hash: bytes | None, page_size: int, windows: Sequence[int], group: int) -> dict[str, Any]:
    """The order of the keys is that of the array."""
    entry: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": [],
        "parent_block_hash": None if parent_hash is None else block_hash(parent_hash),
        "token_ids": [],
        "block_size": page_size,
        "lora_id": None,
        "medium": MEDIUM,
        "lora_name": None,
        "extra_keys": [],
    }
    if len(windows) > 1:
        window = windows[group]
        entry |= {
            "group_idx": group,
            "kv_cache_spec_kind": WINDOW if window else FULL,
            "kv_cache_spec_sliding_window": window or None,
        }
    return entry


def _extend(entry: dict[str, Any], name: bytes, event: PageStored) -> None:
    entry["block_hashes"].append(block_hash(name))
    entry["token_ids"].extend(event.page_hash.token_ids)
    entry["extra_keys"].append(list(event.page_hash.extra_keys) or None)
