"""Pictures by formula, the same wherever they are made."""

from __future__ import annotations

import numpy as np

from tests.golden.tiny_llama import noise

# Widths and heights at which the arithmetic of processors rounds in different ways.
ODD_SIZES = ((1, 1), (3, 7), (48, 48), (50, 49), (97, 33), (31, 96), (200, 1), (1, 130), (47, 101), (150, 149))


# Rows and columns of squares of pictures that keep their size, by their names.
GRIDS = {"a": (2, 3), "b": (5, 1), "c": (3, 4), "d": (1, 1), "e": (4, 5)}


# Of pictures that are maps of tiles, by their names: height and width, and rows and columns of tokens and of tiles.
MAPS = {
    "a": ((6, 30), (1, 9, 1, 3)),
    "b": ((40, 8), (6, 1, 2, 1)),
    "c": ((5, 24), (1, 6, 1, 2)),
    "d": ((1, 1), (3, 3, 1, 1)),
    "e": ((50, 50), (6, 6, 2, 2)),
}


# Rows and columns of squares of videos, and their frames.
VIDEOS = {"v": (2, 3, 6), "w": (3, 2, 3)}
FRAMES_A_SECOND = 3.0


def tiny_video(name: str, patch_size: int, merge_size: int) -> list[np.ndarray]:
    """For each moment uint8[patches, 2, patch_size, patch_size, 3]; the last frame of an odd number stands twice."""
    rows, columns, num_frames = VIDEOS[name]
    shape = rows * columns * merge_size**2, patch_size, patch_size, 3
    frames = [((noise(1000 * at + ord(name), shape) + 1) * 127.9).astype(np.uint8) for at in range(num_frames)]
    frames += frames[-1:] * (num_frames % 2)
    return [np.stack(pair, axis=1) for pair in zip(frames[::2], frames[1::2], strict=True)]


def tiny_patches(name: str, patch_size: int, merge_size: int) -> np.ndarray:
    """uint8[patches, patch_size, patch_size, 3], those of each square beside each other."""
    rows, columns = GRIDS[name]
    shape = rows * columns * merge_size**2, patch_size, patch_size, 3
    patches: np.ndarray = ((noise(ord(name), shape) + 1) * 127.9).astype(np.uint8)
    return patches


def tiny_tiles(name: str, size: int) -> np.ndarray:
    """uint8[tiles, size, size, 3] of a map, the whole picture first."""
    _, (_, _, tile_rows, tile_columns) = MAPS[name]
    shape = 1 + tile_rows * tile_columns, size, size, 3
    tiles: np.ndarray = ((noise(ord(name), shape) + 1) * 127.9).astype(np.uint8)
    return tiles


def tokens_of_map(name: str, side: int) -> int:
    """Positions of a map, whose tiles have so many on a side."""
    _, (rows, columns, _, _) = MAPS[name]
    return side**2 + rows * (columns + 1)


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
