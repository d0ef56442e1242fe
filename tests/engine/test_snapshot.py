"""What a watcher sees of the engine while a script runs on the fake device."""

from __future__ import annotations

from engine.interface.snapshot import EngineSnapshot
from engine.interface.types import EngineStats
from engine.snapshot import MAX_PAGE_STATES, take_snapshot
from tests.fakes.script import World


def snapshots_of(world: World, *prompts: list[int]) -> list[EngineSnapshot]:
    """One for each turn of the engine that has events."""
    seen: list[EngineSnapshot] = []
    world.watchers.append(lambda _: seen.append(take_snapshot(world.scheduler, world.timeline, EngineStats())))
    requests = [world.request(f"r{at}", prompt, arrival=at, max_tokens=6) for at, prompt in enumerate(prompts)]
    world.run({0: requests})
    return seen


def test_a_request_goes_from_the_queue_to_its_slot_and_counts_its_tokens() -> None:
    seen = snapshots_of(World(num_slots=1), [5, 6, 7, 8, 9], [3, 4])
    first = seen[0]
    assert [view.request_id for view in first.running] == ["r0"]
    assert (first.running[0].num_prompt_tokens, first.running[0].num_computed_tokens) == (5, 5)
    assert [(view.request_id, view.slot, view.num_computed_tokens) for view in first.waiting] == [("r1", -1, 0)]
    outputs = [view.num_output_tokens for one in seen for view in one.running if view.request_id == "r0"]
    assert outputs == sorted(outputs)
    assert outputs[-1] > outputs[0]
    assert any(view.request_id == "r1" and view.slot == 0 for one in seen for view in one.running)


def test_the_pages_and_the_steps_are_those_of_the_engine() -> None:
    world = World()
    seen = snapshots_of(world, [5] * 9, [5] * 9)
    states = [one.page_states for one in seen]
    assert all(len(state) == world.pool.num_pages for state in states)
    assert any(one.num_shared_pages == one.page_states.count(3) > 0 for one in seen)
    steps = [step.step for step in seen[-1].steps]
    assert steps == list(range(len(steps)))
    assert all(step.schedule_began <= step.dispatched <= step.commit_ended <= seen[-1].now for step in seen[-1].steps)


def test_many_pages_share_one_cell_which_shows_that_one_is_used() -> None:
    world = World(num_pages=2 * MAX_PAGE_STATES + 2)
    (snapshot, *_) = snapshots_of(world, [5, 6])
    assert snapshot.pages_per_state == 3
    assert len(snapshot.page_states) == -(-world.pool.num_pages // 3)
    assert max(snapshot.page_states) == 2
