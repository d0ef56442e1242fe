"""Whole texts on their way to the engine and back, as embeddings or scores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from engine.interface.context_overflow import ContextOverflow
from engine.interface.types import Pooling, Poolings
from sampling.host.params import InvalidParameter
from server.admission.keyring import Tenant
from server.admission.workers import Workers
from server.generation.prompt_sources import MAX_INLINE_CHARS
from server.generation.prompts import MAX_SHORT_CHARS
from server.protocol.errors import ApiError
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.text.sentence_encoder import usual_pooling
from server.text.whole_texts import WholeText

MAX_AT_ONCE = 16  # texts of one request in the engine's queue
MAX_AT_ONCE_OF_ENCODER = 64  # which computes many of them in one step
DECODER_TOKENS = 2  # of the context of a decoder beside the text: the one that follows, and the one that is sampled

T = TypeVar("T")


async def run_on_texts(workers: Workers, num_chars: int, work: Callable[[], T]) -> T:
    """Runs `work` on texts of so many characters, in a worker thread unless they are short."""
    if num_chars <= MAX_INLINE_CHARS:
        return work()
    return await (workers.run_long if num_chars > MAX_SHORT_CHARS else workers.run)(work)


def most_tokens(model: ServedModel) -> int:
    """The most tokens that a text may have."""
    info = model.engine.model_info
    return info.max_model_len if info.is_encoder else info.max_model_len - DECODER_TOKENS


def pooling_of(model: ServedModel) -> Poolings:
    """How the model pools a text where a request does not say it; raises ApiError where it pools none."""
    if pools_nothing(model):
        raise ApiError(
            "this server was started with --pooling none, so that a text has no embedding of its own; /embedding tells "
            "those of its tokens",
            param="pooling",
            code="no_pooling",
        )
    if model.settings.pooling is not None:
        return Pooling(model.settings.pooling)
    return usual_pooling(model.text_model.sentences, is_encoder=model.engine.model_info.is_encoder)


def pools_nothing(model: ServedModel) -> bool:
    """Whether each token of a text has an embedding of its own where a request does not say it."""
    return model.settings.pooling == Pooling.NONE


def check_lengths(texts: Sequence[WholeText], model: ServedModel, param: str) -> None:
    """Raises ContextOverflow where a text is too long, and InvalidParameter where it has no token."""
    info = model.engine.model_info
    for text in texts:
        num_tokens = len(text.token_ids)
        if not num_tokens:
            raise InvalidParameter(param, f"{param} has a text without tokens; each needs at least one")
        if num_tokens > most_tokens(model):
            what = f"an input has {num_tokens} tokens"
            if not info.is_encoder:
                what += f", and its embedding needs {DECODER_TOKENS} more"
            raise ContextOverflow(param, what, limit=info.max_model_len, num_tokens=num_tokens)


async def pool_texts(
    texts: Sequence[WholeText], pooling: Poolings, model: ServedModel, served: ServedModels, tenant: Tenant, param: str,
    *, answers: Sequence[int] = (),
) -> list[np.ndarray]:  # fmt: skip
    """What the model makes of each text, float32[size], in their order; their lengths are checked.

    With Pooling.NONE it is float32[num_tokens, size].

    With `answers` these are the logprobs of tokens that may follow it. Where one is refused, or the client has left,
    the others end too. Raises InvalidParameter for `param`, QueueFull, EngineError, or ApiError where the tenant may
    not compute so many tokens.
    """
    num_tokens = sum(len(text.token_ids) for text in texts)
    account = tenant.account
    if account is not None:
        account.reserve(num_tokens, is_background=tenant.is_background)
    model.metrics.add_prompt_tokens(num_tokens)
    engine, priority = model.engine, tenant.check_priority(None)
    vectors: list[np.ndarray] = [_NOTHING] * len(texts)
    indices, salt = iter(range(len(texts))), tenant.cache_salt(None)

    async def compute() -> None:
        for index in indices:
            served.residency.ask_for(model)
            text = texts[index]
            try:
                if answers:
                    vectors[index] = await engine.next_logprobs(
                        text.token_ids, answers, priority=priority, tenant=tenant.name, cache_salt=salt
                    )
                    continue
                vectors[index] = await engine.embed(
                    text.token_ids, pooling,
                    priority=priority, tenant=tenant.name, second_start=text.second_start,
                    first_pooled=text.first_pooled, cache_salt=salt,
                )  # fmt: skip
            except InvalidParameter as error:
                raise error.renamed(param) from error

    at_once = MAX_AT_ONCE_OF_ENCODER if engine.model_info.is_encoder else MAX_AT_ONCE
    tasks = [asyncio.ensure_future(compute()) for _ in range(min(at_once, len(texts)))]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        if account is not None:
            account.charge(-num_tokens)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if account is not None:
        account.usage.num_prompt_tokens += num_tokens
    return vectors


_NOTHING = np.zeros(0, np.float32)  # until the text is computed
