"""POST /v1/embeddings, and what the routes of other APIs for embeddings share with it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.interface.context_overflow import ContextOverflow
from engine.interface.types import Pooling
from sampling.host.params import InvalidParameter
from server.admission.keyring import Tenant
from server.api.openai.token_requests import EmbeddingsRequest
from server.generation.prompt_sources import PromptSource, TextPrompt
from server.protocol.errors import ApiError, shorten
from server.serving.pooled_texts import check_lengths, most_tokens, pool_texts, run_on_texts
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.serving.tasks import refuse_embeddings
from server.text.sentence_encoder import SentenceEncoder
from server.text.text_model import TextModel
from server.text.tokenization.native_errors import TooManyTokens
from server.text.whole_texts import WholeText, encode_text

_SHOWN_PROMPTS = 20  # names that a message lists


async def embed(query: EmbeddingsRequest, model: ServedModel, served: ServedModels, tenant: Tenant) -> dict[str, Any]:
    """OpenAI's list of embeddings, one for each input."""
    refuse_embeddings(model)
    prompts: Sequence[PromptSource] = query.input
    text_model, sentences = model.text_model, model.text_model.sentences
    _check_dimensions(query, model, sentences)
    lead = _prompt_text(query, sentences)
    most = most_tokens(model)
    cut_at = query.truncate_prompt_tokens
    if cut_at is not None:
        cut_at = most if cut_at == -1 else min(cut_at, most)

    def tokenize() -> list[WholeText]:
        try:
            if model.engine.model_info.is_encoder:
                return [_encode_whole(prompt, lead, text_model, most, cut_at) for prompt in prompts]
            return [WholeText(_encode(prompt, lead, text_model, most, cut_at)) for prompt in prompts]
        except InvalidParameter as error:
            raise error.renamed("input") from error

    num_chars = sum(prompt.num_chars + len(lead) for prompt in prompts)
    texts = await run_on_texts(served.workers, num_chars, tokenize)
    check_lengths(texts, model, "input")
    pooling = Pooling(query.pooling or ("last" if sentences is None else sentences.pooling))
    embeddings = await pool_texts(texts, pooling, model, served, tenant, "input")
    num_tokens = sum(len(text.token_ids) for text in texts)
    return {
        "object": "list",
        "data": await served.workers.run(_show, embeddings, query),  # a million numbers, perhaps
        "model": model.model_name,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def _check_dimensions(query: EmbeddingsRequest, model: ServedModel, sentences: SentenceEncoder | None) -> None:
    """Refuses shorter embeddings of a model that is made for whole ones, as vLLM does; raises InvalidParameter."""
    if query.dimensions is None or sentences is None:
        return
    if not sentences.takes_dimensions:
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


def _encode_whole(prompt: PromptSource, lead: str, text_model: TextModel, most: int, cut_at: int | None) -> WholeText:
    """One input of an encoder; token ids are taken as they are."""
    if not isinstance(prompt, TextPrompt):
        return WholeText(prompt.encode(text_model, 2 * most)[:cut_at])
    try:
        return encode_text(
            text_model.tokenizer, lead + prompt.text, most if cut_at is None else cut_at, is_cut=cut_at is not None
        )
    except TooManyTokens as error:
        raise _too_many(error, most) from error


def _encode(prompt: PromptSource, lead: str, text_model: TextModel, most: int, cut_at: int | None) -> list[int]:
    """One input of a decoder."""
    if isinstance(prompt, TextPrompt) and (lead or cut_at is not None):
        prompt = prompt._replace(text=lead + prompt.text)
        if cut_at is not None:
            return encode_text(text_model.tokenizer, prompt.text, cut_at, is_cut=True).token_ids
    return prompt.encode(text_model, most + 2)[:cut_at]


def _too_many(error: TooManyTokens, most: int) -> InvalidParameter:
    return ContextOverflow(
        "input", f"an input has at least {error.num_tokens} tokens", limit=most, num_tokens=error.num_tokens
    )


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
