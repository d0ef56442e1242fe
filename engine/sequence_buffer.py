"""Host arrays by slot, from which a step's batch is gathered by vectorised indexing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cache.page import NULL_PAGE_ID, CachePage
from engine.request import NO_SLOT, Request
from sampling.rows import (
    MIN_P,
    NUM_FLOATS,
    NUM_INTS,
    SEED_HIGH,
    SEED_LOW,
    SLOT,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)

_MAX_INT32 = 2**31 - 1


class SequenceBuffer:
    """Everything a step needs of a running request, one row for each slot."""

    def __init__(self, num_slots: int, max_model_len: int, max_pages_per_request: int) -> None:
        self.num_slots = num_slots
        # Tokens known when the request got the slot; what it samples afterwards is read on the device.
        self.token_ids = np.zeros((num_slots, max_model_len), np.int32)
        self.page_table = np.full((num_slots, max_pages_per_request), NULL_PAGE_ID, np.int32)
        self.sampling_ints = np.zeros((num_slots, NUM_INTS), np.int32)
        self.sampling_floats = np.zeros((num_slots, NUM_FLOATS), np.float32)
        # Position of the token in the device's slots.last_token; NO_SLOT while there is none.
        self.device_token_position = np.full(num_slots, NO_SLOT, np.int64)
        # A stack: the slot freed last is warm in the processor's cache.
        self._free_slots = list(range(num_slots - 1, -1, -1))

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def add_request(self, request: Request) -> None:
        """Gives the request a slot and copies its tokens and parameters there.

        Raises:
            IndexError: no slot is free.
        """
        slot = self._free_slots.pop()
        request.slot = slot
        self.token_ids[slot, : len(request.token_ids)] = request.token_ids
        self.device_token_position[slot] = NO_SLOT
        params, ints, floats = request.params, self.sampling_ints[slot], self.sampling_floats[slot]
        ints[SLOT] = slot
        ints[TOP_K] = min(max(params.top_k, 0), _MAX_INT32)  # no vocabulary is as large
        ints[[SEED_LOW, SEED_HIGH]] = np.array([request.seed & (2**64 - 1)], np.uint64).view(np.int32)
        floats[TEMPERATURE] = params.temperature
        floats[TOP_P] = params.top_p
        floats[MIN_P] = params.min_p

    def remove_request(self, request: Request) -> None:
        """Takes the slot back; nothing in flight may name it any more."""
        if request.num_in_flight_steps:
            raise ValueError(f"slot {request.slot} is named by {request.num_in_flight_steps} steps in flight")
        self.page_table[request.slot] = NULL_PAGE_ID
        self._free_slots.append(request.slot)
        request.slot = NO_SLOT

    def append_pages(self, slot: int, first: int, pages: Sequence[CachePage]) -> None:
        """Writes page ids into the slot's page table, from its logical page `first` on."""
        self.page_table[slot, first : first + len(pages)] = [page.page_id for page in pages]
