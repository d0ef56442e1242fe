"""Random arrivals, aborts, deadlines, salts, pauses, lost pages and budgets, all in one test."""

from functools import partial
from itertools import cycle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.interface.types import FinishReason
from engine.loop import Abort, Call
from tests.fakes.runner import EOS, VOCAB_SIZE, expected_output
from tests.fakes.script import World

wishes = st.fixed_dictionaries(
    {
        "turn": st.integers(0, 25),
        "family": st.integers(0, 1),  # requests of a family share a prefix
        "num_shared": st.sampled_from([0, 8, 30, 100]),
        "num_own": st.sampled_from([0, 1, 5, 100]),
        "max_tokens": st.sampled_from([1, 3, 12, 40]),
        "seed": st.none() | st.integers(1, 2**31 - 1),
        "ignore_eos": st.booleans(),
        "priority": st.integers(0, 2),
        "salt": st.sampled_from([None, None, "tenant"]),
        "has_expired": st.sampled_from([None, None, None, None, "deadline", "queue_deadline"]),
        "abort_after": st.none() | st.none() | st.integers(0, 30),
    }
)
events = st.lists(
    st.tuples(st.sampled_from(["lose the pages", "pause", "hold back"]), st.integers(0, 40), st.integers(1, 20)),
    max_size=4,
)
sizes = st.sampled_from([(1, 45, 4), (4, 45, 4), (4, 60, 4), (6, 60, 3), (3, 200, 1), (5, 30, 8)])


@settings(max_examples=150)
@given(
    st.lists(wishes, min_size=1, max_size=14),
    events,
    sizes,
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 1, 3, 5]),
    st.integers(0, 126),
    st.sampled_from([0.0, 0.0, 4.0, 12.0]),
    st.sampled_from([(0,), (0,), (0, 9), (0, 30, 30)]),
    st.sampled_from([1, 4, 16]),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
)
def test_every_request_gets_what_it_gets_alone_whatever_happens(
    script, events, size, overlap, prefix_caching, decode_chunk, more_budget, target_gap, windows,
    max_burst_steps, leads,
):  # fmt: skip
    num_slots, num_pages, page_size = size
    world = World(
        num_slots, num_pages, page_size, 170, 3, overlap, prefix_caching, decode_chunk, target_gap=target_gap,
        duration=lambda plan: 0.001 + 0.004 * plan.work.num_tiles, windows=windows,
        max_burst_steps=max_burst_steps, lead=partial(next, cycle(leads)),
    )  # fmt: skip
    world.scheduler.max_num_batched_tokens = 64 + more_budget
    turns, requests, expected = {}, {}, {}
    for index, wish in enumerate(script):
        name, seed = str(index), wish["seed"]
        shared = np.random.default_rng(wish["family"]).integers(1, VOCAB_SIZE, wish["num_shared"])
        own = np.random.default_rng(1000 + index).integers(1, VOCAB_SIZE, wish["num_own"])
        prompt = ([*shared.tolist(), *own.tolist()] or [1])[: world.max_model_len - 1]
        options = {key: wish[key] for key in ("priority", "max_tokens", "ignore_eos")}
        options |= {"temperature": 0.0} if seed is None else {"temperature": 1.0, "seed": seed}
        request = world.request(name, prompt, arrival=index, **options)
        request.cache_salt = wish["salt"]
        if wish["has_expired"]:
            setattr(request, wish["has_expired"], 0.0)
        requests[name] = request
        expected[name] = expected_output(prompt, seed or 0, request.max_length, ignore_eos=wish["ignore_eos"])
        turns.setdefault(wish["turn"], []).append(request)
        if wish["abort_after"] is not None:
            turns.setdefault(wish["turn"] + wish["abort_after"], []).append(Abort(name))

    def lose_the_pages():
        world.scheduler.send_all_back()
        world.runner.cache[:] = -7
        assert world.pool.num_free == world.pool.num_pages

    for kind, turn, duration in events:
        if kind == "lose the pages":
            turns.setdefault(turn, []).append(Call(lose_the_pages))
            continue
        target, name, value = {
            "pause": (world, "is_paused", True),
            "hold back": (world.scheduler, "is_admitting", False),
        }[kind]
        turns.setdefault(turn, []).append(Call(lambda t=target, n=name, v=value: setattr(t, n, v)))
        turns.setdefault(turn + duration, []).append(Call(lambda t=target, n=name, v=value: setattr(t, n, not v)))

    outcomes = world.run(turns)
    assert outcomes.keys() == expected.keys()
    for name, outcome in outcomes.items():
        wish = script[int(name)]
        if outcome.finish_reason in (FinishReason.ABORT, FinishReason.TIMEOUT):
            assert outcome.token_ids == expected[name][: len(outcome.token_ids)]
            assert wish["abort_after"] is not None or wish["has_expired"]
            continue
        assert outcome.token_ids == expected[name]
        ended_by_eos = outcome.token_ids[-1] == EOS and not wish["ignore_eos"]
        assert outcome.finish_reason is (FinishReason.STOP if ended_by_eos else FinishReason.LENGTH)
    assert world.scheduler.counters.num_dequeued == len(expected)
    for request in requests.values():
        assert (request.num_in_flight_steps, request.num_in_flight_tokens, request.tables) == (0, 0, [[]])
