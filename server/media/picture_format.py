"""How a model takes its pictures: their size, and what stands for them in a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.media.decoded_picture import DecodedPicture, PictureTile
from server.media.picture_decoder import DecodedTiles
from server.media.tiling import Sizing

_PROCESSOR_FILE = "preprocessor_config.json"
_PROCESSORS_FILE = "processor_config.json"  # in which transformers 5 writes the image processor
_MOST_FILTER = 5
HALVES = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class PictureFormat:
    """The pictures of one model, each of which becomes one tile."""

    sizing: Sizing
    num_tokens: int  # positions that a tile fills; of pictures of any size, multiples that their embeddings take
    most: int  # different tiles in one prompt, or such multiples of all
    marker: str  # what chat templates write in the place of a picture
    token: str  # the name of the token at each position of a tile
    token_id: int
    before: str = ""  # text before the positions
    behind: str = ""

    def text(self, num_rows: int, num_columns: int) -> str:
        """The text of one picture in a prompt, with so many tiles beside that of the whole picture."""
        return self.before + self.positions + self.behind

    @property
    def max_tokens(self) -> int:
        """Positions of the picture that fills the most."""
        return self.num_tokens

    @property
    def max_pictures(self) -> int:
        """Different pictures of one prompt, where each fills the most positions."""
        return self.most // -(-self.max_tokens // self.num_tokens)

    def sizing_of(self, detail: str) -> Sizing:
        """How a picture is resized for which a client wants this detail, of `low`, `high` and `auto`."""
        return self.sizing

    def decoded(self, tiles: DecodedTiles) -> DecodedPicture:
        """The picture as the model takes it."""
        made = [PictureTile(pixels, sha256(pixels.data).digest(), self.num_tokens) for pixels in tiles.pixels]
        return DecodedPicture(tuple(made), self.text(tiles.num_rows, tiles.num_columns))

    def num_blocks(self, tile: PictureTile) -> int:
        """What a tile counts of `most`."""
        return -(-tile.num_tokens // self.num_tokens)

    @property
    def positions(self) -> str:
        """The text of one tile."""
        return self.token * self.num_tokens


def read_processor(
    folder: ModelFolder, mean: Sequence[float] = HALVES, deviation: Sequence[float] = HALVES
) -> JsonFile:
    """The settings of a folder's image processor, empty where there is none; raises ModelError.

    `mean` and `deviation` are those of colours, with which the encoder expects them.
    """
    processor = folder.json(_PROCESSOR_FILE)
    if processor is None:
        processors = folder.json(_PROCESSORS_FILE)
        processor = None if processors is None else processors.table("image_processor")
    if processor is None:
        return JsonFile(folder.path / _PROCESSOR_FILE, {})
    for name, expected in (("image_mean", mean), ("image_std", deviation)):
        if processor.value(name) not in (None, list(expected)):
            raise processor.error(name, f"of this architecture it must be {list(expected)}")
    return processor


def read_filter(processor: JsonFile, default: int) -> int:
    """Pillow's number of the filter that resizes pictures; raises ModelError."""
    resample = processor.integer("resample", least=0, most=_MOST_FILTER)
    return default if resample is None else resample
