"""Turns the columns of logprobs that the device writes into objects for readers; runs in the asyncio thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.interface.types import TokenLogprobs
from sampling.host.params import SamplingParams
from sampling.logprobs import BEST, BEST_IDS, LISTED, MASKED, OWN, RANK


def read_logprobs(columns: np.ndarray, params: SamplingParams) -> list[TokenLogprobs]:
    """The logprobs of output tokens.

    Args:
        columns: int32[num_tokens, NUM_COLUMNS], as sampling/logprobs.py lays them out.
    """
    return _read(columns, params.logprobs or 0, len(params.logprob_token_ids))


def read_prompt_logprobs(pieces: Sequence[np.ndarray], params: SamplingParams) -> list[TokenLogprobs | None]:
    """The logprobs of a whole prompt; None for its first token, which follows nothing.

    Args:
        pieces: int32[num_tokens, NUM_COLUMNS] each, in the order of the prompt.
    """
    of_piece = [_read(columns, params.prompt_logprobs or 0, 0) for columns in pieces]
    return [None, *(logprobs for piece in of_piece for logprobs in piece)]


def _read(columns: np.ndarray, num_best: int, num_listed: int) -> list[TokenLogprobs]:
    floats = columns.view(np.float32)
    return [
        TokenLogprobs(own, rank, list(zip(best_ids, best, strict=True)), listed, masked)
        for own, rank, best_ids, best, listed, masked in zip(
            floats[:, OWN].tolist(),
            columns[:, RANK].tolist(),
            columns[:, BEST_IDS : BEST_IDS + num_best].tolist(),
            floats[:, BEST : BEST + num_best].tolist(),
            floats[:, LISTED : LISTED + num_listed].tolist(),
            floats[:, MASKED].tolist(),
            strict=True,
        )
    ]
