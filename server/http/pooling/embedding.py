"""POST /v1/embeddings, and what the routes of other APIs for embeddings share with it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.interface.types import Pooling
from sampling.host.params import InvalidParameter
from server.admission.keyring import Tenant
from server.api.openai.token_requests import EmbeddingsRequest
from server.generation.prompt_sources import PromptSource
from server.http.pooling.encoded_inputs import encode_inputs
from server.protocol.errors import ApiError, shorten
from server.serving.pooled_texts import pool_texts, pooling_of
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.serving.tasks import refuse_adapter, refuse_embeddings
from server.text.sentence_encoder import SentenceEncoder

# Of a request for the embeddings of tokens, whose answer has some twenty bytes for each number.
MAX_TOKENS_EMBEDDED = 4096
MAX_NUMBERS = 1 << 21
_SHOWN_PROMPTS = 20  # names that a message lists


async def embed(query: EmbeddingsRequest, model: ServedModel, served: ServedModels, tenant: Tenant) -> dict[str, Any]:
    """OpenAI's list of embeddings, one for each input."""
    refuse_adapter(model, query.model)
    refuse_embeddings(model)
    prompts: Sequence[PromptSource] = query.input
    sentences = model.text_model.sentences
    _check_dimensions(query, model, sentences)
    lead = _prompt_text(query, sentences)
    texts = await encode_inputs(
        prompts, model, served, cut_at=query.truncate_prompt_tokens, lead=lead,
        is_lead_pooled=sentences is None or sentences.pools_prompts,
    )  # fmt: skip
    pooling = pooling_of(model) if query.pooling is None else Pooling(query.pooling)
    embeddings = await pool_texts(texts, pooling, model, served, tenant, "input")
    num_tokens = sum(len(text.token_ids) for text in texts)
    return {
        "object": "list",
        "data": await served.workers.run(_show, embeddings, query),  # a million numbers, perhaps
        "model": model.model_name,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


async def embed_tokens(
    query: EmbeddingsRequest, model: ServedModel, served: ServedModels, tenant: Tenant
) -> list[list[list[float]]]:
    """The embeddings of the tokens of each input, in the model's own length."""
    refuse_adapter(model, query.model)
    refuse_embeddings(model)
    prompts: Sequence[PromptSource] = query.input
    texts = await encode_inputs(prompts, model, served, cut_at=None)
    num_tokens = sum(len(text.token_ids) for text in texts)
    _refuse_many(num_tokens, MAX_TOKENS_EMBEDDED, "tokens")
    num_numbers = num_tokens * model.engine.model_info.embedding_size
    _refuse_many(num_numbers, MAX_NUMBERS, "numbers in the embeddings of its tokens")
    vectors = await pool_texts(texts, Pooling.NONE, model, served, tenant, "input")
    return await served.workers.run(lambda: [each.tolist() for each in vectors])


def _refuse_many(number: int, most: int, what: str) -> None:
    if number > most:
        raise InvalidParameter("input", f"input has {number} {what}; one request may have {most}")


def _check_dimensions(query: EmbeddingsRequest, model: ServedModel, sentences: SentenceEncoder | None) -> None:
    """Refuses shorter embeddings of a model that is made for whole ones, as vLLM does; raises InvalidParameter."""
    if query.dimensions is None:
        return
    if sentences is None or not sentences.takes_dimensions:
        raise InvalidParameter(
            "dimensions",
            f"dimensions is {query.dimensions}, and the model {model.model_name} was not made for shorter embeddings",
        )
    if sentences.dimensions and query.dimensions not in sentences.dimensions:
        listed = ", ".join(map(str, sentences.dimensions))
        raise InvalidParameter(
            "dimensions", f"dimensions is {query.dimensions}; for this model it must be one of {listed}"
        )


def _prompt_text(query: EmbeddingsRequest, sentences: SentenceEncoder | None) -> str:
    """What is put before each text; raises ApiError for the name of a prompt that the model does not have."""
    if query.prompt_name is not None:
        prompts = {} if sentences is None else sentences.prompts
        if query.prompt_name not in prompts:
            names = ", ".join([*map(repr, prompts)][:_SHOWN_PROMPTS])
            raise ApiError(
                f"prompt_name is {shorten(query.prompt_name)}; "
                + (f"the model has the prompts {names}" if names else "the model has no prompts"),
                param="prompt_name",
            )
        return prompts[query.prompt_name]
    if sentences is None:
        return ""
    return sentences.default_prompt if query.input_type is None else sentences.prompt_of_input_type(query.input_type)


def _show(embeddings: Sequence[np.ndarray], query: EmbeddingsRequest) -> list[dict[str, Any]]:
    """Converts the embeddings to the objects of the response; raises InvalidParameter where they are too short."""
    vectors = [_unit(embedding, query.dimensions) for embedding in embeddings]
    as_text = query.encoding_format == "base64"
    return [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector.tobytes()).decode() if as_text else vector.tolist(),
        }
        for index, vector in enumerate(vectors)
    ]


def _unit(vector: np.ndarray, dimensions: int | None) -> np.ndarray:
    """Truncates an embedding to `dimensions` numbers of length 1, little-endian float32; raises InvalidParameter."""
    if dimensions is not None:
        if dimensions > len(vector):
            raise InvalidParameter(
                "dimensions", f"dimensions is {dimensions}; the model's embeddings have {len(vector)}"
            )
        vector = vector[:dimensions]
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype("<f4")
