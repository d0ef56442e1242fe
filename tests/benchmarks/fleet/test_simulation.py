"""A simulated fleet does all that is asked of it, in the time that the costs of its steps add up to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet.arrivals import Arrival, Synthetic, read_arrivals
from benchmarks.fleet.policies import POLICIES
from benchmarks.fleet.simulated_replica import ReplicaSize
from benchmarks.fleet.simulation import figures, main, simulate
from benchmarks.fleet.step_costs import StepCost, fit
from engine.schedule.step_time.step_costs import StepWork

COST = StepCost(step=1.0, row=2.0, decode_token=0.25, tile=10.0, tile_token=0.5)
SMALL = ReplicaSize(num_slots=3, num_pages=40, page_size=16)

arrivals = st.builds(
    Arrival,
    at=st.floats(0, 2),
    prefix=st.sampled_from("abc"),
    num_shared=st.sampled_from([0, 64, 100]),
    num_own=st.integers(1, 200),
    num_output=st.integers(1, 8),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(arrivals, min_size=1, max_size=12), st.integers(1, 4), st.sampled_from(sorted(POLICIES)))
def test_every_request_gets_all_its_tokens(asked: list[Arrival], num_replicas: int, policy: str) -> None:
    asked = sorted(asked, key=lambda arrival: arrival.at)
    requests, replicas = simulate(asked, POLICIES[policy](), num_replicas, SMALL, COST)
    assert [served.arrival for served in requests] == asked
    for served in requests:
        arrival = served.arrival
        assert (served.num_computed, served.num_output) == (arrival.num_prompt, arrival.num_output)
        assert served.num_cached in (0, arrival.num_shared)
        assert served.ended is not None
        assert served.first_token is not None
        assert arrival.at + served.first_token <= served.ended
    assert [replica.num_unfinished for replica in replicas] == [0] * num_replicas
    assert 0 < figures(requests, replicas).busy < 1.001


def test_a_request_that_is_alone_takes_what_its_steps_cost() -> None:
    alone = Arrival(at=5.0, prefix="a", num_shared=64, num_own=64, num_output=3)
    ((served,), _) = simulate([alone], POLICIES["random"](), 1, SMALL, COST)
    prompt = 1 + 2 * 10 + 0.5 * (64 + 128)
    assert served.first_token == pytest.approx(prompt / 1000)
    decode = sum(1 + 2 + 0.25 * context for context in (129, 130))
    assert served.ended == pytest.approx(5 + (prompt + decode) / 1000)


def test_a_remembered_prefix_is_not_computed_again_until_it_is_evicted() -> None:
    def asked(at: float, prefix: str, num_shared: int = 64) -> Arrival:
        return Arrival(at=at, prefix=prefix, num_shared=num_shared, num_own=16, num_output=1)

    # The third prefix needs the pages of the one that was used the longest time ago.
    script = [asked(0, "a"), asked(10, "b"), asked(20, "a"), asked(30, "c", 512), asked(40, "a"), asked(50, "b")]
    requests, _ = simulate(script, POLICIES["random"](), 1, SMALL, COST)
    assert [served.num_cached for served in requests] == [0, 0, 64, 0, 64, 0]


def test_routing_by_prefixes_finds_more_in_the_caches_than_taking_turns() -> None:
    asked = list(Synthetic(rate=4, num_requests=100, num_prefixes=12, num_shared=256).arrivals())
    size = ReplicaSize(num_pages=140)
    hits = {name: figures(*simulate(asked, make(), 4, size, COST)).hit_rate for name, make in POLICIES.items()}
    assert hits["prefix, by events"] > 2 * hits["round robin"]
    assert hits["prefix, guessed"] > 2 * hits["round robin"]


def test_terms_are_found_again_from_durations() -> None:
    works = [
        StepWork(rows, rows * context, tiles, tiles * context)
        for rows in (1, 4, 16) for context in (100, 400) for tiles in (0, 1, 4)
    ]  # fmt: skip
    found = fit(works, [COST.milliseconds(*work) for work in works])
    assert (found.step, found.row, found.decode_token) == pytest.approx((1.0, 2.0, 0.25))
    assert (found.tile, found.tile_token) == pytest.approx((10.0, 0.5))


def test_recorded_arrivals_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    line = '{{"at": {at}, "prefix": "p", "num_shared": 8, "num_own": 3, "num_output": {num_output}}}\n'
    path.write_text(line.format(at=2, num_output=4) + "\n" + line.format(at=1.5, num_output=5))
    assert [(arrival.at, arrival.num_output) for arrival in read_arrivals(path)] == [(1.5, 5), (2.0, 4)]
    path.write_text(line.format(at=2, num_output=4) + line.format(at=1, num_output=0))
    with pytest.raises(ValueError, match="line 2 is no arrival"):
        read_arrivals(path)


def test_the_table_has_a_line_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replicas", "2", "--requests", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(name in line for line, name in zip(lines[1:], POLICIES, strict=True))
