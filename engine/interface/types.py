"""The data types that engine and server exchange."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:  # only types need it here, so that parameters can be made without it
    import numpy as np


class FinishReason(StrEnum):
    """Why a request ended; the values are the wire names."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"


class Pooling(StrEnum):
    """Which hidden states of a prompt become its embedding, after the model's last norm."""

    CLS = "cls"  # that of the first token
    LAST = "last"  # that of the last token
    MEAN = "mean"  # the mean of all
    MEAN_SQRT_LEN = "mean_sqrt_len"  # their sum, divided by the root of their number
    WEIGHTED_MEAN = "weightedmean"  # the mean of all, the first one counted once, the second twice, and so on
    MAX = "max"  # in each place the largest number of all
    NONE = "none"  # each token has its own, before projections of encoders


# One, or several whose vectors stand one behind the other.
Poolings: TypeAlias = Pooling | tuple[Pooling, ...]


class TokenLogprobs(NamedTuple):
    """Logprobs at the position of one token: natural logarithms, from the unmodified logits of the model.

    With `drawn_logprobs` those of output tokens are from the distribution that they were drawn from.
    """

    logprob: float  # of the token that was sampled, or that the prompt has
    rank: int  # of that token in the whole vocabulary, from 1
    top: list[tuple[int, float]]  # token id and logprob of the best tokens, best first, as many as requested
    listed: list[float]  # of the `logprob_token_ids` of the request, in their order
    masked: float = 0.0  # the probability of all tokens that the request's grammar did not allow here


class WaitStage(StrEnum):
    """What a request waits for before its first token; the values are the wire names."""

    LOADING = "loading"  # the model is brought into memory
    QUEUED = "queued"
    PROMPT = "prompt"  # its prompt is being computed


class PromptProgress(NamedTuple):
    """The progress of one request towards its first token."""

    stage: WaitStage
    queue_position: int = 0  # requests that start before it, as far as can be seen now; 0 once it has started
    estimated_seconds: float | None = None  # until its first token; None: unknown before any step was measured
    num_prompt_tokens: int = 0  # 0 while the model is loading
    num_cached_tokens: int = 0  # of them, those that came from the prefix cache
    num_processed_tokens: int = 0  # of them, those that need no more work, the cached ones included
    milliseconds: float = 0.0  # since the request left the queue
    detail: str | None = None  # what is being loaded, or that the engine is paused


class TokenEvent(NamedTuple):
    """The changes of one request since its stream was last read; events of several steps may be merged."""

    token_ids: list[int]  # committed output tokens; a token that ended the request is the last of them
    finish_reason: FinishReason | None  # set on the last event and on no other
    num_cached_tokens: int  # prompt tokens that came from the prefix cache
    error: str | None = None  # the reason, if finish_reason is ERROR
    logprobs: list[TokenLogprobs] | None = None  # one for each of token_ids; None if not requested
    # One for each prompt token, with None for the first. Only in the first event with tokens, if requested.
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    is_dead_end: bool = False  # the error follows from the request's own parameters
    # Of a request with a `Pooling`, in the first event with tokens: float32[hidden], or [num_tokens, hidden] of NONE.
    pooled: np.ndarray | None = None
    progress: PromptProgress | None = None  # of a request that asks for it; only in events without tokens


# Called with a stage ("load weights", "compile"), the amount that is done and the total amount.
Progress = Callable[[str, int, int], None]

# One event of the Trace Event Format (Perfetto, chrome://tracing), as plain data for a JSON encoder.
TraceEvent = dict[str, Any]


# Of the colours of a picture between 0 and 1, with which many encoders expect them; source: OpenAI's CLIP.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
# Likewise; source: torchvision's models of ImageNet.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


_TILE_BITS = 16


class PictureInput(NamedTuple):
    """The pictures that a model takes."""

    height: int  # pixels of every picture; 0: they have any size
    width: int
    num_tokens: int  # positions of a prompt that a picture fills, or of any size: multiples that its embeddings take
    most: int  # different ones in one prompt, or of any size: such multiples of all
    max_tokens: int  # positions of the largest picture
    uses_mrope: bool = False  # whether its tokens are rotated by their rows and columns
    pixels_shape: tuple[int, ...] = ()  # of the largest picture; empty: any
    num_frames: int = (
        0  # of a video that each patch covers, in the second axis of the shape, or a still picture without it
    )
    is_tiled: bool = False  # whether the first axis of the shape is that of tiles, of which pictures may have fewer


class TileMap(NamedTuple):
    """A picture whose tiles, put together, are a map of its tokens with black edges; rows and columns of each.

    They are integers, or arrays of them in a program.
    """

    rows: Any  # of tokens, without those of black edges
    columns: Any
    tile_rows: Any
    tile_columns: Any

    @property
    def grid(self) -> tuple[int, int]:
        """The four numbers as the `grid` of a picture."""
        return self.rows | self.tile_rows << _TILE_BITS, self.columns | self.tile_columns << _TILE_BITS

    @classmethod
    def from_grid(cls, grid: Any) -> Self:
        """The four numbers of a `grid`, of a picture or in a program."""
        mask = (1 << _TILE_BITS) - 1
        return cls(grid[0] & mask, grid[1] & mask, grid[0] >> _TILE_BITS, grid[1] >> _TILE_BITS)


@dataclass(frozen=True, slots=True, eq=False)
class PromptPicture:
    """A picture, and the positions of a prompt that it fills."""

    start: int  # the first position
    num_tokens: int
    digest: bytes  # of its pixels; equal digests mean equal pixels
    # uint8, of the shape that the model's encoder takes, in which the number of patches may vary; a still picture may
    # lack the axis of frames.
    pixels: np.ndarray
    grid: tuple[int, int] = (0, 0)  # rows and columns of its positions, where pictures have any size
    has_row_ends: bool = False  # whether a token of text stands behind each row
    # Of a later moment of the video that a picture before it begins, and behind whose positions its own stand at once:
    # the distance in time from that one, in rotary positions.
    time: int | None = None

    @property
    def end(self) -> int:
        """The position behind the last one, and behind the end of the last row."""
        return self.start + self.num_tokens + (self.grid[0] if self.has_row_ends else 0)

    @property
    def positions(self) -> Sequence[int]:
        """The positions that it fills, without the ends of rows."""
        if not self.has_row_ends:
            return range(self.start, self.end)
        return [self.start + index + index // self.grid[1] for index in range(self.num_tokens)]

    def with_salt(self, salt: str | None) -> PromptPicture:
        """The same with a digest that only requests with the same salt have, so that no others share its embeddings."""
        return self if salt is None else replace(self, digest=sha256(salt.encode() + self.digest).digest())


def picture_bytes(pictures: Sequence[PromptPicture]) -> int:
    """What the pixels of pictures take, in bytes."""
    return sum(picture.pixels.nbytes for picture in pictures)


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """The adapter of a request: one that is in memory, and how much of it."""

    slot: int
    digest: str  # of its weights
    scale: float = 1.0  # multiplies what it adds

    @property
    def columns(self) -> tuple[int, int]:
        """What a row of a step says of it: the slot, counted from 1, and the bits of a float32."""
        (bits,) = struct.unpack("<i", struct.pack("<f", self.scale))
        return self.slot + 1, bits

    @property
    def page_key(self) -> str:
        """What distinguishes the pages of requests with this adapter."""
        return f"adapter {self.digest} {self.scale!r}"


class EngineError(RuntimeError):
    """The engine has failed or was shut down; it answers no request any more."""


class EngineStalled(EngineError):
    """A step hangs for longer than it may; the engine is given up."""


class HostLost(EngineError):
    """One of the hosts that compute a model together is lost, and with it its share of the model."""


class DeadEnd(EngineError):
    """One request cannot continue because of its own parameters; the engine goes on."""


class EngineState(StrEnum):
    """Whether the engine computes, and whether it holds the memory for it."""

    RUNNING = "running"
    PAUSED = "paused"  # requests queue up; all memory is kept
    ASLEEP = "asleep"  # requests queue up; the memory of the pages is freed


class EngineBusy(RuntimeError):
    """A change of state was refused, because requests are running or the engine is in the wrong state."""


class QueueFull(RuntimeError):
    """The waiting queue is at its limit; try again later."""


@dataclass(frozen=True, slots=True)
class KVOffloadStats:
    """Counters since the start, and one gauge, of KV offloading to a folder; all 0 where it is off."""

    num_imported_tokens: int = 0  # tokens whose pages came from the folder
    num_imported_bytes: int = 0  # of these pages
    num_exported_bytes: int = 0  # of the pages that were put there
    num_damaged_pages: int = 0  # pages there that were not what was written, and were computed again
    num_kept_bytes: int = 0  # in that folder, of all models, as far as is known


# Upper and inclusive bounds of the tokens of a step, where steps are counted by them; vLLM's.
STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start and gauges of the present, read without a lock."""

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0  # prompt tokens of requests that were never admitted
    num_steps: int = 0
    num_prompt_tokens: int = 0  # prompt tokens of admitted requests
    num_generation_tokens: int = 0  # committed output tokens
    num_preemptions: int = 0
    page_size: int = 0  # tokens
    num_pages: int = 0  # without the null page
    num_page_groups: int = 1  # of layers with pages of their own: a page is of one group
    num_free_pages: int = 0
    num_cached_pages: int = 0
    num_active_pages: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # prompt tokens found
    kept: KVOffloadStats = KVOffloadStats()
    compiles_after_ready: int = 0
    device_busy_seconds: float = 0.0
    device_idle_seconds: float = 0.0  # between steps while work waited; an upper bound
    device_idle_fraction: float = 0.0  # idle / (idle + busy) over the remembered steps, 0 to 1
    step_time_error: float = 0.0  # |measured - predicted| / measured duration, averaged over the last steps
    prompt_share: float = 0.0  # of the last steps' time that prompts took, 0 to 1
    num_step_tokens: int = 0  # tokens of all steps
    step_token_counts: tuple[int, ...] = ()  # steps by their tokens: up to each of STEP_TOKEN_BOUNDS, and above
    mm_cache_queries: int = 0  # pictures whose embeddings were looked up
    mm_cache_hits: int = 0  # pictures whose embeddings were found
    encoder_runs: int = 0  # pictures that were encoded

    @property
    def kv_cache_usage(self) -> float:
        """Share of the pages that requests hold, 0 to 1."""
        return self.num_active_pages / self.num_pages if self.num_pages else 0.0


@dataclass(frozen=True, slots=True)
class ModelFootprint:
    """The memory of a model, from the headers of its files, before anything is loaded."""

    architecture: str
    num_parameters: int
    context_length: int  # tokens that the model was trained for
    weight_bytes: int  # with those of the adapters that may be in memory at once
    kv_bytes_per_token: int  # of the cache, for the keys and values of all layers
    quantization: str | None = None  # what its files say of their numbers, such as "Q4_K_M" or "awq int4 g128"
    window_bytes_per_token: int = 0  # of kv_bytes_per_token, for layers with a window
    window_tokens: int = 0  # that a sequence holds at most in these layers
    state_bytes: int = 0  # of the cache, for the recurrent layers of one sequence
    page_size: int = 16  # tokens of a page of the cache
    encoder_bytes: int = 0  # of the weights, those of the encoder of pictures
    image_tokens: int = 0  # positions that a picture, or a piece of one, fills at most; 0: the model reads text alone

    def kv_bytes(self, num_tokens: int) -> int:
        """Bytes of the keys and values that a sequence of so many tokens holds."""
        num_given_back = max(0, num_tokens - self.window_tokens)
        return num_tokens * self.kv_bytes_per_token - num_given_back * self.window_bytes_per_token


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Bytes of the device, the container or the machine."""

    total: int
    available: int  # now
    usable: int  # now, by weights and caches: the rest is for intermediate results and for other processes
