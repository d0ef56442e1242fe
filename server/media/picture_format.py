"""How a model takes its pictures: their size, and what stands for them in a prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from engine.interface.errors import ModelError
from engine.interface.types import PictureInput
from engine.weights.formats.model_folder import JsonFile, ModelFolder

_BILINEAR = 2  # Pillow's number of the filter
_MOST_FILTER = 5
_HALF = 0.5  # the mean and the deviation of colours, with which the encoder expects them


class PictureFormat(NamedTuple):
    """The pictures of one model, all of which have one size."""

    height: int
    width: int
    resample: int  # Pillow's number of the filter that resizes them
    num_tokens: int  # positions that a picture fills
    most: int  # different ones in one prompt
    marker: str  # what chat templates write in the place of a picture
    before: str  # text before the positions of a picture
    token: str  # the name of the token at each of these positions
    token_id: int
    behind: str  # text behind them

    @property
    def text(self) -> str:
        """The text of one picture in a prompt."""
        return self.before + self.token * self.num_tokens + self.behind


def read_picture_format(path: Path, pictures: PictureInput, token_text: Callable[[int], str]) -> PictureFormat:
    """Reads what the files of a model say of its pictures; raises ModelError.

    Args:
        pictures: what the engine takes.
        token_text: the name of a token.
    """
    folder = ModelFolder(path)
    processor = folder.json("preprocessor_config.json")
    resample = _BILINEAR if processor is None else _read_processor(processor)
    begin, token, end = (
        folder.config.required_integer(name, least=0)
        for name in ("boi_token_index", "image_token_index", "eoi_token_index")
    )
    try:
        names = [token_text(each) for each in (begin, token, end)]
    except IndexError as error:
        raise ModelError(f"{path}: config.json names tokens of pictures that the vocabulary does not have") from error
    # As transformers' Gemma3Processor writes it.
    return PictureFormat(
        pictures.height, pictures.width, resample, pictures.num_tokens, pictures.most,
        marker=names[0], before=f"\n\n{names[0]}", token=names[1], token_id=token, behind=f"{names[2]}\n\n",
    )  # fmt: skip


def _read_processor(processor: JsonFile) -> int:
    for name in ("image_mean", "image_std"):
        if processor.value(name) not in (None, [_HALF] * 3):
            raise processor.error(name, f"of this architecture it must be {[_HALF] * 3}")
    resample = processor.integer("resample", least=0, most=_MOST_FILTER)
    return _BILINEAR if resample is None else resample
