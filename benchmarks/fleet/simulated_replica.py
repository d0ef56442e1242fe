"""One replica as a routing policy meets it: steps that take time, slots, pages, and a cache of prefixes."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from benchmarks.fleet.arrivals import Arrival
from benchmarks.fleet.step_costs import StepCost
from engine.interface.config import TILE_SIZE

NUM_PAGES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSize:
    """What each replica has."""

    num_slots: int = 16
    num_pages: int = NUM_PAGES
    page_size: int = 16  # tokens
    max_num_batched_tokens: int = 256  # of prompts in a step
    target_gap: float = 50.0  # milliseconds; while requests decode, prompts get what fits, at least one tile


@dataclass(slots=True, eq=False)
class Served:
    """A request and what has become of it."""

    arrival: Arrival
    num_cached: int = 0
    num_computed: int = 0  # tokens of the prompt that are computed or cached
    num_output: int = 0
    first_token: float | None = None  # seconds from its arrival
    ended: float | None = None  # the time

    @property
    def context(self) -> int:
        return self.num_computed + self.num_output

    @property
    def is_decoding(self) -> bool:
        return self.num_output > 0


@dataclass(slots=True, eq=False)
class SimulatedReplica:
    """Admits in order of arrival, while slots and pages last; a prefix is remembered whole or not at all."""

    size: ReplicaSize
    cost: StepCost
    waiting: deque[Served] = field(default_factory=deque)
    running: list[Served] = field(default_factory=list)
    busy_until: float | None = None  # when the step that is under way ends; None: there is none
    busy_ms: float = 0.0
    _prefixes: OrderedDict[str, int] = field(default_factory=OrderedDict)  # with their tokens, the latest used last
    _num_prefix_pages: int = 0
    _num_own_pages: int = 0  # of running requests; those of a remembered prefix belong to the prefix
    _tiles: dict[Served, int] = field(default_factory=dict)  # tokens of prompts that the step under way computes

    @property
    def num_unfinished(self) -> int:
        """What routers count as the load."""
        return len(self.waiting) + len(self.running)

    def remembers(self, prefix: str) -> bool:
        """Whether a request with this prefix would find it, or will find it when those before it are computed."""
        return prefix in self._prefixes or any(
            served.arrival.prefix == prefix for served in (*self.waiting, *self.running)
        )

    def begin_step(self, now: float) -> None:
        """Admits who can be admitted and begins a step, if there is anything to compute."""
        while self.waiting and len(self.running) < self.size.num_slots and self._admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        self._tiles = {}
        self.busy_until = None
        if not self.running:
            return
        decoding = [served for served in self.running if served.is_decoding]
        decode_context = sum(served.context for served in decoding)
        budget, num_tiles, tile_context = self.size.max_num_batched_tokens, 0, 0
        took = self.cost.milliseconds(len(decoding), decode_context, 0, 0)
        for served in self.running:
            while not served.is_decoding:
                done = served.num_computed + self._tiles.get(served, 0)
                left = served.arrival.num_prompt - done
                if not left or budget < TILE_SIZE:
                    break
                context = tile_context + done + TILE_SIZE
                with_tile = self.cost.milliseconds(len(decoding), decode_context, num_tiles + 1, context)
                if decoding and num_tiles and with_tile > self.size.target_gap:
                    break
                budget, num_tiles, tile_context, took = budget - TILE_SIZE, num_tiles + 1, context, with_tile
                self._tiles[served] = self._tiles.get(served, 0) + min(left, TILE_SIZE)
        self.busy_ms += took
        self.busy_until = now + took / 1000

    def end_step(self, now: float) -> list[Served]:
        """Takes the results of the step under way, and returns who has ended with it."""
        for served in self.running:
            if served.is_decoding:
                served.num_output += 1
            elif served in self._tiles:
                served.num_computed += self._tiles[served]
                if served.num_computed == served.arrival.num_prompt:
                    served.num_output = 1
                    served.first_token = now - served.arrival.at
                    self._remember(served.arrival)
        ended = [served for served in self.running if served.num_output == served.arrival.num_output]
        if ended:
            self.running = [served for served in self.running if served.num_output < served.arrival.num_output]
        for served in ended:
            served.ended = now
            self._num_own_pages -= self._own_pages(served)
        self._evict(0)
        return ended

    def _admit(self, served: Served) -> bool:
        """Whether the pages last for the whole of the request; a request that is alone is always admitted."""
        arrival = served.arrival
        is_cached = arrival.prefix in self._prefixes
        if is_cached:
            self._prefixes.move_to_end(arrival.prefix)
        needed = self._pages(arrival.num_prompt + arrival.num_output - (arrival.num_shared if is_cached else 0))
        if self.running and self._num_own_pages + needed > self.size.num_pages:
            return False
        self._evict(needed)
        if arrival.prefix in self._prefixes:  # it may have been evicted just now
            served.num_cached = served.num_computed = arrival.num_shared
        self._num_own_pages += self._own_pages(served)
        return True

    def _remember(self, arrival: Arrival) -> None:
        if arrival.num_shared and arrival.prefix not in self._prefixes:
            self._prefixes[arrival.prefix] = arrival.num_shared
            self._num_prefix_pages += self._pages(arrival.num_shared)

    def _evict(self, num_needed: int) -> None:
        """Forgets the prefixes that were not used for the longest time, until so many pages are free."""
        while self._prefixes and self._num_own_pages + self._num_prefix_pages + num_needed > self.size.num_pages:
            self._num_prefix_pages -= self._pages(self._prefixes.popitem(last=False)[1])

    def _own_pages(self, served: Served) -> int:
        return self._pages(served.arrival.num_prompt + served.arrival.num_output - served.num_cached)

    def _pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size.page_size)
