"""Grammar masks: their memory, and which tokens each row of a step may sample."""

import numpy as np

from engine.schedule.request import Request, RequestStatus
from engine.step.runner import PendingStep
from sampling.host.grammar import GrammarError, pack_words
from sampling.host.rows import INT_COLUMNS

_MIN_TOKENS = INT_COLUMNS["min_tokens"]


def allocate_masks(num_rows: int, num_words: int) -> np.ndarray:
    """Masks that allow nothing, uint32[num_rows, num_words], one bit for each token of the vocabulary.

    Each step needs a new array: on CPU the device reads it in place, and may do so until the step is done.
    """
    return np.zeros((num_rows, num_words), np.uint32)


def fill_masks(pending: PendingStep, masks: np.ndarray) -> list[tuple[Request, str]]:
    """Writes the masks of the rows that have a grammar and whose request is still running.

    At the end of its text, a grammar allows only the tokens that end the request, so `min_tokens` is removed from the
    row. Returns the requests whose grammar cannot continue, each with the reason.
    """
    failures: list[tuple[Request, str]] = []
    plan, ints = pending.plan, pending.inputs.sampling.ints
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
