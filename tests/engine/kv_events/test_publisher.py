"""What subscribers read, by the structs that vLLM publishes for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cache.hashing import hash_request_tokens, sha256_hash
from cache.page import PageEvent, PageRemoved, PagesCleared, PageStored
from cache.pool import PagePool
from engine.interface.address import KVEndpoint
from engine.kv_events.batch import block_hash, make_batch
from engine.kv_events.publisher import KVEventPublisher
from engine.kv_events.sockets import ReplayBuffer

PAGE_SIZE = 2
TIMEOUT_MS = 10_000


def stored(tokens: list[int], *extra: str) -> list[PageStored]:
    names = hash_request_tokens(sha256_hash, PAGE_SIZE, tokens, extra)
    return [PageStored(name, names[index - 1].hash_value if index else None) for index, name in enumerate(names)]


def hashes(events: list[PageStored]) -> list[int]:
    return [block_hash(event.page_hash.hash_value) for event in events]


def test_pages_of_one_sequence_are_one_event() -> None:
    first, second = stored([1, 2, 3, 4]), stored([5, 6], "salt")
    removed = [PageRemoved(event.page_hash.hash_value) for event in reversed(first)]
    events: list[PageEvent] = [*first, *second, *removed, PagesCleared(), first[0], second[0], first[1]]
    arrays = [
        ["BlockStored", hashes(first), None, [1, 2, 3, 4], 2, None, "GPU", None, [None, None]],
        ["BlockStored", hashes(second), None, [5, 6], 2, None, "GPU", None, [["salt"]]],
        ["BlockRemoved", hashes(first)[::-1], "GPU"],
        ["AllBlocksCleared"],
        ["BlockStored", hashes(first[:1]), None, [1, 2], 2, None, "GPU", None, [None]],
        ["BlockStored", hashes(second), None, [5, 6], 2, None, "GPU", None, [["salt"]]],
        ["BlockStored", hashes(first[1:]), hashes(first)[0], [3, 4], 2, None, "GPU", None, [None]],
    ]
    assert make_batch(events, PAGE_SIZE, 1.5, has_array_events=True) == [1.5, arrays, 0]
    _, maps, _ = make_batch(events, PAGE_SIZE, 1.5)
    assert [list(event.values()) for event in maps] == arrays
    assert list(maps[0]) == [
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
        "extra_keys",
    ]  # fmt: skip
    assert list(maps[2]) == ["type", "block_hashes", "medium"]


def test_events_of_groups_have_the_same_hashes_and_say_which_group_it_is() -> None:
    """As vLLM's: the pages of each group on its own, with what its layers see."""
    pages, window = stored([1, 2, 3, 4]), 30
    events: list[PageEvent] = []
    for page in pages:
        events += [page._replace(page_hash=page.page_hash.of_group(group)) for group in (0, 1)]
    events += [PageRemoved(page.page_hash.of_group(1).hash_value, 1) for page in pages]
    events.append(PageRemoved(pages[1].page_hash.hash_value))
    of_all = ["BlockStored", hashes(pages), None, [1, 2, 3, 4], 2, None, "GPU", None, [None, None]]
    expected = [
        [*of_all, 0, "full_attention", None],
        [*of_all, 1, "sliding_window", window],
        ["BlockRemoved", hashes(pages), "GPU", 1],
        ["BlockRemoved", hashes(pages[1:]), "GPU", 0],
    ]
    _, maps, _ = make_batch(events, PAGE_SIZE, 1.5, windows=(0, window))
    assert [list(event.values()) for event in maps] == expected
    assert list(maps[0])[-3:] == ["group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"]
    assert list(maps[2]) == ["type", "block_hashes", "medium", "group_idx"]


def test_the_oldest_batches_are_dropped_and_numbers_go_on() -> None:
    kept = ReplayBuffer(max_batches=3, max_bytes=10)
    assert [kept.add(bytes([number])) for number in range(5)] == [0, 1, 2, 3, 4]
    assert [kept.first_from(number) for number in (0, 2, 3, 4)] == [(2, b"\2"), (2, b"\2"), (3, b"\3"), (4, b"\4")]
    assert kept.first_from(5) is None
    kept.add(bytes(9))
    assert kept.first_from(0) == (4, b"\4")
    assert kept.first_from(5) == (5, bytes(9))
    kept.add(bytes(11))  # larger than all that may be kept
    assert kept.first_from(0) is None


class Subscriber:
    """As routers do it; needs pyzmq and msgspec."""

    def __init__(self, endpoint: KVEndpoint, topic: str) -> None:
        zmq, _ = pytest.importorskip("zmq"), pytest.importorskip("msgspec")
        from tests.engine.kv_events import vllm_structs

        self.wire = vllm_structs
        self.context = zmq.Context()
        self.events, self.replays = self.context.socket(zmq.SUB), self.context.socket(zmq.DEALER)
        self.events.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.events.connect(endpoint.events)
        self.replays.connect(endpoint.replays)

    def batch(self) -> tuple[int, Any]:
        _, number, payload = self.events.recv_multipart()
        return int.from_bytes(number, "big"), self.wire.decode(payload)

    def replay(self, first: int) -> Iterator[tuple[int, Any]]:
        self.replays.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            assert self.replays.poll(TIMEOUT_MS)
            _, number, payload = self.replays.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == -1:
                return
            yield int.from_bytes(number, "big"), self.wire.decode(payload)


def free_endpoint() -> KVEndpoint:
    """Two neighbouring ports that nobody listens at."""
    import socket

    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return KVEndpoint("127.0.0.1", port)


def test_a_subscriber_knows_what_the_pool_remembers_and_gets_again_what_it_has_missed() -> None:
    endpoint = free_endpoint()
    subscriber = Subscriber(endpoint, "kv@")
    pool = PagePool(6)
    publisher = KVEventPublisher(endpoint, "kv@here@model", pool, PAGE_SIZE)
    try:
        subscriber.replays.send_multipart([b"no request"])
        ((number, cleared),) = subscriber.replay(0)
        assert (number, cleared.events, cleared.data_parallel_rank) == (0, [subscriber.wire.AllBlocksCleared()], 0)
        names = stored([1, 2, 3, 4])
        # A subscription takes a moment; what is published before it arrives is missed, and read again.
        while not subscriber.events.poll(50):
            pages = pool.allocate(2)
            for page, name in zip(pages, names, strict=True):
                pool.cache_page(page, name.page_hash, name.parent_hash)
            pool.release(pages)
            pool.release(pool.allocate(5))
        first, _ = subscriber.batch()
        seen: list[Any] = []
        for number, batch in subscriber.replay(1):
            assert number == 1 + len(seen)
            seen.append(batch.events)
        assert len(seen) >= first
        flat = [event for events in seen for event in events]
        come = [event for event in flat if type(event) is subscriber.wire.BlockStored]
        gone = [name for event in flat if type(event) is subscriber.wire.BlockRemoved for name in event.block_hashes]
        assert [name for event in come for name in event.block_hashes][:2] == hashes(names)
        assert [token for event in come for token in event.token_ids][:4] == [1, 2, 3, 4]
        assert sorted(gone) == sorted(name for event in come for name in event.block_hashes)
        with pytest.raises(ValueError, match="kv_events cannot listen at tcp://127"):
            KVEventPublisher(endpoint, "", PagePool(4), PAGE_SIZE)
    finally:
        publisher.close()
        subscriber.context.destroy(linger=0)
    assert pool.listener is None
    publisher.close()  # once more harms nobody


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), KeyboardInterrupt()])
def test_where_the_start_of_the_thread_fails_the_address_is_free_again(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, has_begun: bool
) -> None:
    pytest.importorskip("msgspec")
    endpoint, pool = free_endpoint(), PagePool(4)
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if has_begun:  # an interrupt comes while the thread is waited for
            start(self)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(type(error)) as raised:
            KVEventPublisher(endpoint, "", pool, PAGE_SIZE)
    assert raised.value is error  # which holds the publisher, so that nothing but its own end frees the address
    assert pool.listener is None
    KVEventPublisher(endpoint, "", pool, PAGE_SIZE).close()
