"""How memory is shared by states, pages and snapshots."""

from __future__ import annotations

import pytest

from cache.states import StateArray, StateLayout, pages_beside_states, snapshot_interval

LAYOUT = StateLayout((StateArray("inputs", 3, (3, 8)), StateArray("matrices", 3, (2, 4, 4))), 4, 5)


def test_a_state_takes_the_bytes_of_all_layers() -> None:
    assert LAYOUT.bytes_per_entry == 3 * (3 * 8 + 2 * 4 * 4) * 4
    assert StateLayout().bytes_per_entry == 0


def test_snapshots_lie_behind_the_slots() -> None:
    assert [LAYOUT.entry_of(snapshot) for snapshot in range(1, 6)] == [4, 5, 6, 7, 8]
    assert LAYOUT.num_entries == 9


@pytest.mark.parametrize(
    ("state_bytes", "expected"),
    [(1, 2), (100, 2), (400, 4), (401, 5), (10**9, 14)],  # a tile at least, 448 tokens at most
)
def test_a_snapshot_costs_no_more_than_the_pages_before_it(state_bytes: int, expected: int) -> None:
    assert snapshot_interval(state_bytes, 100, 32, 64) == expected


def test_pages_larger_than_a_tile_each_have_a_snapshot() -> None:
    assert snapshot_interval(10**9, 100, 512, 64) == 1


def test_slots_come_first_and_the_rest_is_shared() -> None:
    # 5 slots take 2,000 of 12,000; 10 intervals of 3 pages of 200 and a snapshot of 400 take the rest.
    assert pages_beside_states(12_000, 200, 999, state_bytes=400, num_slots=5, interval=3) == (31, 10)
    assert pages_beside_states(12_000, 200, 10, state_bytes=400, num_slots=5, interval=3) == (10, 8)


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"5 requests take 2000 bytes.*half of the 3000 bytes.*lower max_num_seqs"):
        pages_beside_states(3000, 200, 999, state_bytes=400, num_slots=5, interval=3)
    with pytest.raises(ValueError, match=r"4000 bytes, of which 2000.*3 pages before it do not fit"):
        pages_beside_states(4000, 1000, 999, state_bytes=400, num_slots=5, interval=3)
