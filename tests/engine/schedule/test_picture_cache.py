"""The cache of the embeddings of pictures, without a device."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cache.pool import PagePool
from engine.interface.config import TILE_SIZE
from engine.interface.types import PromptPicture
from engine.schedule.picture_cache import PictureCache
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepResult
from sampling.host.params import SamplingParams

PIXELS = np.zeros((1, 1, 3), np.uint8)


def request(name: str, *digests: str, first: int = 3) -> Request:
    """A request with pictures of two tokens, at distances of five."""
    pictures = tuple(PromptPicture(first + 5 * at, 2, digest.encode(), PIXELS) for at, digest in enumerate(digests))
    return Request(name, [1] * 60, SamplingParams(), seed=0, max_length=80, pictures=pictures)


def encode_all(cache: PictureCache) -> int:
    count = 0
    while (job := cache.next_job()) is not None:
        cache.encoded(job)
        count += 1
    return count


def test_a_request_waits_until_its_pictures_are_encoded() -> None:
    cache = PictureCache(4, 2, 100)
    first = request("r", "a", "b", "a")
    assert cache.must_wait(first, 0)
    assert encode_all(cache) == 2
    assert not cache.must_wait(first, 0)
    token_ids = np.full(60, 7)
    cache.place(first, token_ids)
    placed = token_ids[token_ids != 7]
    assert placed[:2].tolist() == placed[4:].tolist()  # the same picture at two places
    assert len(set(placed.tolist())) == 4
    assert placed.min() >= 100
    cache.release(first)
    assert cache.num_held == 0


def test_ends_of_rows_stay_tokens_of_text() -> None:
    cache = PictureCache(4, 4, 100)
    picture = PromptPicture(2, 6, b"a", PIXELS, (2, 3), has_row_ends=True)
    assert picture.end == 10
    assert list(picture.positions) == [2, 3, 4, 6, 7, 8]
    seeing = Request("r", [1] * 60, SamplingParams(), seed=0, max_length=80, pictures=(picture,))
    assert not cache.must_wait(seeing, 10)
    assert cache.must_wait(seeing, 9)
    assert encode_all(cache) == 1
    token_ids = np.full(60, 7)
    cache.place(seeing, token_ids)
    assert (token_ids != 7).nonzero()[0].tolist() == [2, 3, 4, 6, 7, 8]
    assert len(set(token_ids.tolist())) == 7


def test_what_the_prefix_cache_has_needs_no_embeddings() -> None:
    cache = PictureCache(4, 2, 100)
    first = request("r", "a", "b")  # at 3 to 5 and 8 to 10
    assert not cache.must_wait(first, 10)
    assert cache.must_wait(first, 9)
    assert encode_all(cache) == 1


def test_a_second_request_finds_the_embeddings() -> None:
    cache = PictureCache(4, 2, 100)
    first, second = request("r", "a"), request("s", "a", "b")
    cache.must_wait(first, 0)
    encode_all(cache)
    cache.release(first)
    assert cache.must_wait(second, 0)
    assert encode_all(cache) == 1
    assert (cache.num_queries, cache.num_hits) == (3, 1)


def test_requests_hold_all_or_nothing() -> None:
    cache = PictureCache(3, 2, 100)
    first, second = request("r", "a", "b"), request("s", "c", "d")
    assert cache.must_wait(first, 0)
    assert cache.must_wait(second, 0)
    assert encode_all(cache) == 2
    assert not cache.must_wait(first, 0)
    assert cache.must_wait(second, 0)
    assert cache.next_job() is None  # there is no room for both of its pictures
    cache.release(first)
    assert cache.must_wait(second, 0)
    assert encode_all(cache) == 2
    assert not cache.must_wait(second, 0)


def test_requests_whose_pages_have_left_the_prefix_cache_do_not_wait_for_each_other() -> None:
    cache = PictureCache(2, 2, 100)
    requests = [request("r", "a", "b"), request("s", "c", "d")]
    for each in requests:
        assert cache.must_wait(each, 8)  # the page of its first picture is cached
    for _ in range(4):
        encode_all(cache)
        for each in list(requests):
            if not cache.must_wait(each, 0):
                cache.release(each)
                requests.remove(each)
    assert requests == []


def test_a_picture_that_nobody_wants_any_more_is_not_encoded() -> None:
    cache = PictureCache(2, 2, 100)
    first, second = request("r", "a"), request("s", "b", "c")
    cache.must_wait(first, 0)
    cache.release(first)
    assert cache.next_job() is None
    assert cache.must_wait(second, 0)
    assert encode_all(cache) == 2


def test_clearing_drops_what_is_being_encoded() -> None:
    cache = PictureCache(2, 2, 100)
    first = request("r", "a")
    cache.must_wait(first, 0)
    job = cache.next_job()
    cache.clear()
    assert job is not None
    assert job.is_dropped
    cache.encoded(job)
    assert cache.must_wait(first, 0)
    assert encode_all(cache) == 1
    assert not cache.must_wait(first, 0)


def test_random_requests_never_share_an_entry_by_mistake() -> None:
    chance = random.Random(4)
    cache, contents = PictureCache(5, 2, 0), dict[int, bytes]()
    live = list[Request]()
    for number in range(3000):
        if len(live) < 6:
            live.append(request(f"r{number}", *chance.choices("abcdefghij", k=chance.randint(1, 5))))
        for each in list(live):
            if not cache.must_wait(each, 0):
                token_ids = np.full(60, -1)
                cache.place(each, token_ids)
                for picture in each.pictures:
                    assert contents[token_ids[picture.start] // 2] == picture.digest
                if chance.random() < 0.7:
                    cache.release(each)
                    live.remove(each)
            elif chance.random() < 0.05:
                cache.release(each)
                live.remove(each)
        job = cache.next_job()
        if job is not None:
            contents[job.positions[0] // 2] = job.digest
            cache.encoded(job)


def test_pictures_of_any_size_take_blocks() -> None:
    cache = PictureCache(4, 2, 100)
    small, large = request("r", "a", "b"), request("s", "c")
    large.pictures = (PromptPicture(1, 5, b"c", PIXELS),)
    assert cache.must_wait(small, 0)
    assert encode_all(cache) == 2
    assert cache.must_wait(large, 0)
    assert cache.next_job() is None  # it takes three blocks, and two are free
    cache.release(small)
    assert cache.must_wait(large, 0)
    assert encode_all(cache) == 1
    token_ids = np.full(60, 7)
    cache.place(large, token_ids)
    assert len(set(token_ids[1:6].tolist())) == 5
    assert token_ids[6] == 7
    assert (token_ids[1:6] >= 100).all()


@pytest.mark.parametrize("num_tiles", [2, 3])
@pytest.mark.parametrize("starts", [(0,), (3,), (64,), (1, 101), (30, 131, 300), (70, 170)])
def test_no_step_ends_within_a_picture(num_tiles: int, starts: tuple[int, ...]) -> None:
    """Also where the prefix cache has the beginning of a picture."""
    size, page_size = 100, 4
    pool = PagePool(400)
    scheduler = Scheduler(
        pool, SequenceBuffer(2, 500, 128), page_size=page_size, max_num_batched_tokens=num_tiles * TILE_SIZE,
        chunk_alignment=TILE_SIZE, vocab_size=1000, eos_token_ids=frozenset(),
    )  # fmt: skip
    cache = scheduler.requests.pictures = PictureCache(4, size, 1000, sees_both_ways=True)
    pictures = tuple(PromptPicture(at, size, str(at).encode(), PIXELS) for at in starts)
    length = starts[-1] + size + 7

    def compute(name: str) -> list[int]:
        """The ends of the steps that compute a prompt."""
        prompt = Request(name, [5] * length, SamplingParams(max_tokens=1), seed=0, max_length=length + 1)
        prompt.pictures = pictures
        scheduler.add(prompt)
        ends = []
        for _ in range(20):
            plan = scheduler.schedule()
            encode_all(cache)
            if plan is not None:
                ends.append(plan.starts[0] + plan.num_tokens[0])
                assert plan.num_tokens[0] > 1
                scheduler.commit(plan, StepResult([9] if plan.samples[0] else []))
        assert ends[-1] == length
        assert cache.num_held == 0
        return ends

    for end in compute("first"):
        assert not any(at < end < at + size for at in starts)
    later = [page for page in pool.pages if page.page_hash is not None and page.page_id > 12]
    pool.touch(later)
    pool.forget(later)
    pool.release(later)
    for end in compute("second"):
        assert not any(at < end < at + size for at in starts)
