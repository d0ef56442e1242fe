"""From a picture to one or several pictures of the size that an encoder takes, its tiles."""

from __future__ import annotations

import math
from typing import NamedTuple

from PIL.Image import Image

from server.media.tiling import Tiling

_LEAST_EDGE = 1


class Tiles(NamedTuple):
    """The tiles of one picture, row by row, with the whole picture as the last one."""

    pictures: list[Image]
    num_rows: int = 0  # 0: the picture was not cut, and there is one tile
    num_columns: int = 0


def tile(picture: Image, tiling: Tiling) -> Tiles:
    """The tiles of a picture, as transformers' Idefics3ImageProcessorPil makes them."""

    def resized(width: int, height: int) -> Image:
        return picture.resize((width, height), resample=tiling.resample)

    if tiling.longest_edge:
        picture = resized(*_scaled(*picture.size, tiling.longest_edge))
        if tiling.is_cut:
            picture = resized(*_whole_tiles(*picture.size, tiling.width))
    whole = resized(tiling.width, tiling.height)
    if not tiling.longest_edge or not tiling.is_cut or picture.size == (tiling.width, tiling.height):
        return Tiles([whole])
    num_columns, num_rows = picture.width // tiling.width, picture.height // tiling.height
    corners = [(column * tiling.width, row * tiling.height) for row in range(num_rows) for column in range(num_columns)]
    pieces = [picture.crop((left, top, left + tiling.width, top + tiling.height)) for left, top in corners]
    return Tiles([*pieces, whole], num_rows, num_columns)


def _scaled(width: int, height: int, longest_edge: int) -> tuple[int, int]:
    """The width and the height with this longest edge; the other one is even, as in transformers."""
    ratio = width / height
    if width >= height:
        width, height = longest_edge, int(longest_edge / ratio)
        height += height % 2
    else:
        width, height = int(longest_edge * ratio), longest_edge
        width += width % 2
    return max(width, _LEAST_EDGE), max(height, _LEAST_EDGE)


def _whole_tiles(width: int, height: int, edge: int) -> tuple[int, int]:
    """The width and the height of the fewest tiles that the picture fills when it is stretched a little."""

    def whole(size: float) -> int:
        return max(math.ceil(int(size) / edge), 1) * edge

    ratio = width / height
    if width >= height:
        width = whole(width)
        return width, whole(width / ratio)
    height = whole(height)
    return whole(height * ratio), height
