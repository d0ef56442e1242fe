"""The unfinished requests and what they hold: the waiting queue, the running list, and the moves between them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from cache.pool import PagePool
from engine.interface.types import FinishReason, picture_bytes
from engine.schedule.picture_cache import PictureCache
from engine.schedule.prefix_cache import PrefixCache
from engine.schedule.request import Request, RequestStatus
from engine.schedule.request_event import RequestEvent
from engine.schedule.request_pages import RequestPages
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.state_snapshots import StateSnapshots
from engine.schedule.waiting_queue import WaitingQueue


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the engine started. Only the engine thread writes them; any thread may read them."""

    num_steps: int = 0
    num_admitted: int = 0  # requests that have ever started
    num_dequeued: int = 0  # requests that left the queue for the first time, because they were admitted or ended
    num_dequeued_tokens: int = 0  # prompt tokens of those requests
    num_dequeued_picture_bytes: int = 0  # of the pixels of their pictures
    num_prompt_tokens: int = 0  # prompt tokens of admitted requests
    num_generation_tokens: int = 0  # committed output tokens
    num_preemptions: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # prompt tokens found


class LiveRequests:
    """The queue of waiting requests and the list of those that hold a slot and pages.

        queue ──> waiting ──start──> running ──finish──> (in flight) ──release──> gone
                     ^                  │
                     └────send_back─────┘

    A finished request stays in `running`, with its slot and pages, until no step in flight names it.
    """

    def __init__(
        self,
        pool: PagePool,
        buffer: SequenceBuffer,
        counters: SchedulerCounters,
        *,
        page_size: int,
        enable_prefix_caching: bool,
        snapshots: StateSnapshots | None = None,
        windows: Sequence[int] = (0,),
        max_step_tokens: int = 1,
    ) -> None:
        self.pool = pool
        self.buffer = buffer
        self.counters = counters
        self.page_size = page_size
        self.pages = RequestPages(pool, buffer, page_size, windows, max_step_tokens)
        self.prefixes = PrefixCache(
            pool, page_size, is_enabled=enable_prefix_caching, snapshots=snapshots, windows=windows
        )
        self.pictures: PictureCache | None = None  # None: the model sees none
        self.unfinished: dict[str, Request] = {}  # by request id; both waiting and running ones
        self.waiting = WaitingQueue()
        self.running: list[Request] = []  # in order of admission

    def queue(self, request: Request) -> None:
        self.unfinished[request.request_id] = request
        self.waiting.add(request, self.running)

    def pictures_wait(self, request: Request, num_cached_tokens: int) -> bool:
        """Whether a picture that the request has to compute is not encoded yet."""
        return self.pictures is not None and self.pictures.must_wait(request, num_cached_tokens)

    def note_planned(self, request: Request, num_tokens: int) -> None:
        """Notes that a step that must be dispatched computes the request up to so many tokens."""
        if self.pictures is not None and num_tokens >= request.pictures[-1].end:
            self.pictures.release(request)

    def start(self, request: Request, num_cached_tokens: int) -> None:
        """Takes a request from the queue and gives it a slot; it has its pages, some of them from the prefix cache."""
        self.waiting.remove(request)
        self.prefixes.stop_prefetch(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached_tokens
        self.buffer.add_request(request)
        if self.pictures is not None:
            self.pictures.place(request, self.buffer.token_ids[request.slot])
        for group, pages in enumerate(request.tables):
            self.buffer.write_pages(request.slot, 0, pages, group)
        self.running.append(request)
        if not request.was_admitted:
            request.was_admitted = True
            self.counters.num_admitted += 1
            request.admitted_at = time.perf_counter()
            self._count_dequeued(request)
            # Charged only once: the tenant did not ask for what a preemption makes the engine compute again.
            self.waiting.charge(request.tenant, num_prompt_tokens=request.num_prompt_tokens - num_cached_tokens)
            request.num_cached_tokens = num_cached_tokens
            self.counters.num_prompt_tokens += request.num_prompt_tokens
            self.counters.prefix_cache_queries += request.num_prompt_tokens
            self.counters.prefix_cache_hits += num_cached_tokens
        self.prefixes.enter(request, num_cached_tokens // self.page_size)

    def grow(self, request: Request, num_tokens: int) -> None:
        """Allocates pages of a running request for its first `num_tokens` tokens; raises OutOfPages."""
        if num_tokens > request.num_paged_tokens:
            if self.pages.gives_back:
                self.prefixes.commit(request)  # so that what is given back has a name
            self.pages.grow(request, num_tokens)

    def send_back(self, request: Request) -> None:
        """Takes slot and pages from a running request and queues it to be recomputed; nothing may be in flight."""
        self.release(request)
        if self.pictures is not None:
            self.pictures.release(request)
        request.prefetch = None  # pages that it loses now may have been stored
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = request.num_committed_tokens = 0
        if request.prompt_logprobs is not None:
            request.prompt_logprobs = []  # the whole prompt is computed again, and its logprobs with it
        request.pooled = []
        self.waiting.add(request, self.running)

    def finish(
        self, request: Request, token_ids: Sequence[int], reason: FinishReason, error: str | None = None
    ) -> RequestEvent:
        """Ends a request, releases what it holds unless a step in flight names its slot, and returns its last event."""
        del self.unfinished[request.request_id]
        if self.pictures is not None:
            self.pictures.release(request)
        if request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
            self.prefixes.stop_prefetch(request)
            if not request.was_admitted:
                self._count_dequeued(request)
        request.finish_reason = reason
        was_running = request.status is RequestStatus.RUNNING
        request.status = RequestStatus.FINISHED
        if was_running:
            self.prefixes.leave(request)
            if not request.num_in_flight_steps:
                self.release(request)
        return RequestEvent(request, token_ids, reason, error)

    def release(self, request: Request) -> None:
        """Frees slot and pages; nothing of the request may be in flight."""
        self.buffer.remove_request(request)
        self.prefixes.commit(request)
        self.prefixes.release(request)
        self.pages.release(request)
        self.running.remove(request)
        self.waiting.charge(request.tenant, num_output_tokens=request.num_uncharged_tokens)
        request.num_charged_tokens = request.num_output_tokens
        self.prefixes.leave(request)

    def _count_dequeued(self, request: Request) -> None:
        self.counters.num_dequeued += 1
        self.counters.num_dequeued_tokens += request.num_prompt_tokens
        self.counters.num_dequeued_picture_bytes += picture_bytes(request.pictures)
