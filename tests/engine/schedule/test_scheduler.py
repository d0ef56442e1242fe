"""Random arrivals, aborts, priorities and page pressure: everyone gets what they would get alone."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.pool import PagePool
from engine.interface.config import TILE_SIZE
from engine.interface.types import FinishReason
from engine.loop import Abort, Call
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence_buffer import SequenceBuffer
from sampling.host.params import SamplingParams
from sampling.host.rows import INT_COLUMNS
from tests.fakes.page_index import PageIndex
from tests.fakes.runner import EOS, VOCAB_SIZE, expected_output, next_token
from tests.fakes.script import World

wishes = st.fixed_dictionaries(
    {
        "turn": st.integers(0, 25),
        "family": st.integers(0, 2),  # requests of a family share a prefix
        "num_shared": st.integers(0, 12),
        "num_own": st.integers(0, 150),
        "max_tokens": st.integers(1, 12),
        "seed": st.none() | st.integers(1, 2**31 - 1),
        "ignore_eos": st.booleans(),
        "priority": st.integers(0, 2),
        "abort_after": st.none() | st.integers(0, 30),
    }
)


def prompt_of(index, wish):
    shared = np.random.default_rng(wish["family"]).integers(1, VOCAB_SIZE, wish["num_shared"])
    own = np.random.default_rng(1000 + index).integers(1, VOCAB_SIZE, wish["num_own"])
    return [*shared.tolist(), *own.tolist()] or [1]


@settings(max_examples=120, deadline=None)
@given(
    st.lists(wishes, min_size=1, max_size=14),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 1, 3]),
    st.sampled_from([(1, 45, 4), (4, 45, 4), (4, 90, 4), (6, 60, 3), (3, 200, 1)]),
)
def test_every_request_gets_what_it_gets_alone(script, overlap, prefix_caching, decode_chunk, size):
    num_slots, num_pages, page_size = size
    world = World(num_slots, num_pages, page_size, 170, 2, overlap, prefix_caching, decode_chunk)
    told = PageIndex(world.pool)
    turns, expected = {}, {}
    for index, wish in enumerate(script):
        prompt = prompt_of(index, wish)[: world.max_model_len - 1]
        params = {"temperature": 0.0} if wish["seed"] is None else {"temperature": 1.0, "seed": wish["seed"]}
        request = world.request(
            str(index),
            prompt,
            arrival=index,
            priority=wish["priority"],
            max_tokens=wish["max_tokens"],
            ignore_eos=wish["ignore_eos"],
            **params,
        )
        expected[str(index)] = expected_output(
            prompt, wish["seed"] or 0, request.max_length, ignore_eos=wish["ignore_eos"]
        )
        turns.setdefault(wish["turn"], []).append(request)
        if wish["abort_after"] is not None:
            turns.setdefault(wish["turn"] + wish["abort_after"], []).append(Abort(str(index)))
    outcomes = world.run(turns)
    told.check()
    assert outcomes.keys() == expected.keys()
    for name, outcome in outcomes.items():
        if outcome.finish_reason is FinishReason.ABORT:
            assert outcome.token_ids == expected[name][: len(outcome.token_ids)]
            continue
        assert outcome.token_ids == expected[name]
        ended_by_eos = outcome.token_ids[-1] == EOS and not script[int(name)]["ignore_eos"]
        assert outcome.finish_reason is (FinishReason.STOP if ended_by_eos else FinishReason.LENGTH)
    # There is no livelock: a request needs steps for its chunks and tokens, and a few for each preemption.
    budget = sum(4 + wish["max_tokens"] for wish in script) + 40 * world.scheduler.counters.num_preemptions
    assert world.runner.num_steps <= budget


def test_the_overlapped_loop_has_two_steps_in_flight_and_computes_none_behind_a_known_end():
    world = World(overlap=True)
    world.run({0: [world.request("a", [5, 6, 7], max_tokens=9, ignore_eos=True)]})
    assert world.runner.max_in_flight == 2
    assert world.runner.num_steps == 9
    synchronous = World(overlap=False)
    synchronous.run({0: [synchronous.request("a", [5, 6, 7], max_tokens=9, ignore_eos=True)]})
    assert synchronous.runner.max_in_flight == 1
    assert synchronous.outcomes == world.outcomes


def test_a_chunk_is_several_steps_at_once_and_the_rest_are_single_steps():
    world = World(decode_chunk=4)
    outcomes = world.run({0: [world.request("a", [5, 6, 7], max_tokens=11, ignore_eos=True)]})
    assert outcomes["a"].token_ids == expected_output([5, 6, 7], 0, 14, ignore_eos=True)
    # The prompt's own step, two chunks of four, and two single steps.
    assert world.runner.num_steps == 5


def test_a_stop_found_one_step_late_has_no_effect_on_output_or_cache():
    """The step after the stop token computes one row too many; its token, hash and counts are dropped."""
    prompt = next(p for p in ([i % 39 + 1, i % 7 + 1, 9] for i in range(1, 400)) if len(expected_output(p, 0, 40)) == 5)
    world = World(page_size=1, num_pages=60)
    outcomes = world.run({0: [world.request("a", prompt, max_tokens=30)]})
    assert outcomes["a"].token_ids == expected_output(prompt, 0, 40)
    assert outcomes["a"].finish_reason is FinishReason.STOP
    assert world.runner.num_steps == 6  # one more than the output has tokens
    assert world.scheduler.counters.num_generation_tokens == 5
    # The keys of the prompt and of all output tokens but the last were computed and committed.
    assert world.pool.num_cached == len(prompt) + 4


def test_stop_token_ids_end_a_request_and_are_its_last_token():
    prompt = [3, 1, 4]
    whole = expected_output(prompt, 0, 20, ignore_eos=True)
    stop = whole[4]
    world = World()
    outcomes = world.run({0: [world.request("a", prompt, max_tokens=17, ignore_eos=True, stop_token_ids=(stop,))]})
    assert outcomes["a"].token_ids == whole[: whole.index(stop) + 1]
    assert outcomes["a"].finish_reason is FinishReason.STOP


def test_running_requests_go_first_and_long_prompts_come_in_chunks():
    world = World(num_slots=2, num_pages=400, page_size=4, max_model_len=600, num_tiles=1)
    stream = world.request("stream", [7], max_tokens=40, ignore_eos=True)
    burst = world.request("burst", list(range(1, 39)) * 10, arrival=1, max_tokens=2, ignore_eos=True)
    gaps = []
    world.watchers.append(lambda events: gaps.append([event.request.request_id for event in events]))
    world.run({0: [stream], 5: [burst]})
    # The prompt of 380 tokens takes six steps, and the stream gets a token in each of its own steps.
    assert all("stream" in names for names in gaps[:40])
    assert world.outcomes["burst"].token_ids == expected_output(burst.token_ids[:380], 0, 382, ignore_eos=True)


def test_a_stream_admitted_after_a_long_prompt_gets_a_token_in_each_step_too():
    world = World(num_slots=4, num_pages=400, page_size=4, max_model_len=1000)
    world.scheduler.max_num_batched_tokens = TILE_SIZE
    first = [world.request(f"first-{i}", [i + 1], max_tokens=4, ignore_eos=True) for i in range(2)]
    long = world.request("long", list(range(1, 39)) * 20, arrival=1, max_tokens=2, ignore_eos=True)
    stream = world.request("stream", [7], arrival=2, max_tokens=30, ignore_eos=True)
    steps = []
    world.watchers.append(lambda events: steps.append({event.request.request_id for event in events}))
    world.run({0: first, 1: [long, stream]})
    begin = next(step for step, names in enumerate(steps) if "stream" in names)
    assert all("stream" in names for names in steps[begin : begin + 30])
    # The prompt took at least nine steps beside the stream.
    assert any("long" in names for names in steps[begin + 8 : begin + 30])


def test_priority_decides_who_waits():
    world = World(num_slots=1)
    requests = [
        world.request(name, [index + 1], arrival=index, priority=priority, max_tokens=2, ignore_eos=True)
        for index, (name, priority) in enumerate([("late", 5), ("second", 1), ("first", 0), ("third", 1)])
    ]
    finished = []
    world.watchers.append(
        lambda events: finished.extend(event.request.request_id for event in events if event.finish_reason)
    )
    world.run({0: requests})
    assert finished == ["first", "second", "third", "late"]


def test_without_free_pages_the_latest_request_is_preempted_and_still_gets_its_tokens():
    world = World(num_slots=2, num_pages=12, page_size=2, max_model_len=22, prefix_caching=False)
    old = world.request("old", [1, 2, 3], arrival=0, max_tokens=17, ignore_eos=True)
    new = world.request("new", [4, 5, 6], arrival=1, max_tokens=17, ignore_eos=True)
    outcomes = world.run({0: [old, new]})
    assert old.num_preemptions == 0
    assert new.num_preemptions >= 1
    assert outcomes["old"].token_ids == expected_output([1, 2, 3], 0, 20, ignore_eos=True)
    assert outcomes["new"].token_ids == expected_output([4, 5, 6], 0, 20, ignore_eos=True)


def test_a_cached_prefix_is_not_computed_again_and_a_full_hit_leaves_one_page():
    prompt = list(range(1, 17))  # four pages
    world = World(num_pages=60)
    first = world.request("first", prompt, max_tokens=1, ignore_eos=True)
    again = world.request("again", prompt, arrival=1, max_tokens=1, ignore_eos=True)
    outcomes = world.run({0: [first], 5: [again]})
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 12)
    assert outcomes["again"] == outcomes["first"]
    counters = world.scheduler.counters
    assert (counters.prefix_cache_queries, counters.prefix_cache_hits) == (32, 12)


def test_requests_that_arrive_together_compute_a_common_prefix_once():
    shared = list(range(1, 33))
    world = World(num_slots=4, num_pages=100)
    requests = [world.request(str(i), [*shared, i + 1], arrival=i, max_tokens=3, ignore_eos=True) for i in range(4)]
    outcomes = world.run({0: requests})
    assert [request.num_cached_tokens for request in requests] == [0, 32, 32, 32]
    assert world.runner.num_steps == 3  # they begin together, in the step that computes the prefix
    for i, request in enumerate(requests):
        assert outcomes[request.request_id].token_ids == expected_output([*shared, i + 1], 0, 36, ignore_eos=True)


def test_a_crowd_with_a_long_common_prefix_starts_together_and_wastes_no_tile():
    shared, page_size = list(range(1, 39)) * 8, 4  # 304 tokens
    world = World(num_slots=8, num_pages=700, page_size=page_size, max_model_len=400, num_tiles=2)
    requests = [
        world.request(str(i), [*shared, *[i + 1] * 60], arrival=i, max_tokens=9, ignore_eos=True) for i in range(8)
    ]
    published = {}

    def watch(events):
        for event in events:
            published.setdefault(event.request.request_id, world.runner.num_steps)

    world.watchers.append(watch)
    outcomes = world.run({0: requests})
    for i, request in enumerate(requests):
        assert request.num_cached_tokens == (304 if i else 0)
        assert outcomes[str(i)].token_ids == expected_output([*shared, *[i + 1] * 60], 0, 373, ignore_eos=True)
    # Six tiles for the first prompt and one for each other, two in a step; tokens are told two dispatches later.
    assert max(published.values()) == -(-(6 + 7) // 2) + 2


def test_a_short_prompt_overtakes_long_ones_that_came_before_it():
    world = World(num_slots=6, num_pages=900, page_size=4, max_model_len=700, num_tiles=1)
    long = [
        world.request(f"long-{i}", [i + 1, *range(1, 39)] * 16, arrival=i, max_tokens=1, ignore_eos=True)
        for i in range(4)
    ]
    short = world.request("short", list(range(1, 30)), arrival=9, max_tokens=1, ignore_eos=True)
    ended = {}
    world.watchers.append(
        lambda events: ended.update({e.request.request_id: world.runner.num_steps for e in events if e.finish_reason})
    )
    world.run({0: long, 10: [short]})
    assert ended["short"] <= 10 + 1 + 2 + 2  # its step, one turn of the longest waiting, and the way to the reader
    assert all(ended[request.request_id] > ended["short"] for request in long)


def test_a_long_prompt_is_not_starved_by_short_ones():
    world = World(num_slots=3, num_pages=900, page_size=4, max_model_len=700, num_tiles=1)
    long = world.request("long", list(range(1, 39)) * 16, arrival=0, max_tokens=1, ignore_eos=True)  # ten tiles
    flood = {
        turn: [world.request(f"short-{turn}", [turn % 38 + 1] * 20, arrival=turn, max_tokens=1, ignore_eos=True)]
        for turn in range(1, 120)
    }
    ended = {}
    world.watchers.append(
        lambda events: ended.update({e.request.request_id: world.runner.num_steps for e in events if e.finish_reason})
    )
    world.run({0: [long], **flood})
    assert 10 < ended["long"] <= 10 * 4 + 4


def test_prompt_pages_of_an_aborted_request_are_reused():
    prompt = list(range(1, 30)) * 5
    world = World(num_slots=1, num_pages=100, max_model_len=170, num_tiles=1)
    doomed = world.request("doomed", prompt, max_tokens=5)
    heir = world.request("heir", prompt, arrival=1, max_tokens=5)
    outcomes = world.run({0: [doomed], 2: [Abort("doomed")], 6: [heir]})
    assert outcomes["doomed"].finish_reason is FinishReason.ABORT
    assert heir.num_cached_tokens >= 64
    assert outcomes["heir"].token_ids == expected_output(prompt, 0, len(prompt) + 5)


def test_different_salts_share_nothing():
    prompt = list(range(1, 17))
    world = World(num_pages=60)
    requests = [world.request(str(i), prompt, arrival=i, max_tokens=1) for i in range(3)]
    requests[1].cache_salt = "tenant"
    world.run({0: requests[:1], 5: requests[1:2], 10: requests[2:]})
    assert [request.num_cached_tokens for request in requests] == [0, 0, 12]


def test_a_sampled_value_outside_the_vocabulary_ends_only_its_own_request(monkeypatch):
    world = World()
    broken = world.request("broken", [1, 2], max_tokens=5, ignore_eos=True)
    fine = world.request("fine", [3, 4], arrival=1, max_tokens=5, ignore_eos=True)
    monkeypatch.setattr(
        "tests.fakes.runner.next_token", lambda ids, seed: VOCAB_SIZE if ids[0] == 1 else next_token(ids, seed)
    )
    outcomes = world.run({0: [broken, fine]})
    assert outcomes["broken"].finish_reason is FinishReason.ERROR
    assert "not a number" in outcomes["broken"].error
    assert outcomes["fine"].token_ids == expected_output([3, 4], 0, 7, ignore_eos=True)


def test_pages_of_a_failed_request_are_not_reused(monkeypatch):
    prompt = list(range(1, 39)) * 4
    world = World(num_slots=2, num_pages=100, max_model_len=170, num_tiles=1)  # three steps for the prompt
    monkeypatch.setattr("tests.fakes.runner.next_token", lambda ids, seed: VOCAB_SIZE)
    outcomes = world.run({0: [world.request("broken", prompt, max_tokens=5)]})
    assert outcomes["broken"].finish_reason is FinishReason.ERROR
    assert world.pool.num_cached == 0


def test_a_budget_that_would_starve_prompts_is_refused():
    with pytest.raises(ValueError, match="max_num_batched_tokens is 63; it must be at least one chunk of 64"):
        Scheduler(
            PagePool(4),
            SequenceBuffer(8, 16, 4),
            page_size=4,
            max_num_batched_tokens=63,
            chunk_alignment=TILE_SIZE,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=frozenset(),
        )


def test_a_second_request_with_the_same_id_is_refused():
    world = World()
    world.scheduler.add(world.request("a", [1]))
    with pytest.raises(ValueError, match="'a' is known already"):
        world.scheduler.add(world.request("a", [2]))


def test_a_top_k_above_every_vocabulary_keeps_it_whole():
    buffer = SequenceBuffer(1, 16, 4)
    buffer.add_request(Request("a", [1], SamplingParams(top_k=2**31), seed=0, max_length=2))
    assert buffer.sampling.ints[0, INT_COLUMNS["top_k"]] == 2**31 - 1


def test_a_request_waits_only_shortly_for_output_pages_that_another_computes_again():
    """After the pages are lost, output pages are computed again and awaited too; each is shared once it is full."""
    world = World(num_slots=4, num_pages=600, page_size=4, max_model_len=600, num_tiles=1)
    twins = [world.request(str(i), [5, 6, 7], arrival=i, max_tokens=400, ignore_eos=True) for i in range(2)]
    published = {"0": [], "1": []}

    def watch(events):
        for event in events:
            published[event.request.request_id].append(world.runner.num_steps)

    world.watchers.append(watch)

    def lose_the_pages():
        world.scheduler.send_all_back()
        world.runner.cache[:] = -7

    outcomes = world.run({0: twins, 300: [Call(lose_the_pages)]})
    assert outcomes["0"].token_ids == outcomes["1"].token_ids == expected_output([5, 6, 7], 0, 403, ignore_eos=True)
    steps = published["1"]
    assert max(after - before for before, after in pairwise(steps)) <= 20


def test_events_committed_before_a_failure_are_published():
    world = World()
    dispatch = world.runner.dispatch

    def failing(plan):
        if world.runner.num_steps == 6:
            raise RuntimeError("the device is gone")
        return dispatch(plan)

    world.runner.dispatch = failing
    with pytest.raises(RuntimeError, match="the device is gone"):
        world.run({0: [world.request("a", [1, 2], max_tokens=5, ignore_eos=True), world.request("b", [3], arrival=1)]})
    assert len(world.outcomes["a"].token_ids) == world.scheduler.counters.num_generation_tokens - len(
        world.outcomes["b"].token_ids
    )
    assert world.outcomes["a"].finish_reason is FinishReason.LENGTH


def test_the_events_of_drained_steps_come_before_the_call_that_drained_them():
    world = World()
    seen = []
    call = Call(lambda: seen.append((len(request.token_ids) - 2, len(world.outcomes["a"].token_ids))))
    request = world.request("a", [1, 2], max_tokens=20, ignore_eos=True)
    world.run({0: [request], 8: [call]})
    [(committed, told)] = seen
    assert committed == told > 0


def test_a_leak_is_found_when_the_scheduler_is_idle():
    world = World()
    world.scheduler.check_idle()
    world.pool.allocate(2)
    with pytest.raises(RuntimeError, match="2 pages and 0 slots are held by no request"):
        world.scheduler.check_idle()


def test_a_crowd_of_one_tenant_does_not_starve_another():
    world = World(num_slots=1, num_pages=200)
    crowd = [world.request(f"crowd-{index}", [index + 1, 5], arrival=index, max_tokens=4) for index in range(20)]
    single = world.request("single", [30, 5], arrival=99, max_tokens=4)
    for request in crowd:
        request.tenant = "crowd"
    single.tenant = "single"
    order = []
    world.watchers.append(lambda events: order.extend(e.request.request_id for e in events if e.finish_reason))
    world.run({0: crowd, 6: [single]})
    assert len(order) == 21
    assert order.index("single") <= 4
    assert [name for name in order if name != "single"] == [request.request_id for request in crowd]
