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


def evict(world: World, num_pages: int) -> Call:
    """A message upon which so many pages are evicted, the first ones of the queue."""

    def evict_pages() -> None:
        world.pool.release(world.pool.allocate(world.pool.num_free + num_pages))

    return Call(evict_pages)


def test_what_was_given_back_is_evicted_first_but_before_ends_where_others_probably_go_on():
    """At the end of the prompt, and at each fourth window, which is each twentieth page."""
    world = long_world()
    prompt = [1 + index % 37 for index in range(300)]
    first, again = world.request("first", prompt, max_tokens=2), world.request("again", prompt, max_tokens=2)
    shorter = world.request("shorter", prompt[:100], max_tokens=2)
    outcomes = world.run({0: [first], 40: [evict(world, 80)], 41: [shorter], 60: [again]})
    assert (shorter.num_cached_tokens, again.num_cached_tokens) == (80, 296)
    assert outcomes["shorter"].token_ids == expected_output(prompt[:100], 0, 102)


def test_where_two_prompts_part_a_third_one_goes_on():
    world = long_world(num_tiles=1)
    shared = [1 + index % 37 for index in range(150)]
    prompts = {name: [*shared, *[start + index % 11 for index in range(100)]] for start, name in enumerate("abc", 1)}
    a, b, c = (world.request(name, prompt, max_tokens=2) for name, prompt in prompts.items())
    world.run({0: [a], 40: [evict(world, 50)], 41: [b], 80: [evict(world, 60)], 81: [c]})
    assert (b.num_cached_tokens, c.num_cached_tokens) == (80, 148)


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
