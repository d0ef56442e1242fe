"""Numbers of a whole prompt, by way of a request: its embedding, the scores of a head, or what may follow it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from engine.interface.types import EngineError, Poolings
from engine.token_stream import NOT_FINITE, TokenStream
from sampling.host.params import SamplingParams

_PARAMS = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


async def embed(
    submit: Callable[..., TokenStream], prompt_token_ids: Sequence[int], pooling: Poolings, priority: int, tenant: str,
    *, is_encoder: bool, second_start: int, first_pooled: int, cache_salt: str | None,
) -> np.ndarray:  # fmt: skip
    """As `EngineClient.embed`; `submit` is that of the client."""
    token_ids = list(prompt_token_ids)
    if not is_encoder:
        # A decoder samples after the last token of a request, which is not pooled. Any token will do.
        token_ids += token_ids[-1:]
    stream = submit(
        token_ids, _PARAMS, priority=priority, tenant=tenant, pooling=pooling, second_start=second_start,
        first_pooled=first_pooled, cache_salt=cache_salt,
    )  # fmt: skip
    try:
        async for event in stream:
            if event.pooled is not None:
                if not np.isfinite(event.pooled).all():
                    raise EngineError(NOT_FINITE)
                return event.pooled
    finally:
        stream.abort()
    raise EngineError(event.error or f"the request ended without an embedding: {event.finish_reason}")


async def next_logprobs(
    submit: Callable[..., TokenStream], prompt_token_ids: Sequence[int], token_ids: Sequence[int], priority: int,
    tenant: str, *, cache_salt: str | None,
) -> np.ndarray:  # fmt: skip
    """As `EngineClient.next_logprobs`; `submit` is that of the client."""
    params = replace(_PARAMS, logprobs=0, logprob_token_ids=tuple(token_ids))
    stream = submit(prompt_token_ids, params, priority=priority, tenant=tenant, cache_salt=cache_salt)
    try:
        async for event in stream:
            if event.logprobs:
                return np.array(event.logprobs[0].listed, np.float32)
    finally:
        stream.abort()
    raise EngineError(event.error or f"the request ended without a token: {event.finish_reason}")
