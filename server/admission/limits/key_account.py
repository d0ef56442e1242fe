"""What the keys of one name have used, and whether they may have more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from server.admission.limits.key_limits import NO_LIMITS, KeyLimits, duration
from server.admission.limits.token_bucket import TokenBucket
from server.protocol.errors import ApiError

CODE = "rate_limit_exceeded"  # OpenAI's
REQUESTS, TOKENS = "requests", "tokens"  # OpenAI's types of such errors


@dataclass(slots=True)
class KeyUsage:
    """Counts since the start or the last reset."""

    num_requests: int = 0
    num_refused: int = 0
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompts' tokens


class KeyAccount:
    """The account of the keys of one name. The asyncio thread alone uses it, but for `set_limits`, so that every method
    reads each limit once.
    """

    def __init__(self, name: str, limits: KeyLimits = NO_LIMITS) -> None:
        self.name = name
        self.usage = KeyUsage()
        self.num_streams = 0
        self.limits = NO_LIMITS
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self.set_limits(limits)

    def set_limits(self, limits: KeyLimits) -> None:
        """Changes the limits; what is used of one that stays the same stays used."""
        before, self.limits = self.limits, limits
        rate, tokens = limits.requests_per_second, limits.tokens_per_minute
        if rate != before.requests_per_second:
            # A second's worth may come at once.
            self._requests = None if rate is None else TokenBucket(rate, max(1, math.ceil(rate)))
        if tokens != before.tokens_per_minute:
            self._tokens = None if tokens is None else TokenBucket(tokens / 60, tokens)

    def begin_request(self) -> None:
        """Counts a request.

        Raises:
            ApiError: 429, too many have come, or the tokens of the minute are used.
        """
        requests, tokens = self._requests, self._tokens
        if requests is not None and requests.remaining < 1:
            raise self._refusal(
                REQUESTS, f"requests per second: limit {requests.rate:g}, requested 1", requests.seconds_until(1)
            )
        if tokens is not None and tokens.remaining < 1:
            raise self._refusal(TOKENS, _tokens_per_minute(tokens, 1), tokens.seconds_until(1))
        if requests is not None:
            requests.take(1)
        self.usage.num_requests += 1

    @contextmanager
    def streams(self, number: int = 1, *, is_owed: bool = False) -> Iterator[None]:
        """Counts those of one request, which run while the context lasts.

        Args:
            is_owed: whether they were promised before, and are not refused.

        Raises:
            ApiError: 429, with them more would run at once than may.
        """
        most = self.limits.max_streams
        if most is not None and self.num_streams + number > most and not is_owed:
            seconds = 1.0 if number <= most else None
            what = f"streams at once: limit {most}, used {self.num_streams}, requested {number}"
            raise self._refusal(REQUESTS, what, seconds, "Its prompts or the answers to each (n)")
        self.num_streams += number
        try:
            yield
        finally:
            self.num_streams -= number

    def reserve(self, num_tokens: int, *, is_owed: bool = False, is_background: bool = False) -> None:
        """Charges the tokens that a request may take: its prompt, and its answer as far as its length is limited.

        Args:
            is_owed: whether they were promised before, and are not refused.
            is_background: whether half of what a minute allows is left to other requests of the key.

        Raises:
            ApiError: 429, so many are not left of the minute.
        """
        tokens = self._tokens
        if tokens is None:
            return
        wanted = min(num_tokens + tokens.capacity / 2, tokens.capacity) if is_background else num_tokens
        if tokens.remaining < max(wanted, num_tokens) and not is_owed:
            seconds = None if num_tokens > tokens.capacity else tokens.seconds_until(wanted)
            self.usage.num_refused -= is_background  # it is tried again
            raise self._refusal(TOKENS, _tokens_per_minute(tokens, num_tokens), seconds, "The prompt or max_tokens")
        tokens.take(num_tokens)

    def charge(self, num_tokens: int) -> None:
        """Charges tokens that were used; a negative number gives back what was reserved and not used."""
        tokens = self._tokens
        if tokens is not None:
            tokens.take(num_tokens)

    def headers(self) -> dict[str, str]:
        """OpenAI's headers, of the limits that there are."""
        found: dict[str, str] = {}
        for name, bucket in ((REQUESTS, self._requests), (TOKENS, self._tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{name}"] = f"{bucket.capacity:.0f}"
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.remaining)))
                found[f"x-ratelimit-reset-{name}"] = duration(bucket.seconds_until(bucket.capacity))
        return found

    def anthropic_headers(self) -> Mapping[str, str]:
        """Anthropic's headers, of the limits that there are."""
        found: dict[str, str] = {}
        for name, bucket in ((REQUESTS, self._requests), (TOKENS, self._tokens)):
            if bucket is not None:
                full_at = datetime.now(UTC) + timedelta(seconds=bucket.seconds_until(bucket.capacity))
                found[f"anthropic-ratelimit-{name}-limit"] = f"{bucket.capacity:.0f}"
                found[f"anthropic-ratelimit-{name}-remaining"] = str(max(0, math.floor(bucket.remaining)))
                found[f"anthropic-ratelimit-{name}-reset"] = full_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        return found

    def _refusal(self, kind: str, what: str, seconds: float | None, large: str = "") -> ApiError:
        """
        Args:
            seconds: after which it may come again; None: it is too large ever to be taken.
            large: what must be reduced then.
        """
        self.usage.num_refused += 1
        if seconds is None:
            message = f"Request too large for the key {self.name} on {what}. {large} must be reduced."
            return ApiError(message, status=429, error_type=kind, code=CODE)
        return ApiError(
            f"Rate limit reached for the key {self.name} on {what}. Please try again in {duration(seconds)}.",
            status=429,
            error_type=kind,
            code=CODE,
            headers={"Retry-After": str(max(1, math.ceil(seconds)))},
        )


def _tokens_per_minute(tokens: TokenBucket, wanted: int) -> str:
    used = math.ceil(tokens.capacity - tokens.remaining)
    return f"tokens per minute: limit {tokens.capacity:.0f}, used {used}, requested {wanted}"
