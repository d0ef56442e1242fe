"""Resolves local paths to models: GGUF files and folders in Hugging Face's layout."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from engine.interface.regular_file import open_regular
from engine.weights.formats.gguf_shards import ShardName, shard_paths
from engine.weights.formats.lfs_pointer import WHAT_IT_IS, is_pointer
from engine.weights.formats.mmproj_file import is_mmproj_name
from engine.weights.formats.model_folder import CONFIG
from server.model_sources.cache_folder import ModelStoreError

GGUF_MAGIC = b"GGUF"
GGUF_SUFFIX = ".gguf"
_IMATRIX = "imatrix"  # how the names of files of a quantization begin, which are no models

_NUM_NAMES_SHOWN = 5


def is_path(value: str) -> bool:
    """Whether a text means a file or folder, even a missing one; `owner/name:FILE.gguf` means one of the Hub."""
    return (value.endswith(GGUF_SUFFIX) and ":" not in value) or value.startswith(("/", "./", "../", "~"))


def local_model(path: Path) -> Path:
    """The folder, or the GGUF file, of shards the first, that a path means.

    A folder that holds one GGUF model and nothing in Hugging Face's layout means that model. Raises ModelStoreError
    where there is none or several, or OSError.
    """
    if path.is_dir():
        return _model_in(path)
    if not path.exists():
        shard = ShardName.parse(path.name)
        if shard is not None and any((path.parent / name).exists() for name in shard.file_names()):
            raise ModelStoreError(f"{path} is missing, a shard of a model of which others are there")
        raise ModelStoreError(f"{path}: there is no such file or folder")
    if not path.is_file():
        raise ModelStoreError(f"{path} is no regular file")
    first = shard_paths(path)[0]
    if not first.exists():
        raise ModelStoreError(f"{path} is a shard of a model whose first shard, {first.name}, is missing")
    with open_regular(first) as file:
        magic = file.read(len(GGUF_MAGIC))
    if is_pointer(first):
        raise ModelStoreError(f"{first} {WHAT_IT_IS}")
    if magic != GGUF_MAGIC:
        raise ModelStoreError(f"{first} is no GGUF file: it begins with {_shown(magic)}, not {_shown(GGUF_MAGIC)}")
    return first


def gguf_models(file_names: Iterable[str]) -> list[str]:
    """The GGUF models among files, in the order of their names; shards by the name of the first, even a missing one."""
    models = set[str]()
    for name in file_names:
        *folder, last = name.split("/")
        if last.endswith(GGUF_SUFFIX) and not (is_mmproj_name(last) or last.lower().startswith(_IMATRIX)):
            shard = ShardName.parse(last)
            models.add("/".join([*folder, last if shard is None else shard.file_names()[0]]))
    return sorted(models)


def is_model_folder(file_names: Collection[str]) -> bool:
    """Whether a folder with these files is a model in Hugging Face's layout itself, rather than one of GGUF models."""
    has_safetensors = any(name.endswith(".safetensors") for name in file_names)
    return CONFIG in file_names and (has_safetensors or not gguf_models(file_names))


def models_in(folder: Path) -> list[Path]:
    """The GGUF models and the model folders in a folder, in the order of their names, without hidden ones."""
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    folders = (name for name in names if (folder / name / CONFIG).is_file())
    return sorted(folder / name for name in {*gguf_models(names), *folders})


def listed(names: list[str]) -> str:
    """The first few of many names, for a message."""
    more = len(names) - _NUM_NAMES_SHOWN
    return ", ".join(names[:_NUM_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _model_in(folder: Path) -> Path:
    names = os.listdir(folder)
    if is_model_folder(names):
        return folder
    models = gguf_models(names)
    if len(models) == 1:
        return local_model(folder / models[0])
    if models:
        raise ModelStoreError(f"{folder} holds {len(models)} GGUF models; name one: {listed(models)}")
    raise ModelStoreError(
        f"{folder} is a folder without {CONFIG} and without a GGUF file; "
        "give a folder in Hugging Face's layout, or the path of a GGUF file"
    )


def _shown(content: bytes) -> str:
    """Bytes for a message: as a text where they are one, or else in hexadecimal digits."""
    text = content.decode("ascii", "replace")
    return f'"{text}"' if text.isprintable() and text.isascii() else f"the bytes {content.hex(' ')}"
