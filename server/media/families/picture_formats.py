"""Finds how a model takes its pictures, by what its folder says that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.interface.errors import ModelError
from engine.interface.types import PictureInput
from engine.weights.formats.mmproj_file import MmprojFile
from engine.weights.formats.model_folder import ModelFolder
from server.media.families.gemma3_pictures import read_gemma3_pictures
from server.media.families.gemma4_pictures import read_gemma4_pictures
from server.media.families.idefics3_pictures import read_idefics3_pictures
from server.media.families.internvl_pictures import read_internvl_pictures
from server.media.families.lfm2_pictures import read_lfm2_pictures
from server.media.families.llama4_pictures import read_llama4_pictures
from server.media.families.llava_next_pictures import read_llava_next_pictures
from server.media.families.pixtral_pictures import read_pixtral_pictures
from server.media.families.qwen_pictures import read_qwen_pictures
from server.media.picture_format import PatchPictures, PictureFormat

_Read = Callable[[ModelFolder, PictureInput, Callable[[int], str]], PictureFormat]
# By the model_type in config.json; that of Gemma 3 holds where there is none.
_READERS: Mapping[str, _Read] = {
    "gemma4": read_gemma4_pictures,
    "idefics3": read_idefics3_pictures,
    "smolvlm": read_idefics3_pictures,
    "internvl": read_internvl_pictures,
    "lfm2_vl": read_lfm2_pictures,
    "llama4": read_llama4_pictures,
    "llava_next": read_llava_next_pictures,
    "mistral3": read_pixtral_pictures,
    "qwen2_5_vl": read_qwen_pictures,
    "qwen3_vl": read_qwen_pictures,
    "qwen3_vl_moe": read_qwen_pictures,
    "qwen3_5": read_qwen_pictures,
    "qwen3_5_moe": read_qwen_pictures,
}


def read_picture_format(path: Path, pictures: PictureInput, token_text: Callable[[int], str]) -> PictureFormat:
    """Reads what the files of a model say of its pictures; raises ModelError.

    Args:
        pictures: what the engine takes.
        token_text: the name of a token.
    """
    return picture_format_of(ModelFolder(path), pictures, token_text)


def read_mmproj_format(mmproj: Path, model: Path, pictures: PictureInput, vocabulary: Sequence[str]) -> PictureFormat:
    """The same of a GGUF model, whose encoder is in a file of its own."""
    folder = MmprojFile(mmproj).as_folder(vocabulary, model)
    return picture_format_of(folder, pictures, vocabulary.__getitem__)


def picture_format_of(folder: ModelFolder, pictures: PictureInput, token_text: Callable[[int], str]) -> PictureFormat:
    """As `read_picture_format`."""
    read = _READERS.get(folder.config.text("model_type") or "", read_gemma3_pictures)
    try:
        form = read(folder, pictures, token_text)
    except IndexError as error:
        raise ModelError(
            f"{folder.path}: config.json names tokens of pictures that the vocabulary does not have"
        ) from error
    if isinstance(form, PatchPictures) != (pictures.height == 0):
        raise folder.config.error("model_type", "the encoder of the model's architecture takes other pictures")
    return form
