"""How a snapshot of the engine becomes an event."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from engine.interface.snapshot import EngineSnapshot, RequestView, StepView
from engine.interface.types import EngineStats
from server.generation.engine_view import PAGE_LETTERS, run_lengths, show


@given(st.binary(max_size=50).map(lambda states: bytes(state % 4 for state in states)))
def test_run_lengths_give_the_states_back(states: bytes) -> None:
    runs = re.findall(r"(\d*)([fcas])", run_lengths(states))
    assert bytes(PAGE_LETTERS.index(letter) for count, letter in runs for _ in range(int(count or 1))) == states


def test_each_request_says_what_it_does() -> None:
    def view(key: str, slot: int, computed: int, *, is_finished: bool = False) -> RequestView:
        return RequestView(key, slot, 10, computed, 4, 0, 1, 0, is_finished, 1.0, None if slot < 0 else 1.5)

    running = [view("a", 0, 6), view("b", 1, 10), view("c", 2, 10, is_finished=True)]
    steps = [StepView(number, 1, 1, *[0.001 * number] * 9) for number in (3, 4)]
    snapshot = EngineSnapshot(2.0, EngineStats(), 4, running, [view("d", -1, 0)], b"\x02\x00", 1, 0, steps)
    shown = show(snapshot, {"a": "mine"}.get, after_step=3)
    assert [(one["id"], one["key"], one["state"]) for one in shown["slots"]] == [
        ("mine", "a", "prompt"), (None, "b", "answer"), (None, "c", "ending"),
    ]  # fmt: skip
    assert (shown["queue"][0]["state"], shown["queue"][0]["queue_ms"]) == ("waiting", None)
    assert (shown["slots"][0]["age_ms"], shown["slots"][0]["queue_ms"]) == (1000.0, 500.0)
    assert shown["pages"]["map"] == "af"
    assert [step[:3] for step in shown["steps"]] == [[4, 1, 1]]
