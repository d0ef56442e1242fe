"""How Gemma 3 takes pictures: whole, and with pan and scan also in crops. Source: transformers' Gemma3Processor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from engine.interface.types import PictureInput
from engine.weights.formats.model_folder import ModelFolder
from server.media.picture_format import (
    LOW,
    SWITCHES,
    PictureFormat,
    read_filter,
    read_processor,
    refuse_other_edges,
    switch_flag,
    switch_integer,
)
from server.media.tiling import PanAndScan, Sizing, Tiling
from server.protocol.errors import shorten

_BILINEAR = 2  # Pillow's number of the filter
_MOST_CROPS = 16
_MOST_EDGE = 1 << 16
_PAN_AND_SCAN = "do_pan_and_scan"
_MIN_CROP_SIZE = "pan_and_scan_min_crop_size"
_MAX_NUM_CROPS = "pan_and_scan_max_num_crops"
_MIN_RATIO = "pan_and_scan_min_ratio_to_activate"


@dataclass(frozen=True)
class Gemma3Pictures(PictureFormat):
    """The whole picture, and behind it its crops."""

    does_pan_and_scan: bool = False
    min_crop_size: int = 256
    max_num_crops: int = 4
    min_ratio: float = 1.2

    switch_names = (_PAN_AND_SCAN, _MIN_CROP_SIZE, _MAX_NUM_CROPS, _MIN_RATIO)

    def text(self, num_rows: int, num_columns: int) -> str:
        """As `PictureFormat.text`, of so many rows and columns of crops."""
        whole = super().text(0, 0)
        if not num_rows:
            return whole
        crops = " ".join([whole] * (num_rows * num_columns))
        return f"Here is the original image {whole} and here are some crops to help you see better {crops}"

    @property
    def max_tokens(self) -> int:
        """As `PictureFormat.max_tokens`."""
        return self.num_tokens * (1 + self.max_num_crops if self.does_pan_and_scan else 1)

    def sizing_of(self, detail: str) -> Sizing:
        """As `PictureFormat.sizing_of`; of a picture of low detail there are no crops."""
        size = self.sizing
        if detail == LOW or not self.does_pan_and_scan or not isinstance(size, Tiling):
            return size
        return PanAndScan(
            size.height, size.width, size.resample, self.min_crop_size, self.max_num_crops, self.min_ratio
        )

    def switched(self, switches: Mapping[str, Any]) -> Self:
        """As `PictureFormat.switched`."""
        ratio = switches.get(_MIN_RATIO, self.min_ratio)
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not (math.isfinite(ratio) and ratio >= 0):
            raise ValueError(f"{SWITCHES}.{_MIN_RATIO} is {shorten(ratio)}; it must be a number of at least 0")
        return replace(
            self,
            does_pan_and_scan=switch_flag(switches, _PAN_AND_SCAN, default=self.does_pan_and_scan),
            min_crop_size=switch_integer(
                switches, _MIN_CROP_SIZE, least=1, most=_MOST_EDGE, default=self.min_crop_size
            ),
            max_num_crops=switch_integer(
                switches, _MAX_NUM_CROPS, least=1, most=_MOST_CROPS, default=self.max_num_crops
            ),
            min_ratio=float(ratio),
        )


def read_gemma3_pictures(
    folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]
) -> Gemma3Pictures:
    """As `read_picture_format`; raises IndexError where the vocabulary lacks a token."""
    processor = read_processor(folder)
    refuse_other_edges(processor, pictures)
    begin, token, end = (
        folder.config.required_integer(name, least=0)
        for name in ("boi_token_index", "image_token_index", "eoi_token_index")
    )
    # Whatever the image processor says of pan and scan, transformers' Gemma3Processor has defaults of its own.
    return Gemma3Pictures(
        Tiling(pictures.height, pictures.width, read_filter(processor, _BILINEAR)), pictures.num_tokens, pictures.most,
        marker=token_text(begin), token=token_text(token), token_id=token,
        before=f"\n\n{token_text(begin)}", behind=f"{token_text(end)}\n\n",
    )  # fmt: skip
