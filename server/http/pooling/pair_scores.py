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
from server.startup.model_task import Task
from server.text.label_head import HeadActivation, LabelHead, usual_activation
from server.text.pair_prompt import QWEN3, AnswerTokens, PairPrompt, cut_text, usual_answer_tokens
from server.text.tokenization.native_errors import TooManyTokens
from server.text.whole_texts import NoPairs, WholeText, encode_part, encode_text, join_pair, tokens_before


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
    most_of_first: int | None = None


async def score_pairs(
    pairs: PairsOf, *, use_activation: bool, model: ServedModel, served: ServedModels, tenant: Tenant
) -> PairScores:
    """Raises ApiError or InvalidParameter where the model makes no such scores, or a pair is too long."""
    refuse_pairs(model)
    info, prompt, answers = model.engine.model_info, *_prompt_and_answers(model)
    by_cosine = info.num_labels == 0 and answers is None
    num_chars = sum(map(len, pairs.first)) + sum(map(len, pairs.second))

    def tokenize() -> list[WholeText]:
        try:
            if prompt is not None:
                return _prompted_texts(pairs, prompt, model)
            return _single_texts(pairs, model) if by_cosine else _joined_texts(pairs, model)
        except TooManyTokens as error:
            what = f"a pair has at least {error.num_tokens} tokens"
            raise ContextOverflow(pairs.param, what, limit=info.max_model_len, num_tokens=error.num_tokens) from error
        except NoPairs as error:
            raise ApiError(str(error), param="model", code="unsupported_task") from error

    texts = await run_on_texts(served.workers, num_chars, tokenize)
    check_lengths(texts, model, pairs.param)
    num_tokens = sum(len(text.token_ids) for text in texts)
    if by_cosine:
        vectors = await pool_texts(texts, pooling_of(model), model, served, tenant, pairs.param)
        return PairScores(await served.workers.run(_cosines, vectors, len(pairs.first)), num_tokens)
    if answers is not None:
        logprobs = await pool_texts(texts, Pooling.LAST, model, served, tenant, pairs.param, answers=answers)
        return PairScores(_answered(np.stack(logprobs), use_activation=use_activation), num_tokens)
    vectors = await pool_texts(texts, info.head_pooling, model, served, tenant, pairs.param)
    head = model.text_model.head or LabelHead(("LABEL_0",), usual_activation(1))
    raw = np.stack(vectors)
    scores = head.activate(raw) if use_activation else raw.astype(np.float64)
    return PairScores(scores[:, 0].tolist(), num_tokens)


def _prompt_and_answers(model: ServedModel) -> tuple[PairPrompt | None, AnswerTokens | None]:
    """How a decoder is shown pairs, and by which tokens it answers; None where it does not."""
    text_model, info = model.text_model, model.engine.model_info
    is_plain = not info.is_encoder and not info.num_labels and text_model.sentences is None
    if is_plain and text_model.answers is None and model.settings.task == Task.RERANK:
        usual = usual_answer_tokens(text_model.tokenizer)
        if usual is not None:
            return QWEN3, usual
    return text_model.pairs, text_model.answers


def _prompted_texts(pairs: PairsOf, prompt: PairPrompt, model: ServedModel) -> list[WholeText]:
    """Each pair as a decoder is shown it; so those of one query begin alike."""
    tokenizer, most = model.tokenizer, most_tokens(model)
    if pairs.cut_at is not None and pairs.cut_at != -1:
        most = min(most, pairs.cut_at)
    texts = []
    for index, document in enumerate(pairs.second):
        query = pairs.first[index if len(pairs.first) > 1 else 0]
        if pairs.most_of_first is not None:
            query = cut_text(tokenizer, query, pairs.most_of_first)
        if pairs.most_of_second is not None:
            document = cut_text(tokenizer, document, pairs.most_of_second)
        texts.append(prompt.encode(tokenizer, query, document, most, is_cut=pairs.cut_at is not None))
    return texts


def _answered(logprobs: np.ndarray, *, use_activation: bool) -> list[float]:
    """The shares of the first token of float32[num_pairs, 2], or the logarithms of its odds against the second."""
    wide = logprobs.astype(np.float64)
    raw = wide[:, :1] - wide[:, 1:]
    scores = LabelHead(("yes",), HeadActivation.SIGMOID).activate(raw) if use_activation else raw
    answered: list[float] = scores[:, 0].tolist()
    return answered


def _joined_texts(pairs: PairsOf, model: ServedModel) -> list[WholeText]:
    """Each pair as one text. A first text that stands in all pairs is tokenised once."""
    tokenizer, most = model.tokenizer, most_tokens(model)
    is_cut = pairs.cut_at is not None
    if pairs.cut_at is not None and pairs.cut_at != -1:
        most = min(most, pairs.cut_at)

    def encode(text: str, own_most: int | None) -> Sequence[int]:
        if own_most is None:
            return encode_part(tokenizer, text, most, is_cut=is_cut)
        return encode_part(tokenizer, text, min(own_most, most), is_cut=True)

    first = [encode(text, pairs.most_of_first) for text in pairs.first]
    joined = []
    for index, text in enumerate(pairs.second):
        own, second = first[index if len(first) > 1 else 0], encode(text, pairs.most_of_second)
        is_encoder = model.engine.model_info.is_encoder
        joined.append(join_pair(tokenizer, own, second, most, is_cut=is_cut, is_of_encoder=is_encoder))
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

    def encode(lead: str, texts: Sequence[str], own_most: int | None) -> list[WholeText]:
        own_cut = cut_at if own_most is None else min(cut_at, own_most)
        first = 0 if sentences is None or sentences.pools_prompts else tokens_before(tokenizer, lead)
        is_own_cut = is_cut or own_most is not None
        return [
            encode_text(tokenizer, lead + text, own_cut, is_cut=is_own_cut)._replace(first_pooled=first)
            for text in texts
        ]

    return encode(queries, pairs.first, pairs.most_of_first) + encode(documents, pairs.second, pairs.most_of_second)


def _cosines(vectors: Sequence[np.ndarray], num_first: int) -> list[float]:
    """Of each second vector with its first one, or with the only one."""
    matrix = np.stack(vectors).astype(np.float64)
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    first, second = matrix[:num_first], matrix[num_first:]
    # Rounded, that of a text with itself may be above 1.
    cosines: list[float] = np.clip((first * second).sum(axis=1), -1.0, 1.0).tolist()
    return cosines
