"""Host arrays of all running requests, indexed by slot, from which the rows of a step are gathered."""

from collections.abc import Sequence

import numpy as np

from cache.page import NULL_PAGE_ID, CachePage
from engine.interface.types import PromptPicture
from engine.schedule.request import NO_SLOT, Request
from sampling.host.rows import SamplerVariant, SamplingRows

NUM_ROPE_AXES = 3  # of M-RoPE: time, row and column


class SequenceBuffer:
    """What a step needs of a running request, one row for each slot, and one of padding behind them."""

    def __init__(
        self, num_slots: int, max_model_len: int, max_pages_per_request: int, *, num_groups: int = 1,
        uses_mrope: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            num_groups: of layers with pages of their own, whose page tables lie side by side.
            uses_mrope: whether tokens of pictures are rotated by their rows and columns.
        """
        self.num_slots = num_slots
        # The tokens that were known when the request got the slot. Later ones are read on the device.
        self.token_ids = np.zeros((num_slots, max_model_len), np.int32)
        # The positions by which tokens are rotated, of the answer too; None: those in the sequence.
        self.rope_positions = np.zeros((num_slots, max_model_len, NUM_ROPE_AXES), np.int32) if uses_mrope else None
        self._max_pages_per_request = max_pages_per_request
        self.page_table = np.full((num_slots + 1, num_groups * max_pages_per_request), NULL_PAGE_ID, np.int32)
        self.sampling = SamplingRows.padding(num_slots + 1, num_slots)
        self.levels = np.full(num_slots + 1, SamplerVariant.GREEDY, np.int32)  # the program of each request
        self.adapters = np.zeros((num_slots, 2), np.int32)  # the columns ADAPTER and ADAPTER_SCALE of a step's rows
        # By slot: requests whose sampling features are not written to the device yet.
        self.admitted: dict[int, Request] = {}
        # The position of the token that the device holds in slots.last_token; NO_SLOT while it holds none.
        self.device_token_position = np.full(num_slots, NO_SLOT, np.int32)
        # Whoever remembers rows of these arrays sees by the first count whether a slot may have another request now,
        # and by the second whether a page table may have changed.
        self.num_added = 0
        self.num_page_changes = 0
        # A stack: the slot freed last is warm in the processor's cache.
        self._free_slots = list(range(num_slots - 1, -1, -1))

    @property
    def padding_slot(self) -> int:
        """The index of the padding row in `page_table`, `sampling` and `levels`."""
        return self.num_slots

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def add_request(self, request: Request) -> None:
        """Gives the request a slot and copies its tokens and parameters there; raises IndexError if none is free."""
        slot = self._free_slots.pop()
        self.num_added += 1
        request.slot = slot
        self.token_ids[slot, : len(request.token_ids)] = request.token_ids
        if self.rope_positions is not None:
            self.rope_positions[slot] = _rope_positions(request.pictures, self.rope_positions.shape[1])
        self.device_token_position[slot] = NO_SLOT
        self.sampling.set(
            slot, slot, request.params,
            seed=request.seed, num_prompt_tokens=request.num_tokens_before_output, uses=request.uses,
        )  # fmt: skip
        self.levels[slot] = request.level
        self.adapters[slot] = (0, 0) if request.adapter is None else request.adapter.columns
        if request.uses:
            self.admitted[slot] = request

    def take_admitted(self) -> list[Request]:
        """Returns the requests that got a slot since the last call and use sampling features."""
        if not self.admitted:
            return []
        admitted, self.admitted = list(self.admitted.values()), {}
        return admitted

    def remove_request(self, request: Request) -> None:
        """Frees the slot of a request; raises ValueError if a step in flight names it."""
        if request.num_in_flight_steps:
            raise ValueError(f"slot {request.slot} is named by {request.num_in_flight_steps} steps in flight")
        self.page_table[request.slot] = NULL_PAGE_ID
        self.admitted.pop(request.slot, None)
        self._free_slots.append(request.slot)
        request.slot = NO_SLOT

    def write_pages(self, slot: int, first: int, pages: Sequence[CachePage], group: int = 0) -> None:
        """Writes page ids into the page table of a slot for a group of layers, from the table's entry `first` on."""
        self.num_page_changes += 1
        first += group * self._max_pages_per_request
        self.page_table[slot, first : first + len(pages)] = [page.page_id for page in pages]


def _rope_positions(pictures: Sequence[PromptPicture], length: int) -> np.ndarray:
    """int32[length, NUM_ROPE_AXES], as in transformers' Qwen2_5_VLModel.get_rope_index.

    A picture takes as many positions as its longer side has tokens; what follows goes on behind them. All moments of a
    video take those of its first one.
    """
    first = np.int32(0)
    positions = np.repeat(np.arange(length, dtype=np.int32)[:, None], NUM_ROPE_AXES, axis=1)
    for picture in pictures:
        num_rows, num_columns = picture.grid
        is_first = picture.time is None
        if is_first:
            first = positions[picture.start, 0]
        row, column = np.divmod(np.arange(picture.num_tokens, dtype=np.int32), num_columns)
        time = np.full_like(row, picture.time or 0)
        positions[picture.start : picture.end] = first + np.stack([time, row, column], axis=1)
        positions[picture.end :] -= picture.num_tokens - (max(num_rows, num_columns) if is_first else 0)
    return positions
