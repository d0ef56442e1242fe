"""POST /v1/rerank, /rerank and /v2/rerank: documents in the order of their scores with a query."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from server.admission.keyring import Tenant
from server.api.pooling.rerank_request import RerankRequest
from server.http.pooling.pair_scores import PairsOf, score_pairs
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.serving.tasks import refuse_adapter


async def rerank(query: RerankRequest, model: ServedModel, served: ServedModels, tenant: Tenant) -> dict[str, Any]:
    """Jina's answer, in which each result has its document unless that is not wanted."""
    return await _rerank(query, model, served, tenant, shows_documents=query.return_documents is not False)


async def rerank_in_either_form(
    query: RerankRequest, model: ServedModel, served: ServedModels, tenant: Tenant
) -> dict[str, Any] | list[dict[str, Any]]:
    """Jina's answer, or that of Text Embeddings Inference."""
    return in_form_of(query, await rerank(query, model, served, tenant))


def in_form_of(query: RerankRequest, ranking: dict[str, Any]) -> dict[str, Any] | list[dict[str, Any]]:
    """Jina's answer as a query wants it: of Text Embeddings Inference's form the results alone, with its names."""
    if not query.is_listed:
        return ranking
    return [
        {"index": result["index"], "score": result["relevance_score"]}
        | ({"text": result["document"]["text"]} if "document" in result else {})
        for result in ranking["results"]
    ]


async def rerank_as_cohere(
    query: RerankRequest, model: ServedModel, served: ServedModels, tenant: Tenant
) -> dict[str, Any]:
    """Cohere's second answer, in which results have no documents."""
    return await _rerank(query, model, served, tenant, shows_documents=query.return_documents is True)


async def _rerank(
    query: RerankRequest, model: ServedModel, served: ServedModels, tenant: Tenant, *, shows_documents: bool
) -> dict[str, Any]:
    refuse_adapter(model, query.model)
    param = "texts" if query.is_listed else "documents"
    pairs = PairsOf(
        [query.query], query.documents, query.truncate_prompt_tokens, param,
        query.max_tokens_per_doc or None, query.max_tokens_per_query or None,
    )  # fmt: skip
    scored = await score_pairs(
        pairs, use_activation=query.use_activation is not False, model=model, served=served, tenant=tenant
    )
    order = sorted(range(len(scored.scores)), key=lambda index: -scored.scores[index])[: query.top_n]
    results = [
        {"index": index, "relevance_score": scored.scores[index]}
        | ({"document": {"text": query.documents[index]}} if shows_documents else {})
        for index in order
    ]
    return {
        "id": f"rerank-{uuid4().hex}",
        "object": "list",
        "model": model.model_name,
        "usage": {"prompt_tokens": scored.num_tokens, "total_tokens": scored.num_tokens},
        "results": results,
    }
