"""Embeddings: a prompt's pooled hidden states, or the scores that a head makes of them, by way of a request."""

from collections.abc import Callable, Sequence

import numpy as np

from engine.interface.types import EngineError, Pooling
from engine.token_stream import NOT_FINITE, TokenStream
from sampling.host.params import SamplingParams

_PARAMS = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


async def embed(
    submit: Callable[..., TokenStream], prompt_token_ids: Sequence[int], pooling: Pooling, priority: int, tenant: str,
    *, is_encoder: bool, second_start: int,
) -> np.ndarray:  # fmt: skip
    """As `EngineClient.embed`; `submit` is that of the client."""
    token_ids = list(prompt_token_ids)
    if not is_encoder:
        # A decoder samples after the last token of a request, which is not pooled. Any token will do.
        token_ids += token_ids[-1:]
    stream = submit(token_ids, _PARAMS, priority=priority, tenant=tenant, pooling=pooling, second_start=second_start)
    try:
        async for event in stream:
            if event.pooled is not None:
                if not np.isfinite(event.pooled).all():
                    raise EngineError(NOT_FINITE)
                return event.pooled
    finally:
        stream.abort()
    raise EngineError(event.error or f"the request ended without an embedding: {event.finish_reason}")
