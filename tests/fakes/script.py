"""An engine on the fake device, driven turn by turn by a script, without other threads."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cache.page_groups import PageGroups
from cache.pool import PagePool
from engine.interface.config import TILE_SIZE
from engine.interface.types import FinishReason
from engine.kv_transfer.transfers import PageTransfers
from engine.loop import EngineLoop, Message, Shutdown
from engine.schedule.request import Request
from engine.schedule.request_event import NewTokens, RequestEvent, StepEvent
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepPlan
from engine.step.shapes import ShapeTable
from engine.timeline import Timeline
from sampling.host.grammar import TokenMatcher
from sampling.host.params import SamplingParams
from tests.fakes.runner import EOS, VOCAB_SIZE, FakeRunner


@dataclass
class Outcome:
    """What the reader of one request saw."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None


class ScriptedInbox(queue.SimpleQueue):
    """Gives the messages of turn 0, then those of turn 1, and so on; Shutdown when no work is left."""

    def __init__(self, turns: Mapping[int, Sequence[Message]], scheduler: Scheduler) -> None:
        self._turns = {turn: list(messages) for turn, messages in turns.items()}
        self._scheduler = scheduler
        self._turn = 0
        self._is_over = False

    def empty(self) -> bool:
        """Whether no more messages come in this turn. If so, the next turn begins with this call."""
        if self._turns.get(self._turn):
            return False
        self._turns.pop(self._turn, None)
        if not self._turns and not self._scheduler.has_work and not self._is_over:
            return False
        self._turn += 1
        return True

    def get_nowait(self) -> Message:
        if self.empty():
            raise queue.Empty
        if pending := self._turns.get(self._turn):
            return pending.pop(0)
        self._is_over = True
        return Shutdown()

    def get(self, block: bool = True, timeout: float | None = None) -> Message:
        return self.get_nowait()


@dataclass
class World:
    """A small engine whose limits the test chooses."""

    num_slots: int = 4
    num_pages: int = 40
    page_size: int = 4
    max_model_len: int = 64
    num_tiles: int = 2
    overlap: bool = True
    prefix_caching: bool = True
    decode_chunk: int = 1
    max_burst_steps: int = 1
    lead: Callable[[], int] = lambda: 0  # of the device in a burst that is cut; see `FakeRunner`
    busy_loops: set[object] = field(default_factory=set)  # of the same device, those with steps in flight
    max_turns: int = 20_000
    target_gap: float = 0.0
    grain: int | None = None
    # The duration of a step in seconds, on a clock that only steps move forward. None: as long as they take.
    duration: Callable[[StepPlan], float] | None = None
    windows: Sequence[int] = (0,)  # of groups of layers with pages of their own; the first one sees all
    # Where pages are kept outside of the engine; None: nowhere.
    transfers: Callable[[PagePool, FakeRunner], PageTransfers] | None = None
    # Called with the events of each turn, before the world takes note of them.
    watchers: list[Callable[[Sequence[RequestEvent]], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        groups = PageGroups(tuple(self.windows), (), (), 1)
        longest = groups.longest_sequence(self.num_pages - 1, self.page_size, self.num_tiles * TILE_SIZE)
        self.max_model_len = min(self.max_model_len, longest)
        self.pool = PagePool(self.num_pages)
        max_pages = -(-self.max_model_len // self.page_size)
        self.buffer = SequenceBuffer(self.num_slots, self.max_model_len, max_pages, num_groups=len(self.windows))
        self.scheduler = Scheduler(
            self.pool,
            self.buffer,
            page_size=self.page_size,
            max_num_batched_tokens=self.num_tiles * TILE_SIZE,
            chunk_alignment=TILE_SIZE,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=frozenset({EOS}),
            enable_prefix_caching=self.prefix_caching,
            num_scheduler_steps=self.decode_chunk,
            target_gap=self.target_gap,
            chunk_grain=self.grain,
            windows=self.windows,
        )
        table = ShapeTable(self.num_slots, self.num_tiles)
        self.runner = FakeRunner(
            self.buffer, table, self.num_pages, self.page_size, self.windows,
            max_burst_steps=self.max_burst_steps, lead=self.lead,
        )  # fmt: skip
        self.page_transfers = None if self.transfers is None else self.transfers(self.pool, self.runner)
        self.scheduler.requests.prefixes.transfers = self.page_transfers
        self.now = 0.0  # seconds, on the clock of `duration`
        self.timeline = Timeline()
        if self.duration is not None:
            self.timeline = Timeline(clock=lambda: self.now)
            self.runner.on_execute = self._pass_time
        self.outcomes: dict[str, Outcome] = {}
        self.failure: BaseException | None = None

    def request(
        self,
        name: str,
        prompt: Sequence[int],
        *,
        arrival: int = 0,
        priority: int = 0,
        matcher: TokenMatcher | None = None,
        tenant: str = "",
        **params,
    ) -> Request:
        wishes = SamplingParams(**{"temperature": 0.0, **params})
        max_length = min(len(prompt) + wishes.max_tokens, self.max_model_len)
        seed = wishes.seed or 0
        return Request(name, list(prompt), wishes, seed, max_length, priority, arrival, matcher=matcher, tenant=tenant)

    def run(self, turns: Mapping[int, Sequence[Message]]) -> dict[str, Outcome]:
        """Plays the script to its end and returns what the reader of each request saw."""
        self.loop = EngineLoop(
            self.scheduler, self.runner, self._publish, self._fail, overlap=self.overlap, timeline=self.timeline,
            transfers=self.page_transfers, inbox=ScriptedInbox(turns, self.scheduler), busy_loops=self.busy_loops,
        )  # fmt: skip
        self.loop.run()
        if self.failure is not None:
            raise self.failure
        self.pool.check()
        assert self.pool.num_active == 0
        assert self.buffer.num_free_slots == self.num_slots
        return self.outcomes

    @property
    def is_paused(self) -> bool:
        return self.loop.is_paused

    @is_paused.setter
    def is_paused(self, value: bool) -> None:
        self.loop.is_paused = value

    def _pass_time(self, plan: StepPlan) -> None:
        assert self.duration is not None
        self.now += self.duration(plan)

    def _publish(self, news: Sequence[StepEvent]) -> None:
        events = [event for item in news for event in _events_of(item)]
        for watch in self.watchers:
            watch(events)
        self.pool.check()
        told = [event.request.request_id for event in events if event.token_ids]
        assert len(set(told)) == len(told), "two events with tokens of one request in one step"
        for event in events:
            outcome = self.outcomes.setdefault(event.request.request_id, Outcome())
            assert outcome.finish_reason is None, "an event after the last one"
            outcome.token_ids += event.token_ids
            outcome.finish_reason, outcome.error = event.finish_reason, event.error
        assert self.runner.num_steps < self.max_turns, "the loop does not come to an end"

    def _fail(self, error: BaseException) -> None:
        self.failure = error


def _events_of(news: StepEvent) -> list[RequestEvent]:
    """The same news as one event for each request."""
    if isinstance(news, NewTokens):
        return [RequestEvent(*one, None) for one in zip(news.requests, zip(news.tokens), strict=True)]
    return [news]
