"""What a new request must keep to: the limits of the waiting queue and of the model's context and vocabulary."""

from collections.abc import Sequence

from engine.interface.config import EngineConfig, ModelInfo
from engine.interface.context_overflow import ContextOverflow
from engine.interface.types import QueueFull
from engine.schedule.live_requests import SchedulerCounters
from sampling.host.params import InvalidParameter

# Of the pictures of requests that wait, in bytes of their pixels: a token of text takes a few bytes, one of a picture
# up to twelve thousand.
MAX_QUEUED_PICTURE_BYTES = 1 << 30
LEAST_TEXT = 2  # tokens of a text of an encoder: its own begin and end


class QueueLimits:
    """Counts the requests that wait, their prompt tokens and pixels, those in the engine's inbox included."""

    def __init__(self, config: EngineConfig, counters: SchedulerCounters) -> None:
        self._config = config
        self._counters = counters
        # These counts continue those of earlier clients of the engine, whose requests have all left the queue.
        self.num_submitted = counters.num_dequeued
        self._num_submitted_tokens = counters.num_dequeued_tokens
        self._num_submitted_picture_bytes = counters.num_dequeued_picture_bytes

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the requests that were never admitted."""
        return self._num_submitted_tokens - self._counters.num_dequeued_tokens

    def check(self, num_tokens: int, num_picture_bytes: int = 0) -> None:
        """Raises QueueFull if the queue has no room for a prompt of `num_tokens` tokens with such pictures."""
        num_requests = self.num_submitted - self._counters.num_dequeued
        if num_requests >= self._config.max_num_queued_requests:
            raise QueueFull(f"{num_requests} requests are queued; the limit is {self._config.max_num_queued_requests}")
        num_waiting = self.num_waiting_tokens
        if num_requests and num_waiting + num_tokens > self._config.max_num_queued_tokens:
            raise QueueFull(
                f"{num_waiting} prompt tokens are queued and this prompt has {num_tokens}; "
                f"the limit is {self._config.max_num_queued_tokens}"
            )
        num_bytes = self._num_submitted_picture_bytes - self._counters.num_dequeued_picture_bytes
        if num_bytes and num_bytes + num_picture_bytes > MAX_QUEUED_PICTURE_BYTES:
            raise QueueFull(
                f"pictures of {num_bytes >> 20} MiB are queued and this prompt has {num_picture_bytes >> 20} MiB; "
                f"the limit is {MAX_QUEUED_PICTURE_BYTES >> 20} MiB"
            )

    def add(self, num_tokens: int, num_picture_bytes: int = 0) -> None:
        """Counts a submitted request."""
        self.num_submitted += 1
        self._num_submitted_tokens += num_tokens
        self._num_submitted_picture_bytes += num_picture_bytes


def check_prompt(
    model: ModelInfo, prompt_token_ids: Sequence[int], max_tokens: int, max_tokens_parameter: str, num_output: int
) -> None:
    """Checks that the model can take a prompt and `max_tokens` of output after it; raises InvalidParameter.

    Args:
        max_tokens_parameter: the name of `max_tokens` in error messages.
        num_output: how many tokens at the end of the prompt count as output, and so towards `max_tokens`.
    """
    limit, num_tokens = model.max_model_len, len(prompt_token_ids)
    if num_tokens >= limit:
        raise ContextOverflow("prompt", f"the prompt has {num_tokens} tokens", limit=limit, num_tokens=num_tokens)
    if num_tokens - num_output + max_tokens > limit:
        raise ContextOverflow(
            max_tokens_parameter,
            f"{max_tokens_parameter} is {max_tokens} and the prompt has {num_tokens} tokens",
            limit=limit,
            num_tokens=num_tokens,
            max_tokens=max_tokens,
        )
    if num_tokens == 0:
        raise InvalidParameter("prompt", "the prompt is empty; it must have at least 1 token")
    if num_output:
        _check_output(num_output, num_tokens, max_tokens, max_tokens_parameter)
    _check_range(prompt_token_ids, model.vocab_size)


def check_text(model: ModelInfo, token_ids: Sequence[int]) -> None:
    """Checks that an encoder can take a text as a whole; raises InvalidParameter."""
    limit, num_tokens = model.max_model_len, len(token_ids)
    if num_tokens > limit:
        raise ContextOverflow("prompt", f"the prompt has {num_tokens} tokens", limit=limit, num_tokens=num_tokens)
    if num_tokens < LEAST_TEXT:
        raise InvalidParameter(
            "prompt", f"the prompt has {num_tokens} tokens; an encoder takes texts of {LEAST_TEXT} or more"
        )
    _check_range(token_ids, model.vocab_size)


def _check_range(token_ids: Sequence[int], vocab_size: int) -> None:
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise InvalidParameter(
            "prompt", f"the prompt has token id {wrong}; token ids must be from 0 to {vocab_size - 1}"
        )


def _check_output(num_output: int, num_prompt_tokens: int, max_tokens: int, max_tokens_parameter: str) -> None:
    name = "num_prompt_output_tokens"
    if not 0 <= num_output < num_prompt_tokens:
        raise InvalidParameter(
            name,
            f"{name} is {num_output} and the prompt has {num_prompt_tokens} tokens; "
            "it must be at least 0, and less than the prompt has",
        )
    if num_output >= max_tokens:
        raise InvalidParameter(
            name,
            f"{name} is {num_output} and {max_tokens_parameter}, which counts them too, is {max_tokens}; "
            "it must be less",
        )
