"""Embeddings: a prompt's pooled hidden states, by way of a request of one output token."""

from collections.abc import Callable, Sequence

import numpy as np

from engine.interface.types import EngineError, Pooling
from engine.token_stream import NOT_FINITE, TokenStream
from sampling.host.params import SamplingParams

_PARAMS = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


async def embed(
    submit: Callable[..., TokenStream], prompt_token_ids: Sequence[int], pooling: Pooling, priority: int, tenant: str
) -> np.ndarray:
    """As `EngineClient.embed`; `submit` is that of the client."""
    # A request samples after its last token, which is not pooled. Any token will do.
    token_ids = [*prompt_token_ids, *prompt_token_ids[-1:]]
    stream = submit(token_ids, _PARAMS, priority=priority, tenant=tenant, pooling=pooling)
    try:
        async for event in stream:
            if event.pooled is not None:
                if not np.isfinite(event.pooled).all():
                    raise EngineError(NOT_FINITE)
                return event.pooled
    finally:
        stream.abort()
    raise EngineError(event.error or f"the request ended without an embedding: {event.finish_reason}")
