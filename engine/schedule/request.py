"""One request, as the scheduler knows it from submit to its last event."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np

from cache.hashing import NamedSpan, PageHash
from cache.page import CachePage
from engine.interface.types import AdapterChoice, FinishReason, Pooling, PromptPicture
from engine.kv_transfer.prefetch_job import PrefetchJob
from sampling.host.grammar import TokenMatcher
from sampling.host.params import SamplingParams
from sampling.host.rows import SamplerVariant, level_of, uses_bits

NO_SLOT = -1


class RequestStatus(Enum):
    WAITING = auto()  # is in the queue, holds no slot and no page, and is in no step in flight
    RUNNING = auto()  # holds a slot and pages
    FINISHED = auto()  # has sent its last event; holds slot and pages until no step in flight names it


@dataclass(slots=True, eq=False)
class Request:
    """A request and its progress.

        0                      num_computed_tokens     len(token_ids)                num_tokens
        | computed or in flight | still to be computed | sampled, but not yet committed |

    There is no prefill and no decode phase: `num_computed_tokens` catches up with `num_tokens`.
    """

    request_id: str
    token_ids: list[int]  # the prompt, then the committed output
    params: SamplingParams
    seed: int  # 64 bits
    max_length: int  # tokens of prompt and output; known in advance, so no step is wasted behind the end
    priority: int = 0  # lower runs first
    arrival: int = 0  # order of submission
    mailbox: Any = None  # the reader that gets its events; opaque to the engine
    cache_salt: str | None = None
    tenant: str = ""  # the owner of the request; tenants get fair shares of the engine
    deadline: float | None = None  # seconds on the monotonic clock; when it has passed, the request ends with TIMEOUT
    queue_deadline: float | None = None  # the same, but only while the request was never admitted
    matcher: TokenMatcher | None = None  # of its grammar; has accepted all committed output tokens
    num_prompt_output_tokens: int = 0  # tokens at the end of the prompt that the sampler counts as output
    # Of all tokens of the prompt, but for the last one unless it is whole; empty: it is not pooled.
    poolings: tuple[Pooling, ...] = ()
    wants_progress: bool = False  # its stream gets progress events until its first token
    is_whole: bool = False  # one step computes all of its prompt, which is pooled; it is a request to an encoder
    second_start: int = 0  # where the second text of a pair begins in such a prompt; 0: it is no pair
    first_pooled: int = 0  # the first token that is pooled

    pictures: tuple[PromptPicture, ...] = ()  # in the order of their positions, which are in the prompt
    adapter: AdapterChoice | None = None  # that is computed beside the model's weights

    num_prompt_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()  # tokens that end it; the scheduler adds the model's own
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    was_admitted: bool = False  # has left the queue at least once
    submitted_at: float = 0.0  # seconds of `time.perf_counter`
    admitted_at: float | None = None  # seconds of `time.perf_counter` when it first did
    slot: int = NO_SLOT
    tables: list[list[CachePage]] = field(default_factory=lambda: [[]])  # its pages, in each group of layers
    num_paged_tokens: int = 0  # first tokens whose pages it holds, as far as later ones see them
    num_held_pages: int = 0  # of all groups
    reused_ends: tuple[int, ...] = ()  # pages of its prefixes behind which other requests probably go on
    num_promised_pages: int = 0  # pages of groups with a window that it may hold at once
    page_hashes: list[PageHash] = field(default_factory=list)  # names of the pages full of committed tokens
    num_hashed_pages: int = 0  # first pages whose names the pool knows, since the request got its slot
    snapshot: CachePage | None = None  # from which its next step loads the state of recurrent layers
    saved: list[tuple[int, CachePage]] = field(default_factory=list)  # pages and the snapshots at their end, unnamed
    num_computed_tokens: int = 0  # tokens whose keys and values are computed, steps in flight included
    num_committed_tokens: int = 0  # the same for committed steps alone; 0 before the first commit
    num_in_flight_tokens: int = 0  # sampled on the device, not yet committed
    num_in_flight_steps: int = 0  # dispatched steps that name the slot
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache when first admitted
    num_preemptions: int = 0
    last_prompt_turn: int = 0  # of the prompt order, when it last got some of a step's budget for prompts
    num_charged_tokens: int = 0  # output tokens that its tenant has been charged for
    awaited_hash: bytes | None = None  # this page of the prompt is being computed by another request, or loaded
    prefetch: PrefetchJob | None = None  # of pages from outside; None until they are looked for
    is_plain: bool = False  # wants tokens only, and only they can end it
    uses: int = 0  # bits of the sampling features it uses
    level: SamplerVariant = SamplerVariant.GREEDY  # the sampling program it needs
    # Logprobs of the prompt, int32[num_tokens, NUM_COLUMNS] for each computed piece. None if they were not requested
    # for or have been sent.
    prompt_logprobs: list[np.ndarray] | None = None
    # What is computed so far of each pooling, float32[hidden], or of Pooling.NONE [num_tokens, hidden].
    pooled: list[np.ndarray | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)
        has_grammar = self.matcher is not None
        self.uses = uses_bits(self.params, has_grammar=has_grammar)
        self.level = level_of(self.params, has_grammar=has_grammar)
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = []
        extras = (self.matcher, self.params.logprobs, self.params.prompt_logprobs)
        self.is_plain = not self.poolings and all(extra is None for extra in extras)

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence, those in flight included."""
        return len(self.token_ids) + self.num_in_flight_tokens

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every token of the prompt must be computed, for logprobs or an embedding of it."""
        return self.prompt_logprobs is not None or self.poolings not in ((), (Pooling.LAST,))

    @property
    def num_always_computed(self) -> int:
        """Tokens at the end of the sequence that no cached page may stand for."""
        return 2 if self.poolings else 1  # a decoder samples behind the last token, which is none of the text

    @property
    def num_pooled_tokens(self) -> int:
        """Tokens of the prompt that its embedding is made of. A decoder samples behind the last one, which is none."""
        return self.num_prompt_tokens if self.is_whole else self.num_prompt_tokens - 1

    @property
    def num_tokens_before_output(self) -> int:
        """Tokens that the sampler takes for the prompt; all that follow count as output there."""
        return self.num_prompt_tokens - self.num_prompt_output_tokens

    @property
    def num_output_tokens(self) -> int:
        """Committed output tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncharged_tokens(self) -> int:
        """Output tokens that its tenant has not been charged for yet."""
        return self.num_output_tokens - self.num_charged_tokens

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of the queue: priority, then arrival."""
        return (self.priority, self.arrival)

    @property
    def extra_keys(self) -> tuple[str, ...]:
        """What distinguishes this request's pages besides their tokens."""
        if self.adapter is not None:  # always the second key, because clients choose the first
            return (self.cache_salt or "", self.adapter.page_key)
        return () if self.cache_salt is None else (self.cache_salt,)

    @property
    def picture_spans(self) -> list[NamedSpan]:
        """The positions of pictures, with names that are different for different pictures."""
        return [
            NamedSpan(
                each.start,
                each.end,
                f"picture {each.digest.hex()}" + ("" if each.time is None else f" {each.time} later"),
            )
            for each in self.pictures
        ]

    def before_picture(self, end: int) -> int:
        """The largest position up to `end` at which no picture is cut."""
        return next((each.start for each in self.pictures if each.start < end < each.end), end)

    def behind_picture(self, end: int) -> int:
        """The smallest position from `end` on at which no picture is cut."""
        return next((each.end for each in self.pictures if each.start < end < each.end), end)
