"""Requests whose prefixes come from outside, on a fake device whose output betrays every wrong page."""

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.hashing import hash_request_tokens, sha256_hash
from engine.interface.types import FinishReason
from engine.kv_transfer.transfer_threads import Arrival
from engine.kv_transfer.transfers import PageTransfers
from engine.loop import Abort, Call
from tests.fakes.runner import VOCAB_SIZE, expected_output
from tests.fakes.script import World


class Shelf:
    """A connector in memory, some of whose pages cannot be had although it says so."""

    def __init__(self, num_failing=0):
        self.pages = {}
        self.num_failing = num_failing
        self.refuses = False
        self.num_loads = 0
        self.lost = set()  # pages that cannot be had

    def holds(self, name):
        return name in self.pages

    def load(self, name):
        self.num_loads += 1
        if self.num_failing:
            self.num_failing -= 1
            self.pages.pop(name, None)
        return None if name in self.lost else self.pages.get(name)

    def store(self, name, content):
        if not self.refuses:
            self.pages[name] = np.concatenate([part.reshape(-1).view(np.uint8) for part in content])
        return not self.refuses

    def touch(self, names):
        pass

    def forget(self, names):
        for name in names:
            self.pages.pop(name, None)

    def clear(self):
        self.pages.clear()


class SlowThreads:
    """Does what TransferThreads does, each thing `delay` looks after it was asked for."""

    def __init__(self, device, clock, delay, is_stuck=False):
        self.connector = None
        self.num_stored = 0
        self.refused_at = -1e9
        self.arrived = self
        self._device, self._clock, self._delay, self._is_stuck = device, clock, delay, is_stuck
        self._tasks, self._load_requests, self._num_looks = deque(), deque(), 0

    def open(self, make):
        self.connector = make()

    @property
    def num_tasks(self):
        while self._tasks and self._tasks[0][0] + self._delay <= self._num_looks:
            if self._tasks[0][2] == []:  # a real thread waits here until the step has run that fills the page
                break
            self._tasks.popleft()[1]()
        return len(self._tasks)

    def submit(self, task, page=None):
        self._tasks.append((self._num_looks, task, page))

    def store(self, connector, name, page):
        def task():
            if connector.store(name, self._device.to_host(page)):
                self.num_stored += 1
            else:
                self.refused_at = self._clock()

        self.submit(task, page)

    def request_load(self, job, index):
        self._load_requests.append((self._num_looks, job, index))

    # The queue of arrivals.

    def empty(self):
        self._num_looks += 1
        return self._is_stuck or not self._load_requests or self._load_requests[0][0] + self._delay > self._num_looks

    def get(self):
        _, job, index = self._load_requests.popleft()
        content = job.connector.load(job.names[index].hash_value) if job.is_active else None
        return Arrival(job, index, None if content is None else self._device.to_device(content))

    def close(self, join_seconds):
        self._delay = 0
        assert self.num_tasks == 0


def world_with(shelf, delay=3, is_stuck=False, **sizes):
    """An engine whose clock counts the looks of the engine thread."""
    now = [0.0]

    def clock():
        now[0] += 0.01
        return now[0]

    def transfers(pool, runner):
        def make_threads(device, wake, clock):
            return SlowThreads(device, clock, delay, is_stuck)

        made = PageTransfers(pool, runner, clock=clock, make_threads=make_threads)
        made.start()
        made.open(lambda: shelf)
        return made

    return World(transfers=transfers, **sizes)


def run(world, turns):
    outcomes = world.run(turns)
    world.page_transfers.close(1.0)
    return outcomes


wishes = st.fixed_dictionaries(
    {
        "turn": st.integers(0, 25),
        "family": st.integers(0, 1),  # requests of a family share a prefix
        "num_shared": st.sampled_from([0, 8, 30, 100]),
        "num_own": st.sampled_from([0, 1, 5, 60]),
        "max_tokens": st.sampled_from([1, 3, 12]),
        "seed": st.none() | st.integers(1, 2**31 - 1),
        "salt": st.sampled_from([None, None, "tenant"]),
        "abort_after": st.none() | st.none() | st.integers(0, 30),
    }
)


@settings(max_examples=60)
@given(
    st.lists(wishes, min_size=1, max_size=9),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.sampled_from([(1, 45, 4), (4, 45, 4), (6, 60, 3), (3, 200, 1)]),
    st.integers(0, 9),
    st.integers(0, 5),
    st.none() | st.integers(0, 40),
    st.sampled_from([(0,), (0,), (0, 9), (0, 30, 30)]),
)
def test_every_request_gets_what_it_gets_alone_over_two_starts(
    script, overlap, decode_chunk, size, delay, num_failing, lost_at, windows
):
    num_slots, num_pages, page_size = size
    shelf = Shelf(num_failing)
    for start in range(2):
        world = world_with(
            shelf, delay, num_slots=num_slots, num_pages=num_pages, page_size=page_size, max_model_len=170, num_tiles=3,
            overlap=overlap, decode_chunk=decode_chunk, windows=windows,
        )  # fmt: skip
        turns, expected = {}, {}
        for index, wish in enumerate(script):
            shared = np.random.default_rng(wish["family"]).integers(1, VOCAB_SIZE, wish["num_shared"])
            own = np.random.default_rng(1000 + index).integers(1, VOCAB_SIZE, wish["num_own"])
            prompt = ([*shared.tolist(), *own.tolist()] or [1])[: world.max_model_len - 1]
            options = {"temperature": 0.0} if wish["seed"] is None else {"temperature": 1.0, "seed": wish["seed"]}
            request = world.request(str(index), prompt, arrival=index, max_tokens=wish["max_tokens"], **options)
            request.cache_salt = wish["salt"]
            expected[str(index)] = expected_output(prompt, wish["seed"] or 0, request.max_length)
            turns.setdefault(wish["turn"], []).append(request)
            if wish["abort_after"] is not None:
                turns.setdefault(wish["turn"] + wish["abort_after"], []).append(Abort(str(index)))

        def lose_the_pages(world=world):
            world.scheduler.send_all_back()
            world.page_transfers.cancel_all()
            world.runner.cache[:] = -7

        if lost_at is not None:
            turns.setdefault(lost_at, []).append(Call(lose_the_pages))
        outcomes = run(world, turns)
        assert outcomes.keys() == expected.keys()
        for name, outcome in outcomes.items():
            if outcome.finish_reason is FinishReason.ABORT:
                assert outcome.token_ids == expected[name][: len(outcome.token_ids)]
            else:
                assert outcome.token_ids == expected[name], start


def test_after_a_restart_a_prefix_is_read_and_not_computed():
    shelf, prompt = Shelf(), list(range(1, 39))
    first = world_with(shelf)
    before = run(first, {0: [first.request("a", prompt, max_tokens=5)]})
    assert len(shelf.pages) == first.page_transfers.num_stored == (38 + 4) // 4
    second = world_with(shelf)
    request = second.request("a", prompt, max_tokens=5)
    after = run(second, {0: [request]})
    assert after == before
    assert request.num_cached_tokens == 36
    assert second.page_transfers.num_read == 9
    assert second.scheduler.counters.prefix_cache_hits == 36


def test_after_a_restart_only_the_end_of_a_window_is_read():
    """All pages of the group that sees all, and of the two groups with windows those behind each quarter."""
    shelf, prompt, sizes = Shelf(), list(range(1, 39)) * 5, {"num_pages": 400, "max_model_len": 250}
    first = world_with(shelf, windows=(0, 9, 9), **sizes)
    before = run(first, {0: [first.request("a", prompt, max_tokens=5)]})
    second = world_with(shelf, windows=(0, 9, 9), **sizes)
    request = second.request("a", prompt, max_tokens=5)
    assert run(second, {0: [request]}) == before
    assert request.num_cached_tokens == 188
    assert (second.page_transfers.num_read, second.page_transfers.num_read_of_first) == (47 + 4 * 2 * 2, 47)


def test_a_load_that_ends_early_is_of_use_for_the_quarters_before():
    shelf, prompt, sizes = Shelf(), list(range(1, 39)) * 5, {"num_pages": 400, "max_model_len": 250}
    first = world_with(shelf, windows=(0, 9, 9), **sizes)
    before = run(first, {0: [first.request("a", prompt, max_tokens=5)]})
    names = hash_request_tokens(sha256_hash, 4, prompt)
    shelf.lost = {names[30].hash_value}
    second = world_with(shelf, windows=(0, 9, 9), **sizes)
    request = second.request("a", prompt, max_tokens=5)
    assert run(second, {0: [request]}) == before
    assert request.num_cached_tokens == 47 * 2 // 4 * 4


def test_pages_that_were_given_back_and_evicted_are_forgotten_outside():
    shelf, prompt = Shelf(), list(range(1, 39)) * 5
    world = world_with(shelf, windows=(0, 9, 9), num_pages=400, max_model_len=250)
    request = world.request("a", prompt, max_tokens=40, ignore_eos=True)
    seen = []

    def forget_what_is_wrong():
        world.pool.release(world.pool.allocate(world.pool.num_free + 40))
        seen.append(len(shelf.pages))
        world.scheduler.requests.prefixes.forget(request)
        world.page_transfers.open(lambda: shelf)  # so that nothing else is stored
        shelf.refuses = True

    run(world, {0: [request], 30: [Call(forget_what_is_wrong)]})
    assert seen[0] > 100
    assert not shelf.pages


def test_a_page_is_stored_where_a_second_one_has_the_same_content():
    shelf = Shelf()
    world = world_with(shelf, delay=0)
    (name,) = hash_request_tokens(sha256_hash, 4, [1, 2, 3, 4], ())
    for page in world.pool.allocate(2):
        world.pool.cache_page(page, name)
        world.page_transfers.note(page, name)
    assert world.page_transfers.export_pages()
    world.page_transfers.close(1.0)
    assert shelf.pages.keys() == {name.hash_value}


def test_others_go_on_while_a_request_waits_for_its_pages():
    shelf, prompt = Shelf(), list(range(1, 39))
    first = world_with(shelf)
    run(first, {0: [first.request("a", prompt, max_tokens=1)]})
    second = world_with(shelf, delay=12)
    told = []
    second.watchers.append(lambda events: told.extend(event.request.request_id for event in events if event.token_ids))
    requests = [
        second.request("waits", prompt, max_tokens=1),
        second.request("shares", [*prompt, 7], max_tokens=1, arrival=1),
        second.request("other", [3, 3, 3], max_tokens=5, arrival=2, ignore_eos=True),
    ]
    run(second, {0: requests})
    assert told.index("other") < told.index("waits")
    assert second.page_transfers.num_read == 9  # the two that share a prefix get its pages once
    assert [request.num_cached_tokens for request in requests] == [36, 36, 0]


def test_salts_keep_prefixes_apart():
    shelf, prompt = Shelf(), list(range(1, 39))
    for salt in ("one", "two", "one"):
        world = world_with(shelf)
        request = world.request("a", prompt, max_tokens=1)
        request.cache_salt = salt
        run(world, {0: [request]})
        found = request.num_cached_tokens
    assert found == 36
    assert len(shelf.pages) == 18


def test_a_page_that_cannot_be_had_is_computed():
    shelf, prompt = Shelf(), list(range(1, 39))
    first = world_with(shelf)
    before = run(first, {0: [first.request("a", prompt, max_tokens=5)]})
    kept = len(shelf.pages)
    shelf.num_failing = 1
    second = world_with(shelf)
    assert run(second, {0: [second.request("a", prompt, max_tokens=5)]}) == before
    assert len(shelf.pages) == kept  # and stored again


def test_a_disk_that_hangs_costs_some_seconds_once(caplog):
    shelf, prompt = Shelf(), list(range(1, 39))
    first = world_with(shelf)
    before = run(first, {0: [first.request("a", prompt, max_tokens=5)]})
    second = world_with(shelf, is_stuck=True)
    requests = [second.request("a", prompt, max_tokens=5), second.request("b", prompt, max_tokens=5, arrival=1)]
    outcomes = run(second, {0: requests[:1], 2000: requests[1:]})
    assert outcomes["a"] == outcomes["b"] == before["a"]
    assert "none came for 2 s" in caplog.text
    assert shelf.num_loads == 0


def test_a_full_place_is_asked_now_and_then():
    shelf = Shelf()
    shelf.refuses = True
    world = world_with(shelf, delay=0)
    run(world, {0: [world.request("a", list(range(1, 39)), max_tokens=5)]})
    assert world.page_transfers.num_stored == 0


def test_wrong_content_does_not_stay_outside():
    """A step that computes no number makes its request fail; its pages must not outlive it anywhere."""
    shelf = Shelf()
    world = world_with(shelf, delay=0)
    real = world.runner._execute
    world.runner._execute = lambda inputs, masks: [VOCAB_SIZE for _ in real(inputs, masks)]
    outcomes = run(world, {0: [world.request("a", list(range(1, 39)), max_tokens=5)]})
    assert outcomes["a"].finish_reason is FinishReason.ERROR
    assert shelf.pages == {}
    assert world.pool.num_cached == 0
