"""One request, from submit to its last event."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np

from cache.hashing import PageHash
from cache.page import CachePage
from engine.border.types import FinishReason
from sampling.host.grammar import TokenMatcher
from sampling.host.params import SamplingParams
from sampling.host.rows import Level
from sampling.host.usage import level_of, uses_bits

NO_SLOT = -1


class RequestStatus(Enum):
    WAITING = auto()  # in the queue: holds no slot and no page, nothing of it is in flight
    RUNNING = auto()  # holds a slot and pages
    FINISHED = auto()  # has sent its last event; may still hold slot and pages while a step is in flight


@dataclass(slots=True, eq=False)
class Request:
    """What the scheduler knows of a request.

        0          num_computed_tokens        len(token_ids)   + num_in_flight_tokens
        [ scheduled to be computed, or done )  [ to compute … )  [ sampled, unknown to the host )

    There is no prefill and no decode phase: `num_computed_tokens` catches up with `num_tokens`.
    """

    request_id: str
    token_ids: list[int]  # the prompt, then the committed output
    params: SamplingParams
    seed: int  # 64 bits
    max_length: int  # tokens, prompt and output; known in advance, so no step is wasted on reaching it
    priority: int = 0  # lower runs first
    arrival: int = 0  # order of submission
    mailbox: Any = None  # where its events go; the engine only carries it
    cache_salt: str | None = None
    tenant: str = ""  # whose request it is: tenants have fair shares
    deadline: float | None = None  # on the monotonic clock; ends with TIMEOUT when it has passed
    queue_deadline: float | None = None  # likewise, but only while it was never admitted
    matcher: TokenMatcher | None = None  # of its grammar; stands behind the last committed token

    num_prompt_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()  # tokens that end it; the scheduler knows the model's own
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    was_admitted: bool = False  # has left the queue at least once
    slot: int = NO_SLOT
    pages: list[CachePage] = field(default_factory=list)
    page_hashes: list[PageHash] = field(default_factory=list)  # of full pages of committed tokens
    num_hashed_pages: int = 0  # pages of this run whose content the pool has been told
    num_computed_tokens: int = 0  # those in flight counted
    num_committed_tokens: int = 0  # computed by steps that have been committed while it ran
    num_in_flight_tokens: int = 0  # sampled on the device, not yet committed
    num_in_flight_steps: int = 0  # dispatched steps that name the slot
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache when first admitted
    num_preemptions: int = 0
    awaited_hash: bytes | None = None  # another request is computing this page of our prompt
    uses: int = 0  # bits of the sampling features it uses
    level: Level = Level.GREEDY  # of the sampling program it needs
    # Logprobs of the prompt, int32[num_tokens, NUM_COLUMNS] of each piece computed; None once they are told.
    prompt_logprobs: list[np.ndarray] | None = None

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)
        has_grammar = self.matcher is not None
        self.uses = uses_bits(self.params, has_grammar=has_grammar)
        self.level = level_of(self.params, has_grammar=has_grammar)
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = []

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence, those in flight counted."""
        return len(self.token_ids) + self.num_in_flight_tokens

    @property
    def num_output_tokens(self) -> int:
        """Committed output tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of the queue: priority, then arrival."""
        return (self.priority, self.arrival)

    @property
    def extra_keys(self) -> tuple[str, ...]:
        """What tells this request's pages apart beside their tokens."""
        return () if self.cache_salt is None else (self.cache_salt,)
