"""Pictures that are decoded: their pixels, and what stands in a prompt for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class PictureTile:
    """A picture, or a piece of one, in the size that the model's encoder takes."""

    pixels: np.ndarray  # uint8[height, width, 3]
    digest: bytes  # of the pixels
    num_tokens: int  # positions of a prompt that it fills


@dataclass(frozen=True, slots=True, eq=False)
class DecodedPicture:
    """A picture as a model takes it."""

    tiles: tuple[PictureTile, ...]  # in the order of their positions
    text: str  # which has a token for each of these positions
