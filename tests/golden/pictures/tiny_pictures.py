"""Pictures by formula, the same wherever they are made."""

from __future__ import annotations

import numpy as np

from tests.golden.tiny_llama import noise

# Widths and heights at which the arithmetic of processors rounds in different ways.
ODD_SIZES = ((1, 1), (3, 7), (48, 48), (50, 49), (97, 33), (31, 96), (200, 1), (1, 130), (47, 101), (150, 149))


# Rows and columns of squares of pictures that keep their size, by their names.
GRIDS = {"a": (2, 3), "b": (5, 1), "c": (3, 4), "d": (1, 1), "e": (4, 5)}


def tiny_patches(name: str, patch_size: int, merge_size: int) -> np.ndarray:
    """uint8[patches, patch_size, patch_size, 3], those of each square beside each other."""
    rows, columns = GRIDS[name]
    shape = rows * columns * merge_size**2, patch_size, patch_size, 3
    patches: np.ndarray = ((noise(ord(name), shape) + 1) * 127.9).astype(np.uint8)
    return patches


def tiny_picture(name: str, size: int) -> np.ndarray:
    """uint8[size, size, 3] of a one-letter name."""
    picture: np.ndarray = ((noise(ord(name), (size, size, 3)) + 1) * 127.9).astype(np.uint8)
    return picture


def waves(width: int, height: int) -> np.ndarray:
    """uint8[height, width, 3], which is smooth, so that it is short when it is compressed."""
    rows, columns = np.mgrid[0:height, 0:width]
    colours = [rows * 5 + columns, rows + columns * 3, (rows * columns) // 8]
    picture: np.ndarray = (np.stack(colours, axis=-1) % 256).astype(np.uint8)
    return picture
