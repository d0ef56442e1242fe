"""Commit: what the tokens of a finished step mean for its requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.border.types import FinishReason
from engine.schedule.live_requests import LiveRequests
from engine.schedule.request import Request, RequestStatus
from engine.schedule.request_event import RequestEvent
from engine.schedule.step_plan import StepPlan, StepResult
from sampling.host.grammar import GrammarError
from sampling.host.rows import NOTHING_LEFT


class Committer:
    """Appends sampled tokens to their requests, ends the requests that are complete, and reports both."""

    def __init__(self, requests: LiveRequests, vocab_size: int) -> None:
        self._requests = requests
        self._counters = requests.counters
        self._vocab_size = vocab_size

    def commit(self, plan: StepPlan, result: StepResult) -> list[RequestEvent]:
        """Makes a finished step true on the host.

        Returns:
            One event for each row that samples, less those whose request had ended before.
        """
        events: list[RequestEvent] = []
        tokens, logprobs, prefixes = result.tokens, result.logprobs, self._requests.prefixes
        num_repeats, running = plan.num_repeats, RequestStatus.RUNNING
        num_seen = 0  # sampling rows so far, the current one included
        num_plain = 0
        # Most rows get one token that does not end them. They take a short way, because there may be hundreds.
        may_be_plain = num_repeats == 1 and bool(tokens) and min(tokens) >= 0 and max(tokens) < self._vocab_size
        if num_repeats == 1:
            sampled_rows: Iterator[Sequence[int]] = zip(tokens)
        else:
            num_sampled = len(tokens) // num_repeats
            sampled_rows = (tokens[row::num_sampled] for row in range(num_sampled))
        for request, start, num_tokens, samples in zip(
            plan.requests, plan.starts, plan.num_tokens, plan.samples, strict=True
        ):
            request.num_in_flight_steps -= 1
            sampled = next(sampled_rows) if samples else ()
            num_seen += samples
            if (
                may_be_plain
                and samples
                and request.is_plain
                and request.status is running
                and request.num_hashed_pages >= len(request.page_hashes)
                and sampled[0] not in request.stop_ids
                and len(request.token_ids) + 1 < request.max_length
            ):
                request.num_in_flight_tokens -= 1
                request.num_committed_tokens = start + num_tokens
                request.token_ids.append(sampled[0])
                num_plain += 1
                events.append(RequestEvent(request, sampled, None))
                continue
            request.num_in_flight_tokens -= len(sampled)
            if request.status is not running:
                # The request ended while this step was in flight: its tokens are dropped. What it holds is
                # released once, by the last step that names it.
                if not request.num_in_flight_steps:
                    self._requests.release(request)
                continue
            request.num_committed_tokens = start + num_tokens
            if request.num_hashed_pages < len(request.page_hashes):
                # Other requests may wait for these pages. Pages without a hash yet get theirs at release.
                prefixes.commit(request)
            if request.prompt_logprobs is not None and request in result.prompt_logprobs:
                request.prompt_logprobs.append(result.prompt_logprobs[request])
            if request.pooling is not None and request in result.pooled:
                piece = result.pooled[request]
                request.pooled = piece if request.pooled is None else request.pooled + piece
            if samples:
                event = self._append(request, sampled)
                if logprobs is not None and request.params.logprobs is not None:
                    event.logprobs = logprobs[num_seen - 1 : num_seen - 1 + len(event.token_ids)]
                if request.prompt_logprobs is not None:
                    event.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
                if request.pooled is not None:
                    event.pooled, request.pooled = request.pooled, None
                events.append(event)
        self._counters.num_generation_tokens += num_plain
        return events

    def fail(self, request: Request, error: str) -> RequestEvent | None:
        """Ends a request that is at a dead end; returns None if it has ended already."""
        if request.status is RequestStatus.FINISHED:
            return None
        return self._end_dead(request, (), error)

    def _append(self, request: Request, sampled: Sequence[int]) -> RequestEvent:
        """Appends a row's tokens; tokens behind the end of the request are dropped."""
        token_ids, stop_ids = request.token_ids, request.stop_ids
        for num_accepted, token in enumerate(sampled, start=1):
            dead_end = self._dead_end(request, token)
            if dead_end is not None:
                return self._end_dead(request, sampled[: num_accepted - 1], dead_end)
            if not 0 <= token < self._vocab_size:
                self._requests.prefixes.forget(request)
                error = "the model computed a value that is not a number"
                return self._requests.finish(request, sampled[: num_accepted - 1], FinishReason.ERROR, error)
            token_ids.append(token)
            self._counters.num_generation_tokens += 1
            reason = None
            if token in stop_ids:
                reason = FinishReason.STOP
            elif len(token_ids) >= request.max_length:
                reason = FinishReason.LENGTH
            if reason is not None:
                request.num_committed_tokens += num_accepted - 1
                return self._requests.finish(request, sampled[:num_accepted], reason)
        # In a chunk, each repeat but the first has computed the token that the one before it sampled.
        request.num_committed_tokens += len(sampled) - 1
        return RequestEvent(request, sampled, None)

    def _dead_end(self, request: Request, token: int) -> str | None:
        """Why the request's own parameters forbid it to go on behind `token`; None if they do not."""
        if token == self._vocab_size + NOTHING_LEFT:
            return "the request's parameters leave no token that could come next"
        if request.matcher is not None and token < self._vocab_size and token not in request.stop_ids:
            try:
                request.matcher.accept(token)
            except GrammarError as error:
                return str(error)
        return None

    def _end_dead(self, request: Request, token_ids: Sequence[int], error: str) -> RequestEvent:
        event = self._requests.finish(request, token_ids, FinishReason.ERROR, error)
        event.is_dead_end = True
        return event
