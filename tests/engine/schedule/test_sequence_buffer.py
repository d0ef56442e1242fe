"""The rotary positions of a running request with pictures."""

from __future__ import annotations

import numpy as np

from engine.interface.types import PromptPicture
from engine.schedule.request import Request
from engine.schedule.sequence_buffer import SequenceBuffer
from sampling.host.params import SamplingParams

PIXELS = np.zeros((16, 2, 14, 14, 3), np.uint8)


def positions_of(start: int, times: tuple[int | None, ...]) -> np.ndarray:
    """Of a prompt with moments of 2 × 2 tokens one behind the other."""
    pictures = tuple(
        PromptPicture(start + 4 * at, 4, bytes([at]), PIXELS, (2, 2), time=time) for at, time in enumerate(times)
    )
    buffer = SequenceBuffer(1, 24, 6, uses_mrope=True)
    buffer.add_request(Request("a", [1] * 20, SamplingParams(), seed=0, max_length=24, pictures=pictures))
    positions = buffer.rope_positions
    assert positions is not None
    return positions[0]


def test_the_first_moment_that_is_left_of_a_video_counts_as_its_first() -> None:
    """A prompt that `truncate_prompt_tokens` cuts may begin in the middle of a video."""
    for start in (0, 3):
        whole = positions_of(start, (None, 4))
        assert np.array_equal(positions_of(start, (8, 12)), whole)
        assert whole[start + 8, 0] == start + 2  # the text behind begins beyond the rows and columns
