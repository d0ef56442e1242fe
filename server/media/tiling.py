"""The size of the tiles that an encoder takes, and whether a picture is cut into several."""

from __future__ import annotations

from typing import NamedTuple

MAX_EDGE = 4096  # of a picture that is cut into tiles; source: transformers' Idefics3ImageProcessor


class Tiling(NamedTuple):
    """The size of tiles, and whether a picture is cut into several."""

    height: int
    width: int
    resample: int  # Pillow's number of the filter that resizes
    longest_edge: int = 0  # to which a picture is scaled first; 0: it becomes one tile at once
    is_cut: bool = True  # whether a picture that is scaled is cut into tiles, which are squares then
