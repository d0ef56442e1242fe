"""The sizes of pictures that an encoder takes, and whether a picture is cut into several tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

MAX_EDGE = 4096  # of a picture that is cut into tiles; source: transformers' Idefics3ImageProcessor


class Tiling(NamedTuple):
    """The size of tiles, and whether a picture is cut into several."""

    height: int
    width: int
    resample: int  # Pillow's number of the filter that resizes
    longest_edge: int = 0  # to which a picture is scaled first; 0: it becomes one tile at once
    is_cut: bool = True  # whether a picture that is scaled is cut into tiles, which are squares then


class TileGrid(NamedTuple):
    """The size of tiles, and between how many of them a picture is cut, in the grid that is most like its shape."""

    height: int
    width: int
    resample: int  # Pillow's number of the filter that resizes
    min_tiles: int
    max_tiles: int


class PaddedGrid(NamedTuple):
    """The size of tiles, and of how many at most a picture is made, which keeps its shape beside black edges."""

    height: int
    width: int
    resample: int  # Pillow's number of the filter that resizes
    max_tiles: int
    fills_canvas: bool = False  # whether a small picture is made as large as all tiles together allow


class ThumbnailGrid(NamedTuple):
    """The size of a picture that keeps about its own one, behind tiles if it is large."""

    factor: int  # pixels on a side of a square, which becomes a token
    patch_size: int  # pixels on a side of a patch, of which squares are made
    min_tokens: int  # of the picture, apart from its tiles
    max_tokens: int
    resample: int  # Pillow's number of the filter that resizes
    tile_size: int  # pixels on a side of a tile
    min_tiles: int
    max_tiles: int  # 1: no picture is cut
    tolerance: float  # how many times as many pixels as `max_tokens` have a picture may have that is not cut
    has_thumbnail: bool = True  # whether the picture itself stands behind its tiles


class MappedGrid(NamedTuple):
    """The size of tiles, and in which grids of them a picture is shown, which keeps its shape between black edges."""

    edge: int  # pixels on a side of a tile
    side: int  # tokens on a side of one
    resample: int  # Pillow's number of the filter that resizes
    grids: tuple[tuple[int, int], ...]  # rows and columns of tiles

    def num_tokens(self, grid: tuple[int, int]) -> int:
        """Of a picture that fills a grid, and the whole one before it as one tile."""
        return self.side**2 + grid[0] * self.side * (grid[1] * self.side + 1)


class NativeSize(NamedTuple):
    """The size of a picture that keeps about its own one, in whole squares, each of which becomes a token."""

    factor: int  # pixels on a side of a square
    min_pixels: int
    max_pixels: int
    resample: int  # Pillow's number of the filter that resizes


class FrameSize(NamedTuple):
    """The size of a video's frames, which keep about their own one, in whole squares."""

    factor: int  # pixels on a side of a square
    min_pixels: int  # of all frames together
    max_pixels: int
    resample: int  # Pillow's number of the filter that resizes
    num_frames: int
    frames_a_patch: int
    most_pixels: int  # of a frame


class LongestEdge(NamedTuple):
    """The size of a picture that keeps its own one if no edge is longer, in whole squares; each becomes a token."""

    factor: int  # pixels on a side of a square
    longest_edge: int
    resample: int  # Pillow's number of the filter that resizes


class FilledSize(NamedTuple):
    """The size of a picture that keeps the ratio of its sides and fills as many whole squares as it may."""

    factor: int  # pixels on a side of a square
    max_squares: int
    resample: int  # Pillow's number of the filter that resizes


class PanAndScan(NamedTuple):
    """The size of a picture behind which crops of it stand, if one side is much longer than the other."""

    height: int
    width: int
    resample: int  # Pillow's number of the filter that resizes
    min_crop_size: int  # pixels of the shorter side of a crop
    max_num_crops: int
    min_ratio: float  # of the sides of a picture of which there are crops


Sizing: TypeAlias = (
    Tiling
    | TileGrid
    | PaddedGrid
    | ThumbnailGrid
    | MappedGrid
    | NativeSize
    | FrameSize
    | LongestEdge
    | FilledSize
    | PanAndScan
)
_KINDS: Sequence[type[Sizing]] = (
    Tiling, TileGrid, PaddedGrid, ThumbnailGrid, MappedGrid, NativeSize, FrameSize, LongestEdge, FilledSize, PanAndScan,
)  # fmt: skip
_SIZINGS = {kind.__name__: kind for kind in _KINDS}


def as_sizing(kind: str, values: list[Any]) -> Sizing:
    """What was sent as JSON, with the name of its class."""
    return _SIZINGS[kind](*values)
