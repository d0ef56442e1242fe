"""Reads how Gemma 3 takes pictures. Source: transformers' Gemma3Processor."""

from __future__ import annotations

from collections.abc import Callable

from engine.interface.types import PictureInput
from engine.weights.formats.model_folder import ModelFolder
from server.media.picture_format import PictureFormat, read_filter, read_processor
from server.media.tiling import Tiling

_BILINEAR = 2  # Pillow's number of the filter


def read_gemma3_pictures(
    folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]
) -> PictureFormat:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    resample = read_filter(read_processor(folder), _BILINEAR)
    begin, token, end = (
        folder.config.required_integer(name, least=0)
        for name in ("boi_token_index", "image_token_index", "eoi_token_index")
    )
    return PictureFormat(
        Tiling(pictures.height, pictures.width, resample), pictures.num_tokens, pictures.most,
        marker=token_text(begin), token=token_text(token), token_id=token,
        before=f"\n\n{token_text(begin)}", behind=f"{token_text(end)}\n\n",
    )  # fmt: skip
