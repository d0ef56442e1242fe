"""The tensors of encoders of pictures in folders, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import JsonFile

_OF_PICTURES = re.compile(
    r"(model\.)?((visual|vision_tower|vision_model|multi_modal_projector|connector|embed_vision)\..*|image_newline)"
)


def is_of_pictures(tensor_name: str) -> bool:
    """Whether a folder's tensor belongs to an encoder of pictures."""
    return _OF_PICTURES.fullmatch(tensor_name) is not None


def prefixes_of(config: JsonFile, tensor_names: Set[str], firsts: Sequence[str]) -> tuple[str, ...] | None:
    """What stands before each of these ends of names; None where a folder has no tensors of an encoder.

    Args:
        config: `config.json`, for messages.
        firsts: how the names end of the tensors by which an encoder and its projector are known.

    Raises:
        ModelError: the folder has tensors of an encoder, and lacks one of these.
    """
    found = [next((each.removesuffix(end) for each in tensor_names if each.endswith(end)), None) for end in firsts]
    prefixes = tuple(prefix for prefix in found if prefix is not None)
    if len(prefixes) == len(firsts):
        return prefixes
    others = sorted(filter(is_of_pictures, tensor_names))
    if not others:
        return None
    missing = next(end for prefix, end in zip(found, firsts, strict=True) if prefix is None)
    raise ModelError(
        f"{config.path.parent} has {len(others)} tensors of an encoder of pictures, such as {others[0]!r}, and lacks "
        f"the one whose name ends with {missing!r}; language_model_only serves the text model without them"
    )
