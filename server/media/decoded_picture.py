"""Pictures that are decoded: their pixels, and what stands in a prompt for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class PictureTile:
    """A picture, or a piece of one, in the size that the model's encoder takes."""

    pixels: np.ndarray  # uint8[height, width, 3], or of a picture of any size, its patches
    digest: bytes  # of the pixels, and of their shape
    num_tokens: int  # positions of a prompt that it fills
    grid: tuple[int, int] = (0, 0)  # rows and columns of these positions, where pictures have any size
    time: int | None = None  # as `PromptPicture.time`


@dataclass(frozen=True, slots=True, eq=False)
class DecodedPicture:
    """A picture as a model takes it."""

    tiles: tuple[PictureTile, ...]  # in the order of their positions
    text: str  # which has a token for each of these positions
