"""Resizing as torchvision does, whose results differ a little from Pillow's: some processors know no other.

It is what PyTorch's kernels compute of bytes with antialiasing on x86 processors with AVX2 and on 64-bit ARM, with
weights of 16 bits, first along rows, then along columns.
"""

from __future__ import annotations

import math

import numpy as np

_MOST_WEIGHT = 1 << 15
_MOST_BITS = 22  # behind the point of a weight
_MOST_COLOUR = 255


def bilinear(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """uint8[height, width, 3] of a picture in another size."""
    if width != pixels.shape[1]:
        pixels = _along_rows(pixels, width)
    if height != pixels.shape[0]:
        pixels = _along_rows(pixels.swapaxes(0, 1), height).swapaxes(0, 1)
    return np.ascontiguousarray(pixels)


def _along_rows(pixels: np.ndarray, width: int) -> np.ndarray:
    """uint8[height, width, 3] of another width."""
    kernels = [_kernel(at, pixels.shape[1] / width, pixels.shape[1]) for at in range(width)]
    largest, num_bits = max(float(weights.max()) for _, weights in kernels), 0
    while num_bits < _MOST_BITS and int(0.5 + largest * (1 << (num_bits + 1))) < _MOST_WEIGHT:
        num_bits += 1
    made = np.empty((len(pixels), width, pixels.shape[2]), np.uint8)
    for at, (first, weights) in enumerate(kernels):
        # Sums of whole numbers below 2 to the power of 53, which are exact.
        whole = np.floor(0.5 + weights * (1 << num_bits))
        seen = pixels[:, first : first + len(whole)].astype(np.float64)
        sums = np.floor((np.einsum("rwc,w->rc", seen, whole) + (1 << num_bits >> 1)) / (1 << num_bits))
        made[:, at] = np.minimum(sums, _MOST_COLOUR)
    return made


def _kernel(at: int, scale: float, num_pixels: int) -> tuple[int, np.ndarray]:
    """The first pixel that counts for one of the others, and the shares of that and those behind it."""
    support = max(scale, 1.0)
    centre = scale * (at + 0.5)
    first, behind = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), num_pixels)
    shares = np.maximum(1 - np.abs((np.arange(first, behind) - centre + 0.5) / support), 0)
    total = math.fsum(shares)
    return first, shares / total if total else shares
