"""POST /v1/score, /score and /classify, in vLLM's forms."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np

from server.admission.keyring import Tenant
from server.api.pooling.classify_request import ClassifyRequest
from server.api.pooling.score_request import ScoreRequest
from server.http.pooling.encoded_inputs import encode_inputs
from server.http.pooling.pair_scores import PairsOf, score_pairs
from server.serving.pooled_texts import pool_texts
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.serving.tasks import refuse_adapter, refuse_classes
from server.text.label_head import LabelHead, usual_activation


async def score(query: ScoreRequest, model: ServedModel, served: ServedModels, tenant: Tenant) -> dict[str, Any]:
    """The score of each pair of texts."""
    refuse_adapter(model, query.model)
    first, second = query.pairs
    pairs = PairsOf(
        first, second, query.truncate_prompt_tokens, "text_2" if query.text_2 else "documents",
        query.max_tokens_per_doc or None, query.max_tokens_per_query or None,
    )  # fmt: skip
    scored = await score_pairs(
        pairs, use_activation=query.use_activation is not False, model=model, served=served, tenant=tenant
    )
    data = [{"index": index, "object": "score", "score": each} for index, each in enumerate(scored.scores)]
    return _listed("score", data, scored.num_tokens, model)


async def classify(query: ClassifyRequest, model: ServedModel, served: ServedModels, tenant: Tenant) -> dict[str, Any]:
    """The label of each text, and the probabilities of all labels."""
    refuse_adapter(model, query.model)
    refuse_classes(model)
    texts = await encode_inputs(query.input, model, served, cut_at=query.truncate_prompt_tokens)
    vectors = await pool_texts(texts, model.engine.model_info.head_pooling, model, served, tenant, "input")
    num_labels = model.engine.model_info.num_labels
    head = model.text_model.head
    if head is None or len(head.labels) != num_labels:
        head = LabelHead(tuple(f"LABEL_{index}" for index in range(num_labels)), usual_activation(num_labels))
    data = await served.workers.run(_classes, vectors, head, query.use_activation is not False)
    return _listed("classify", data, sum(len(text.token_ids) for text in texts), model)


def _classes(vectors: Sequence[np.ndarray], head: LabelHead, use_activation: bool) -> list[dict[str, Any]]:
    raw = np.stack(vectors)
    probabilities = head.activate(raw, are_classes=True) if use_activation else raw.astype(np.float64)
    return [
        {"index": index, "label": head.labels[int(best)], "probs": row.tolist(), "num_classes": len(row)}
        for index, (row, best) in enumerate(zip(probabilities, raw.argmax(axis=1), strict=True))
    ]


def _listed(kind: str, data: list[dict[str, Any]], num_tokens: int, model: ServedModel) -> dict[str, Any]:
    return {
        "id": f"{kind}-{uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model.model_name,
        "data": data,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0},
    }
