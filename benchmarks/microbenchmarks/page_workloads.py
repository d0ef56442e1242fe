"""Workloads of page operations for either side, and a worker that measures them in an interpreter with few packages.

    python -m benchmarks.microbenchmarks.page_workloads SIDE SEED WORKLOAD...

Prints a JSON object with the rate of each workload.
"""

import gc
import json
import random
import sys
import time
from collections.abc import Callable

from benchmarks.microbenchmarks.page_sides import PAGE_SIZE, SIDES, Pages, Prompt, Side

PROMPT_TOKENS = 1024
PAGES_PER_PROMPT = PROMPT_TOKENS // PAGE_SIZE
VOCAB_SIZE = 49152
NUM_PAGES = 8192
FEW_PAGES = 512  # so few that every new prompt evicts an older one

# A workload prepares itself, then returns what is timed and how many page operations that is.
Timed = tuple[Callable[[], None], int]


def allocate_and_free(side: Side, draw: random.Random) -> Timed:
    """Requests of random sizes come and go, 100 at a time."""
    side.reset(NUM_PAGES)
    sizes = [draw.randint(1, 64) for _ in range(4000)]
    places = [draw.randrange(100) for _ in sizes]

    def run() -> None:
        held: list[Pages] = [[] for _ in range(100)]
        for size, place in zip(sizes, places, strict=True):
            side.release(held[place])
            held[place] = side.allocate(size)
        for pages in held:
            side.release(pages)

    return run, 2 * sum(sizes)


def allocate_one(side: Side, draw: random.Random) -> Timed:
    """Decoding requests take a page at a time, and end."""
    side.reset(NUM_PAGES)

    def run() -> None:
        for _ in range(200):
            pages: Pages = []
            for _ in range(64):
                pages += side.allocate(1)
            side.release(pages)

    return run, 2 * 200 * 64


def touch_and_release(side: Side, draw: random.Random) -> Timed:
    """A remembered prefix is taken and given back, alone and shared."""
    side.reset(NUM_PAGES)
    prefixes = [_cached(side, _prompt(side, draw)) for _ in range(20)]

    def run() -> None:
        for _ in range(50):
            for pages in prefixes:
                side.touch(pages)
                side.touch(pages)
                side.release(pages)
                side.release(pages)

    return run, 50 * 20 * 4 * PAGES_PER_PROMPT


def hash_prompts(side: Side, draw: random.Random) -> Timed:
    """New prompts of 1,024 tokens are named."""
    prompts = [side.prompt(_token_ids(draw)) for _ in range(200)]

    def run() -> None:
        for prompt in prompts:
            side.name_pages(prompt)

    return run, 200 * PAGES_PER_PROMPT


def hash_growing(side: Side, draw: random.Random) -> Timed:
    """A request of 1,024 tokens grows by another 1,024, and is named page by page."""
    prompts = [_prompt(side, draw) for _ in range(50)]
    tokens = _token_ids(draw)

    def run() -> None:
        for prompt in prompts:
            for start in range(0, PROMPT_TOKENS, PAGE_SIZE):
                side.append(prompt, tokens[start : start + PAGE_SIZE])
                side.name_pages(prompt)

    return run, 50 * PAGES_PER_PROMPT


def cache_and_look_up(side: Side, draw: random.Random) -> Timed:
    """Prompts' pages are remembered, then found."""
    side.reset(NUM_PAGES)
    prompts = [_prompt(side, draw) for _ in range(100)]
    pages = [side.allocate(PAGES_PER_PROMPT) for _ in prompts]

    def run() -> None:
        for prompt, allocated in zip(prompts, pages, strict=True):
            side.cache(prompt, allocated)
        for prompt, allocated in zip(prompts, pages, strict=True):
            if side.look_up(prompt) != allocated:
                raise AssertionError("a remembered page was not found")

    return run, 2 * 100 * PAGES_PER_PROMPT


def evict(side: Side, draw: random.Random) -> Timed:
    """Every prompt that comes evicts one that went: miss, allocate, remember, release."""
    side.reset(FEW_PAGES)
    prompts = [_prompt(side, draw) for _ in range(200)]

    def run() -> None:
        for prompt in prompts:
            if side.look_up(prompt):
                raise AssertionError("a page was found that was never remembered")
            side.release(_cached(side, prompt, is_held=True))

    return run, 3 * 200 * PAGES_PER_PROMPT


def queue_ends(side: Side, draw: random.Random) -> Timed:
    """The free queue by itself: taken from the front, put to the back."""
    queue, _ = side.queue(NUM_PAGES)

    def run() -> None:
        for _ in range(1000):
            queue.append_n(queue.popleft_n(64))

    return run, 2 * 1000 * 64


def queue_middle(side: Side, draw: random.Random) -> Timed:
    """The free queue by itself: removed from the middle, put to the back."""
    queue, pages = side.queue(NUM_PAGES)
    draw.shuffle(pages)

    def run() -> None:
        for _ in range(4):
            for page in pages:
                queue.remove(page)
                queue.append(page)

    return run, 2 * 4 * NUM_PAGES


WORKLOADS: dict[str, Callable[[Side, random.Random], Timed]] = {
    workload.__name__: workload
    for workload in (
        allocate_and_free, allocate_one, touch_and_release, hash_prompts, hash_growing, cache_and_look_up, evict,
        queue_ends, queue_middle,
    )
}  # fmt: skip


def _token_ids(draw: random.Random) -> list[int]:
    return draw.choices(range(VOCAB_SIZE), k=PROMPT_TOKENS)


def _prompt(side: Side, draw: random.Random) -> Prompt:
    """A named one."""
    prompt = side.prompt(_token_ids(draw))
    side.name_pages(prompt)
    return prompt


def _cached(side: Side, prompt: Prompt, *, is_held: bool = False) -> Pages:
    """The pages of a prompt that is remembered from now on."""
    pages = side.allocate(PAGES_PER_PROMPT)
    side.cache(prompt, pages)
    if not is_held:
        side.release(pages)
    return pages


def measure(side: Side, workload: str, seed: int) -> float:
    """Millions of page operations per second of processor time: the machine may have other work."""
    run, num_operations = WORKLOADS[workload](side, random.Random(seed))
    gc.collect()
    start = time.process_time()
    run()
    return num_operations / (time.process_time() - start) / 1e6


if __name__ == "__main__":
    name, seed, *names = sys.argv[1:]
    side = SIDES[name]()
    print(json.dumps({each: measure(side, each, int(seed)) for each in names}))
