"""The output processor commits finished steps: it appends tokens to their requests and ends those that are complete."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from engine.interface.types import FinishReason, Pooling
from engine.schedule.live_requests import LiveRequests
from engine.schedule.request import Request, RequestStatus
from engine.schedule.request_event import NewTokens, RequestEvent, StepEvent
from engine.schedule.step_plan import StepPlan, StepResult
from sampling.host.grammar import GrammarError
from sampling.host.rows import NOTHING_LEFT


class OutputProcessor:
    """Appends sampled tokens to their requests, ends the requests that are complete, and makes the events."""

    def __init__(self, requests: LiveRequests, vocab_size: int) -> None:
        self._requests = requests
        self._counters = requests.counters
        self._vocab_size = vocab_size

    def commit(self, plan: StepPlan, result: StepResult) -> list[StepEvent]:
        """Commits a finished step; returns the events of all rows whose request had not ended before."""
        plain, others = self._commit_plain(plan, result.tokens)
        news: list[StepEvent] = [plain] if plain.tokens else []
        if others:
            news += self._commit_rows(plan, others, result)
        return news

    def _commit_plain(self, plan: StepPlan, tokens: list[int]) -> tuple[NewTokens, Sequence[int]]:
        """Commits rows whose only token does not end them; returns the tokens, and the other rows' indices."""
        num_singles = plan.num_tokens.count(1)
        are_plain = plan.num_scheduler_steps == 1 and num_singles > 0 and all(plan.samples[:num_singles])
        if not are_plain or min(tokens) < 0 or max(tokens) >= self._vocab_size:
            return NewTokens([], []), range(plan.num_rows)
        running = RequestStatus.RUNNING
        requests, sampled = plan.requests[:num_singles], tokens[:num_singles]
        others: list[int] = []
        for row, (request, start, token) in enumerate(zip(requests, plan.starts, sampled, strict=False)):
            if (
                request.is_plain
                and request.status is running
                and request.num_hashed_pages >= len(request.page_hashes)
                and token not in request.stop_ids
                and len(token_ids := request.token_ids) + 1 < request.max_length
            ):
                token_ids.append(token)
                request.num_in_flight_steps -= 1
                request.num_in_flight_tokens -= 1
                request.num_committed_tokens = start + 1
            else:
                others.append(row)
        for row in reversed(others):
            del requests[row], sampled[row]
        others += range(num_singles, plan.num_rows)
        self._counters.num_generation_tokens += len(sampled)
        return NewTokens(requests, sampled), others

    def _commit_rows(self, plan: StepPlan, rows: Sequence[int], result: StepResult) -> Iterator[RequestEvent]:
        """Commits rows one by one, whatever they are."""
        tokens, logprobs, prefixes = result.tokens, result.logprobs, self._requests.prefixes
        num_sampled = len(tokens) // plan.num_scheduler_steps
        places = list(accumulate(plan.samples, initial=0))  # of the rows among those that sample
        for row in rows:
            request, place, samples = plan.requests[row], places[row], plan.samples[row]
            sampled = tokens[place::num_sampled] if samples else ()
            request.num_in_flight_steps -= 1
            request.num_in_flight_tokens -= len(sampled)
            if request.status is not RequestStatus.RUNNING:
                # The request ended while this step was in flight: its tokens are dropped. What it holds is
                # released once, by the last step that names it.
                if not request.num_in_flight_steps:
                    self._requests.release(request)
                continue
            request.num_committed_tokens = plan.starts[row] + plan.num_tokens[row]
            if request.num_hashed_pages < len(request.page_hashes):
                # Other requests may wait for these pages. Pages without a hash yet get theirs at release.
                prefixes.commit(request)
            if request.prompt_logprobs is not None and request in result.prompt_logprobs:
                request.prompt_logprobs.append(result.prompt_logprobs[request])
            if request.poolings and request in result.pooled:
                before = request.pooled or [None] * len(request.poolings)
                request.pooled = list(map(joined, request.poolings, before, result.pooled[request]))
            if samples:
                event = self._append(request, sampled)
                if logprobs is not None and request.params.logprobs is not None:
                    event.logprobs = logprobs[place : place + len(event.token_ids)]
                if request.prompt_logprobs is not None:
                    event.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
                if request.pooled:
                    event.pooled = np.concatenate([vector for vector in request.pooled if vector is not None])
                    request.pooled = []
                yield event

    def fail(self, request: Request, error: str) -> RequestEvent | None:
        """Ends a request at a dead end; returns None if it has ended already."""
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
        """The reason why the request's own parameters forbid it to continue after `token`; None if they do not."""
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


def joined(pooling: Pooling, total: np.ndarray | None, pieces: np.ndarray) -> np.ndarray | None:
    """What was pooled of a prompt so far, with further pieces of it."""
    if pooling is Pooling.NONE:
        return pieces if total is None else np.concatenate([total, pieces])
    add = np.maximum if pooling is Pooling.MAX else np.add
    for piece in pieces:  # one by one in their order, whichever step has computed them
        total = piece if total is None else add(total, piece)
    return total
