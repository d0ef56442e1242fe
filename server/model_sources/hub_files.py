"""Chooses the files of a Hub repository that make up a model."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from engine.weights.formats.gguf_shards import ShardName
from engine.weights.formats.mmproj_file import PREFERRED_TYPES, is_mmproj_name
from engine.weights.formats.model_folder import CONFIG, MODULES
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.hub_records import HubId
from server.model_sources.model_paths import GGUF_SUFFIX, gguf_models, listed

DEFAULT_QUANT = "Q4_K_M"  # of several GGUF files, where none is named
SAFETENSORS_SUFFIX = ".safetensors"
WHOLE = "model.safetensors"

# The other files of a folder in Hugging Face's layout that are read. config.json is the last, so that no other program
# takes an interrupted download for a whole model.
SMALL_FILES = (
    "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "tiktoken.model", "tekken.json",
    "chat_template.jinja", "chat_template.json",
    "additional_chat_templates/tool_use.jinja", "additional_chat_templates/rag.jinja",
    "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json",
    "sentence_bert_config.json", "config_sentence_transformers.json", MODULES,
    "model.safetensors.index.json", CONFIG,
)  # fmt: skip
# Those of a module of an encoder of sentences, such as 1_Pooling/config.json.
_MODULE_FILE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")


class WantedFiles(NamedTuple):
    """The files of a model, in the order in which they are downloaded."""

    files: tuple[str, ...]  # paths within the repository
    main: str | None  # the GGUF file that opens the model; None where the folder is the model


def choose(hub_id: HubId, files: Sequence[str]) -> WantedFiles:
    """The files of a model out of all paths of the repository; raises ModelStoreError where none or several fit."""
    models = gguf_models(files)
    if hub_id.file is not None:
        return _shards(hub_id, _named(hub_id, hub_id.file, models), files)
    weights = _safetensors(files)
    if weights and CONFIG in files:
        modules = sorted(filter(_MODULE_FILE.fullmatch, files)) if MODULES in files else []
        return WantedFiles((*weights, *modules, *(name for name in SMALL_FILES if name in files)), None)
    if not models:
        raise ModelStoreError(
            f"{hub_id.repository} has neither a GGUF file nor {CONFIG} with safetensors files; no other format is read"
        )
    if len(models) > 1:
        models = [name for name in models if _has_quant(name, DEFAULT_QUANT)] or models
    return _shards(hub_id, _only(hub_id, models), files)


def _safetensors(files: Sequence[str]) -> list[str]:
    """The weights of a folder. Besides shards, some repositories have a copy of all weights in another layout."""
    if WHOLE in files:
        return [WHOLE]
    found = [name for name in files if "/" not in name and name.endswith(SAFETENSORS_SUFFIX)]
    return sorted(name for name in found if not name.startswith("consolidated"))


def _named(hub_id: HubId, wanted: str, models: Sequence[str]) -> str:
    if wanted.endswith(GGUF_SUFFIX):
        fitting = [name for name in models if name in gguf_models([wanted])]
    else:
        fitting = [name for name in models if _has_quant(name, wanted)]
    if not fitting:
        found = f"it has {listed(list(models))}" if models else "it has no GGUF files"
        raise ModelStoreError(f"{hub_id.repository} has no GGUF model {wanted!r}; {found}")
    return _only(hub_id, fitting)


def _only(hub_id: HubId, models: Sequence[str]) -> str:
    if len(models) > 1:
        raise ModelStoreError(
            f"{hub_id} may mean {len(models)} GGUF models; name the file, as in "
            f"{hub_id.repository}:{models[0]}; there are {listed(list(models))}"
        )
    return models[0]


def _has_quant(name: str, quant: str) -> bool:
    """Whether the name has the quantization between `-`, `.` or `/`, in upper or lower case."""
    return re.search(rf"(?:^|[-./]){re.escape(quant)}(?:[-.]|$)", name, re.IGNORECASE) is not None


def _shards(hub_id: HubId, first: str, files: Sequence[str]) -> WantedFiles:
    path = PurePosixPath(first)
    shard = ShardName.parse(path.name)
    names = [first] if shard is None else [str(path.with_name(name)) for name in shard.file_names()]
    missing = [name for name in names if name not in files]
    if missing:
        raise ModelStoreError(f"{hub_id.repository} lacks {listed(missing)}, shards of {first}")
    return WantedFiles((*names, *_encoder(path, files)), first)


def _encoder(model: PurePosixPath, files: Sequence[str]) -> list[str]:
    """The file of the encoder of pictures in the folder of a GGUF model, if it has one."""
    found = [name for name in files if is_mmproj_name(name) and PurePosixPath(name).parent == model.parent]
    chosen = (name for kind in PREFERRED_TYPES for name in found if _has_quant(name, kind))
    return [next(chosen, found[0])] if found else []
