"""From a picture to one or several pictures of the size that an encoder takes, its tiles."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from PIL.Image import Image, Resampling, fromarray, new

from engine.interface.types import TileMap
from server.media.resampling import bilinear
from server.media.tiling import (
    FilledSize,
    FrameSize,
    LongestEdge,
    MappedGrid,
    NativeSize,
    PaddedGrid,
    PanAndScan,
    Sizing,
    ThumbnailGrid,
    TileGrid,
    Tiling,
)

_LEAST_EDGE = 1
MAX_RATIO = 200  # of the sides of a picture that keeps its size; source: transformers' Qwen2VLImageProcessor


class SizeRefused(ValueError):
    """A picture of a size that the model does not take; the message is the end of a sentence about it."""


class Tiles(NamedTuple):
    """The tiles of one picture, row by row, with the whole picture as the last one, or before its crops."""

    pictures: list[Image]
    num_rows: int = 0  # 0: the picture was not cut, and there is one tile; of a picture of any size, rows of squares
    num_columns: int = 0  # both of a `MappedGrid`: the `grid` of a `TileMap`


def tile(picture: Image, sizing: Sizing) -> Tiles:
    """The tiles of a picture; raises SizeRefused."""
    if isinstance(sizing, Tiling):
        return _cut(picture, sizing)
    if isinstance(sizing, TileGrid):
        return _in_grid(picture, sizing)
    if isinstance(sizing, PaddedGrid):
        return _padded(picture, sizing)
    if isinstance(sizing, ThumbnailGrid):
        return _with_thumbnail(picture, sizing)
    if isinstance(sizing, MappedGrid):
        return _mapped(picture, sizing)
    if isinstance(sizing, PanAndScan):
        return _with_crops(picture, sizing)
    if isinstance(sizing, FilledSize):
        width, height = _filled(*picture.size, sizing)
    elif isinstance(sizing, FrameSize):
        width, height = _of_frames(*picture.size, sizing)
    elif isinstance(sizing, LongestEdge):
        width, height = _bounded(*picture.size, sizing)
    else:
        width, height = _native(*picture.size, sizing)
    resized = picture if picture.size == (width, height) else picture.resize((width, height), resample=sizing.resample)
    return Tiles([resized], height // sizing.factor, width // sizing.factor)


def _native(width: int, height: int, size: NativeSize) -> tuple[int, int]:
    """The width and the height, as transformers' Qwen2VLImageProcessorPil computes them."""
    if max(width, height) > MAX_RATIO * min(width, height):
        reason = f"a side may be at most {MAX_RATIO} times as long as the other"
        raise SizeRefused(f"has {width} × {height} pixels; {reason}")
    factor = size.factor
    rounded = [round(edge / factor) * factor for edge in (height, width)]
    if rounded[0] * rounded[1] < size.min_pixels:
        grow = math.sqrt(size.min_pixels / (height * width))
        rounded = [math.ceil(edge * grow / factor) * factor for edge in (height, width)]
    if rounded[0] * rounded[1] > size.max_pixels:  # one that has grown too, where the limits are near to each other
        shrink = math.sqrt(height * width / size.max_pixels)
        rounded = [max(factor, math.floor(edge / shrink / factor) * factor) for edge in (height, width)]
        # One that is very long would still be too large.
        longest = max(factor, size.max_pixels // min(rounded) // factor * factor)
        rounded = [min(edge, longest) for edge in rounded]
    return rounded[1], rounded[0]


def _of_frames(width: int, height: int, size: FrameSize) -> tuple[int, int]:
    """The width and the height, as transformers' Qwen3VLVideoProcessor computes them."""
    factor, number = size.factor, size.num_frames
    if min(width, height) < factor:
        grow = factor / min(width, height)
        width, height = int(width * grow), int(height * grow)
    if max(width, height) > MAX_RATIO * min(width, height):
        raise SizeRefused(f"has sides of which one is more than {MAX_RATIO} times as long as the other")
    whole = max(round(number / size.frames_a_patch), 1) * size.frames_a_patch
    rounded = [round(edge / factor) * factor for edge in (width, height)]
    if whole * math.prod(rounded) > size.max_pixels:
        shrink = math.sqrt(number * width * height / size.max_pixels)
        rounded = [max(factor, math.floor(edge / shrink / factor) * factor) for edge in (width, height)]
    elif whole * math.prod(rounded) < size.min_pixels:
        grow = math.sqrt(size.min_pixels / (number * width * height))
        rounded = [math.ceil(edge * grow / factor) * factor for edge in (width, height)]
    if math.prod(rounded) > size.most_pixels:  # what the engine takes of one moment
        shrink = math.sqrt(width * height / size.most_pixels)
        rounded = [max(factor, math.floor(edge / shrink / factor) * factor) for edge in (width, height)]
        longest = max(factor, size.most_pixels // min(rounded) // factor * factor)
        rounded = [min(edge, longest) for edge in rounded]
    return rounded[0], rounded[1]


def _bounded(width: int, height: int, size: LongestEdge) -> tuple[int, int]:
    """The width and the height, as transformers' PixtralImageProcessorPil computes them."""
    ratio = max(width, height) / size.longest_edge
    if ratio > 1:
        width, height = (max(math.floor(edge / ratio), _LEAST_EDGE) for edge in (width, height))
    return -(-width // size.factor) * size.factor, -(-height // size.factor) * size.factor


def _filled(width: int, height: int, size: FilledSize) -> tuple[int, int]:
    """The width and the height, as transformers' Gemma4ImageProcessorPil computes them."""
    grow = math.sqrt(size.max_squares * size.factor**2 / (width * height))
    columns, rows = (math.floor(grow * edge / size.factor) for edge in (width, height))
    if not rows:
        rows, columns = 1, max(1, min(width // height, size.max_squares))
    elif not columns:
        rows, columns = max(1, min(height // width, size.max_squares)), 1
    return columns * size.factor, rows * size.factor


def _cut(picture: Image, tiling: Tiling) -> Tiles:
    """The tiles of one size, as transformers' Idefics3ImageProcessorPil makes them."""

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


def _in_grid(picture: Image, sizing: TileGrid) -> Tiles:
    """The tiles of one size, as transformers' GotOcr2ImageProcessorPil makes them."""
    width, height = sizing.width, sizing.height
    num_columns, num_rows = nearest_grid(*picture.size, sizing.min_tiles, sizing.max_tiles, width * height)
    whole = picture.resize((width, height), resample=sizing.resample)
    if num_columns * num_rows == 1:
        return Tiles([whole])
    stretched = picture.resize((num_columns * width, num_rows * height), resample=sizing.resample)
    return Tiles([*_pieces(stretched, width, height), whole], num_rows, num_columns)


def _padded(picture: Image, sizing: PaddedGrid) -> Tiles:
    """The tiles and the whole picture, as transformers' Llama4ImageProcessor makes them."""
    edge = sizing.width
    num_columns, num_rows = canvas_of(*picture.size, edge, sizing.max_tiles, fills=sizing.fills_canvas)
    canvas = num_columns * edge, num_rows * edge
    most = canvas
    if not sizing.fills_canvas:  # which would make a picture larger only up to one tile
        most = min(max(picture.width, edge), canvas[0]), min(max(picture.height, edge), canvas[1])
    wide, high = most[0] / picture.width, most[1] / picture.height
    if wide < high:
        size = most[0], min(math.floor(picture.height * wide), most[1])
    else:
        size = min(math.floor(picture.width * high), most[0]), most[1]
    whole = new("RGB", canvas)
    whole.paste(_resampled(picture, (max(size[0], 1), max(size[1], 1)), sizing.resample))
    if num_columns * num_rows == 1:
        return Tiles([whole])
    return Tiles(
        [*_pieces(whole, edge, edge), _resampled(picture, (edge, edge), sizing.resample)], num_rows, num_columns
    )


def canvas_of(width: int, height: int, edge: int, max_tiles: int, *, fills: bool) -> tuple[int, int]:
    """The columns and the rows of tiles on which a picture is shown with the least change of its size.

    It is made larger rather than smaller; of several such, the fewest tiles.
    """
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for number in range(max_tiles, 0, -1):
        for rows in range(1, number + 1):
            if number % rows == 0:
                by_ratio.setdefault(rows / (number // rows), []).append((number // rows, rows))
    grids = [grid for several in by_ratio.values() for grid in several]
    # Numbers are compared as float32 there, in which more of them are equal.
    edges = np.array(grids, np.float32) * np.float32(edge)
    scales = np.min(edges / np.array([width, height], np.float32), axis=1)
    growing = scales[scales >= 1]
    if len(growing):
        chosen = growing.max() if fills else growing.min()
    else:
        chosen = scales.max()
    return min((grid for grid, scale in zip(grids, scales, strict=True) if scale == chosen), key=math.prod)


def _with_thumbnail(picture: Image, sizing: ThumbnailGrid) -> Tiles:
    """The picture and its tiles, as transformers' Lfm2VlImageProcessor makes them."""
    factor, edge = sizing.factor, sizing.tile_size
    rounded = [max(round(side / factor) * factor, sizing.patch_size) for side in picture.size]
    is_large = math.prod(rounded) > sizing.max_tokens * factor**2 * sizing.tolerance
    width, height = (max(round(side / factor), 1) for side in picture.size)
    if width * height > sizing.max_tokens:
        shrink = math.sqrt(picture.width * picture.height / (sizing.max_tokens * factor**2))
        width, height = (max(math.floor(side / shrink / factor), 1) for side in picture.size)
    elif width * height < sizing.min_tokens:
        grow = math.sqrt(sizing.min_tokens * factor**2 / (picture.width * picture.height))
        width, height = (math.ceil(side * grow / factor) for side in picture.size)
    # One that is very long, and one that has grown where the limits are near to each other, would still be too large.
    height = min(height, sizing.max_tokens)
    width = min(width, sizing.max_tokens // height)
    whole = _resampled(picture, (width * factor, height * factor), sizing.resample)
    num_columns, num_rows = 1, 1
    if is_large and sizing.max_tiles > 1:
        num_columns, num_rows = nearest_grid(*picture.size, sizing.min_tiles, sizing.max_tiles, edge**2)
    if num_columns * num_rows == 1:
        return Tiles([whole])
    tiles = _pieces(_resampled(picture, (num_columns * edge, num_rows * edge), sizing.resample), edge, edge)
    return Tiles([*tiles, *([whole] if sizing.has_thumbnail else [])], num_rows, num_columns)


def _mapped(picture: Image, sizing: MappedGrid) -> Tiles:
    """The whole picture and its tiles, as transformers' LlavaNextImageProcessorPil makes them."""
    edge, side = sizing.edge, sizing.side
    num_rows, num_columns = best_grid(*picture.size, sizing)
    wide, high = num_columns * edge / picture.width, num_rows * edge / picture.height
    if wide < high:
        size = num_columns * edge, min(math.ceil(picture.height * wide), num_rows * edge)
    else:
        size = min(math.ceil(picture.width * high), num_columns * edge), num_rows * edge
    canvas = new("RGB", (num_columns * edge, num_rows * edge))
    corner = (canvas.width - size[0]) // 2, (canvas.height - size[1]) // 2
    canvas.paste(picture.resize(size, resample=sizing.resample), corner)
    pieces = _pieces(canvas, edge, edge)
    whole = picture.resize((edge, edge), resample=sizing.resample)
    tokens = _without_edges(*picture.size, num_columns * side, num_rows * side)
    return Tiles([whole, *pieces], *TileMap(tokens[1], tokens[0], num_rows, num_columns).grid)


def best_grid(width: int, height: int, sizing: MappedGrid) -> tuple[int, int]:
    """The rows and the columns of tiles on which most of a picture's pixels can be seen, of several the smallest."""
    best, most, least_wasted = sizing.grids[0], 0, math.inf
    for rows, columns in sizing.grids:
        scale = min(columns * sizing.edge / width, rows * sizing.edge / height)
        seen = min(int(width * scale) * int(height * scale), width * height)
        wasted = rows * columns * sizing.edge**2 - seen
        if seen > most or (seen == most and wasted < least_wasted):
            best, most, least_wasted = (rows, columns), seen, wasted
    return best


def _without_edges(width: int, height: int, columns: int, rows: int) -> tuple[int, int]:
    """The columns and the rows of a map that are no black edges, as transformers' LlavaNextModel counts them."""
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    return columns, rows


def _resampled(picture: Image, size: tuple[int, int], resample: int) -> Image:
    """In another size, as torchvision resizes, whose filters but the bilinear one are taken for Pillow's."""
    if resample != Resampling.BILINEAR:
        return picture.resize(size, resample=resample)
    return fromarray(bilinear(np.asarray(picture), *size))


def _pieces(whole: Image, width: int, height: int) -> list[Image]:
    """The tiles of a picture of whole ones, row by row."""
    corners = [(left, top) for top in range(0, whole.height, height) for left in range(0, whole.width, width)]
    return [whole.crop((left, top, left + width, top + height)) for left, top in corners]


def nearest_grid(width: int, height: int, min_tiles: int, max_tiles: int, tile_area: int) -> tuple[int, int]:
    """The columns and the rows whose ratio is nearest to that of the sides.

    Of several, the most tiles that the picture fills by half.
    """
    grids = [
        (columns, rows)
        for columns in range(1, max_tiles + 1)
        for rows in range(1, max_tiles // columns + 1)
        if columns * rows >= min_tiles
    ]
    best, least = (1, 1), math.inf
    for columns, rows in sorted(grids, key=math.prod):
        difference = abs(width / height - columns / rows)
        if difference < least or (difference == least and 2 * width * height > tile_area * columns * rows):
            best, least = (columns, rows), difference
    return best


def _with_crops(picture: Image, sizing: PanAndScan) -> Tiles:
    """The picture and its crops, as transformers' Gemma3ImageProcessorPil makes them."""

    def resized(part: Image) -> Image:
        return part.resize((sizing.width, sizing.height), resample=sizing.resample)

    longer, shorter = max(picture.size), min(picture.size)
    num_crops = max(2, min(longer // sizing.min_crop_size, math.floor(longer / shorter + 0.5)))
    length = math.ceil(longer / min(sizing.max_num_crops, num_crops))  # of a crop, along the longer side
    if longer / shorter < sizing.min_ratio or min(length, shorter) < sizing.min_crop_size:
        return Tiles([resized(picture)])
    is_wide = picture.width >= picture.height
    spans = [(start, min(start + length, longer)) for start in range(0, longer, length)]
    boxes = [(start, 0, end, shorter) if is_wide else (0, start, shorter, end) for start, end in spans]
    tiles = [resized(picture), *(resized(picture.crop(box)) for box in boxes)]
    return Tiles(tiles, *((1, len(boxes)) if is_wide else (len(boxes), 1)))


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
