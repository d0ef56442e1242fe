"""The grammars' part in a step: which tokens each of its rows may sample."""

from __future__ import annotations

import numpy as np

from engine.schedule.request import Request, RequestStatus
from engine.step.pending_step import PendingStep
from sampling.host.grammar import GrammarError
from sampling.host.packed import pack_words
from sampling.host.rows import INT_COLUMNS

_MIN_TOKENS = INT_COLUMNS["min_tokens"]


def fill_masks(pending: PendingStep, masks: np.ndarray) -> list[tuple[Request, str]]:
    """Writes the masks of a step's rows that have a grammar and go on; of others it leaves what is there.

    At its end a grammar allows nothing but what ends the request, and so `min_tokens` cannot hold
    any longer: it is taken out of the row.

    Args:
        pending: a step that has not sampled.
        masks: uint32[num_rows, num_words], all zeros.

    Returns:
        The requests whose grammar cannot go on, and why.
    """
    failures: list[tuple[Request, str]] = []
    plan, ints = pending.plan, pending.step.sampling.ints
    sampled = [request for request, samples in zip(plan.requests, plan.samples, strict=True) if samples]
    for row, request in enumerate(sampled):
        if request.matcher is None or request.status is not RequestStatus.RUNNING:
            continue
        try:
            request.matcher.fill_mask(masks[row])
        except GrammarError as error:
            failures.append((request, str(error)))
            continue
        if request.params.min_tokens and not (masks[row] & ~pack_words(list(request.stop_ids), masks.shape[1])).any():
            ints[row, _MIN_TOKENS] = 0
    return failures
