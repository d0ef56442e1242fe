"""Scores of pairs of texts: a cross-encoder's, or the cosine of two embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.interface.context_overflow import ContextOverflow
from engine.interface.types import Pooling
from server.admission.keyring import Tenant
from server.protocol.errors import ApiError
from server.serving.pooled_texts import check_lengths, most_tokens, pool_texts, pooling_of, run_on_texts
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.serving.tasks import refuse_pairs
from server.text.label_head import LabelHead, usual_activation
from server.text.tokenization.native_errors import TooManyTokens
from server.text.whole_texts import NoPairs, WholeText, encode_part, encode_text, join_pair


class PairScores(NamedTuple):
    """The score of each pair, and how many tokens were read."""

    scores: list[float]
    num_tokens: int


class PairsOf(NamedTuple):
    """The texts of some pairs, and how they are cut; `param` names the second ones in errors."""

    first: Sequence[str]  # one that stands in all pairs, or one for each
    second: Sequence[str]
    cut_at: int | None  # tokens of a pair; -1: as many as the model takes; None: too long pairs are refused
    param: str
    most_of_second: int | None = None  # tokens to which each second text is cut before


async def score_pairs(
    pairs: PairsOf, *, use_activation: bool, model: ServedModel, served: ServedModels, tenant: Tenant
) -> PairScores:
    """Raises ApiError or InvalidParameter where the model makes no such scores, or a pair is too long."""
    refuse_pairs(model)
    by_cosine = model.engine.model_info.num_labels == 0
    num_chars = sum(map(len, pairs.first)) + sum(map(len, pairs.second))

    def tokenize() -> list[WholeText]:
        try:
            return _single_texts(pairs, model) if by_cosine else _joined_texts(pairs, model)
        except TooManyTokens as error:
            what = f"a pair has at least {error.num_tokens} tokens"
            limit = model.engine.model_info.max_model_len
            raise ContextOverflow(pairs.param, what, limit=limit, num_tokens=error.num_tokens) from error
        except NoPairs as error:
            raise ApiError(str(error), param="model", code="unsupported_task") from error

    texts = await run_on_texts(served.workers, num_chars, tokenize)
    check_lengths(texts, model, pairs.param)
    num_tokens = sum(len(text.token_ids) for text in texts)
    if by_cosine:
        vectors = await pool_texts(texts, pooling_of(model), model, served, tenant, pairs.param)
        return PairScores(await served.workers.run(_cosines, vectors, len(pairs.first)), num_tokens)
    vectors = await pool_texts(texts, Pooling.CLS, model, served, tenant, pairs.param)
    head = model.text_model.head or LabelHead(("LABEL_0",), usual_activation(1))
    raw = np.stack(vectors)
    scores = head.activate(raw) if use_activation else raw.astype(np.float64)
    return PairScores(scores[:, 0].tolist(), num_tokens)


def _joined_texts(pairs: PairsOf, model: ServedModel) -> list[WholeText]:
    """Each pair as one text. A first text that stands in all pairs is tokenised once."""
    tokenizer, most = model.tokenizer, most_tokens(model)
    is_cut = pairs.cut_at is not None
    if pairs.cut_at is not None and pairs.cut_at != -1:
        most = min(most, pairs.cut_at)
    first = [encode_part(tokenizer, text, most, is_cut=is_cut) for text in pairs.first]
    joined = []
    for index, text in enumerate(pairs.second):
        own = first[index if len(first) > 1 else 0]
        if pairs.most_of_second is None:
            second = encode_part(tokenizer, text, most, is_cut=is_cut)
        else:
            second = encode_part(tokenizer, text, min(pairs.most_of_second, most), is_cut=True)
        joined.append(join_pair(tokenizer, own, second, most, is_cut=is_cut))
    return joined


def _single_texts(pairs: PairsOf, model: ServedModel) -> list[WholeText]:
    """The first texts and then the second ones, each by itself, behind the prompt that the model's makers want."""
    tokenizer, most, sentences = model.tokenizer, most_tokens(model), model.text_model.sentences
    is_cut, cut_at = pairs.cut_at is not None, most
    if pairs.cut_at is not None and pairs.cut_at != -1:
        cut_at = min(most, pairs.cut_at)
    queries, documents = "", ""
    if sentences is not None:
        queries = sentences.prompt_of_input_type("query") or sentences.default_prompt
        documents = sentences.prompt_of_input_type("document") or sentences.default_prompt
    of_second = cut_at if pairs.most_of_second is None else min(cut_at, pairs.most_of_second)
    is_second_cut = is_cut or pairs.most_of_second is not None
    return [
        *(encode_text(tokenizer, queries + text, cut_at, is_cut=is_cut) for text in pairs.first),
        *(encode_text(tokenizer, documents + text, of_second, is_cut=is_second_cut) for text in pairs.second),
    ]


def _cosines(vectors: Sequence[np.ndarray], num_first: int) -> list[float]:
    """Of each second vector with its first one, or with the only one."""
    matrix = np.stack(vectors).astype(np.float64)
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    first, second = matrix[:num_first], matrix[num_first:]
    cosines: list[float] = (first * second).sum(axis=1).tolist()
    return cosines
