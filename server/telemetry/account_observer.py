"""Charges what a generation has used to the account of its key."""

from __future__ import annotations

from server.admission.limits.key_account import KeyAccount
from server.generation.answers import GenerationStats
from server.generation.observer import GenerationObserver


class AccountObserver(GenerationObserver):
    """Counts tokens at the end of a generation, and gives back what was reserved and not used."""

    def __init__(self, account: KeyAccount) -> None:
        self._account = account
        self._num_reserved = 0

    def reserve(self, num_tokens: int, *, is_owed: bool, is_background: bool) -> None:
        """As `KeyAccount.reserve`."""
        self._account.reserve(num_tokens, is_owed=is_owed, is_background=is_background)
        self._num_reserved = num_tokens

    def finished(self, stats: GenerationStats | None, error: BaseException | None) -> None:
        num_used = 0
        if stats is not None:
            usage, counts = stats.usage, self._account.usage
            num_used = usage.num_prompt_tokens + usage.num_completion_tokens
            counts.num_prompt_tokens += usage.num_prompt_tokens
            counts.num_completion_tokens += usage.num_completion_tokens
            counts.num_cached_tokens += usage.num_cached_tokens
        self._account.charge(num_used - self._num_reserved)
