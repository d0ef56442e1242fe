"""Pages behind a window are given back, can be found until they are evicted, and are never promised twice."""

from engine.interface.config import TILE_SIZE
from engine.loop import Call
from tests.fakes.runner import expected_output
from tests.fakes.script import World

WINDOW, CHUNK = 20, 2 * TILE_SIZE  # tokens


def long_world(**sizes) -> World:
    return World(**{"num_slots": 2, "num_pages": 400, "max_model_len": 400, "windows": (0, WINDOW, WINDOW), **sizes})


def most_held(world: World, turns) -> int:
    """The most pages that requests hold after a step."""
    seen = [0]
    world.watchers.append(lambda _: seen.append(world.pool.num_active))
    world.run(turns)
    return max(seen)


def test_a_sequence_holds_its_window_one_chunk_and_two_pages_of_a_group_with_a_window():
    world = long_world()
    prompt = list(range(1, 30)) * 10
    held = most_held(world, {0: [world.request("long", prompt, max_tokens=100, ignore_eos=True)]})
    num_all = -(-390 // world.page_size)
    assert num_all <= held <= num_all + 2 * ((WINDOW + CHUNK) // world.page_size + 2)


def test_what_was_given_back_is_found():
    world = long_world()
    prompt = [1 + index % 37 for index in range(300)]
    first, shorter = world.request("first", prompt, max_tokens=2), world.request("shorter", prompt[:100], max_tokens=2)
    again = world.request("again", prompt, max_tokens=2)
    world.run({0: [first], 40: [shorter], 60: [again]})
    assert (shorter.num_cached_tokens, again.num_cached_tokens) == (96, 296)


def test_a_prefix_whose_window_was_evicted_is_computed_again():
    world = long_world()
    prompt = [1 + index % 37 for index in range(300)]
    first, again = world.request("first", prompt, max_tokens=2), world.request("again", prompt, max_tokens=2)

    def evict_the_oldest() -> None:
        """Those that were given back first come first in the queue behind the free ones."""
        pages = world.pool.allocate(world.pool.num_free + 100)
        world.pool.release(pages)

    shorter = world.request("shorter", prompt[:100], max_tokens=2)
    outcomes = world.run({0: [first], 40: [Call(evict_the_oldest)], 41: [shorter], 60: [again]})
    assert shorter.num_cached_tokens < 96
    assert outcomes["shorter"].token_ids == expected_output(prompt[:100], 0, 102)
    assert again.num_cached_tokens == 296


def test_sequences_that_fit_only_because_windows_give_back_do():
    """Two of them want more than all pages; one goes first, or is preempted, and both end."""
    world = long_world(num_pages=175)
    prompts = {name: [index % 37 + start for index in range(300)] for name, start in (("a", 1), ("b", 2))}
    requests = [world.request(name, prompt, max_tokens=80, ignore_eos=True) for name, prompt in prompts.items()]
    outcomes = world.run({0: requests})
    assert 3 * 380 // world.page_size > world.pool.num_pages  # not even one, were all kept
    for name, prompt in prompts.items():
        assert outcomes[name].token_ids == expected_output(prompt, 0, 380, ignore_eos=True)


def test_pages_given_back_are_forgotten_with_those_that_are_held():
    world = long_world()
    prompt = [1 + index % 37 for index in range(300)]
    request, again = (
        world.request("a", prompt, max_tokens=9, ignore_eos=True),
        world.request("b", prompt[:90], max_tokens=1),
    )

    def forget_what_is_wrong() -> None:
        world.scheduler.requests.prefixes.forget(request)
        assert world.pool.num_cached == 0

    world.run({0: [request], 4: [Call(forget_what_is_wrong)], 60: [again]})
    assert again.num_cached_tokens == 0
