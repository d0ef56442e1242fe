"""Pictures by formula, the same wherever they are made."""

from __future__ import annotations

import numpy as np

from tests.golden.tiny_llama import noise


def tiny_picture(name: str, size: int) -> np.ndarray:
    """uint8[size, size, 3] of a one-letter name."""
    picture: np.ndarray = ((noise(ord(name), (size, size, 3)) + 1) * 127.9).astype(np.uint8)
    return picture
