"""Merged events of a token stream, taken apart."""

from __future__ import annotations

from collections.abc import Iterator

from engine.interface.types import FinishReason, TokenEvent


def split(event: TokenEvent) -> Iterator[TokenEvent]:
    """`event` as one event for each of its tokens, the end in the last of them. It has at least one token."""
    last = len(event.token_ids) - 1
    for at, token_id in enumerate(event.token_ids):
        yield event._replace(
            token_ids=[token_id],
            finish_reason=event.finish_reason if at == last else None,
            error=event.error if at == last else None,
            logprobs=None if event.logprobs is None else event.logprobs[at : at + 1],
            prompt_logprobs=event.prompt_logprobs if at == 0 else None,
        )


def without_tokens(event: TokenEvent) -> TokenEvent:
    """`event` as that of an answer of no tokens, which ends because it may have no more."""
    reason = FinishReason.LENGTH if event.finish_reason is FinishReason.STOP else event.finish_reason
    return event._replace(token_ids=[], logprobs=None if event.logprobs is None else [], finish_reason=reason)
