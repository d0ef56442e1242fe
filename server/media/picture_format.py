"""How a model takes its pictures: their size, and what stands for them in a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.tiling import Tiling

_PROCESSOR_FILE = "preprocessor_config.json"
_PROCESSORS_FILE = "processor_config.json"  # in which transformers 5 writes the image processor
_MOST_FILTER = 5
_HALF = 0.5  # the mean and the deviation of colours, with which the encoders expect them


@dataclass(frozen=True)
class PictureFormat:
    """The pictures of one model, each of which becomes one tile."""

    tiling: Tiling
    num_tokens: int  # positions that a tile fills
    most: int  # different tiles in one prompt
    marker: str  # what chat templates write in the place of a picture
    token: str  # the name of the token at each position of a tile
    token_id: int
    before: str = ""  # text before the positions
    behind: str = ""

    def text(self, num_rows: int, num_columns: int) -> str:
        """The text of one picture in a prompt, with so many tiles beside that of the whole picture."""
        return self.before + self.positions + self.behind

    def tiling_of(self, detail: str) -> Tiling:
        """How a picture is cut for which a client wants this detail, of `low`, `high` and `auto`."""
        return self.tiling

    @property
    def positions(self) -> str:
        """The text of one tile."""
        return self.token * self.num_tokens


def read_processor(folder: ModelFolder) -> JsonFile:
    """The settings of a folder's image processor, empty where there is none; raises ModelError."""
    processor = folder.json(_PROCESSOR_FILE)
    if processor is None:
        processors = folder.json(_PROCESSORS_FILE)
        processor = None if processors is None else processors.table("image_processor")
    if processor is None:
        return JsonFile(folder.path / _PROCESSOR_FILE, {})
    for name in ("image_mean", "image_std"):
        if processor.value(name) not in (None, [_HALF] * 3):
            raise processor.error(name, f"of this architecture it must be {[_HALF] * 3}")
    return processor


def read_filter(processor: JsonFile, default: int) -> int:
    """Pillow's number of the filter that resizes pictures; raises ModelError."""
    resample = processor.integer("resample", least=0, most=_MOST_FILTER)
    return default if resample is None else resample
