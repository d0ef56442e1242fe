"""How models take pictures whose encoders are GGUF files, against folders of the same models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.interface.types import PictureInput
from engine.weights.formats.model_folder import ModelFolder
from server.media.families.picture_formats import picture_format_of, read_mmproj_format
from tests.golden.pictures.mmproj_twins import TOKENS, write_mmproj

GOLDEN = Path(__file__).parents[2] / "golden" / "pictures"
ANY_SIZE = PictureInput(0, 0, 64, 8, 512)
FAMILIES = {
    "gemma4": ANY_SIZE,
    "internvl": PictureInput(16, 16, 4, 32, 4),
    "lfm2_vl": ANY_SIZE,
    "llama4": PictureInput(16, 16, 4, 32, 4),
    "llava_next": PictureInput(0, 0, 64, 8, 69, pixels_shape=(5, 12, 12, 3), is_tiled=True),
    "mistral3": ANY_SIZE,
    "qwen3_5": ANY_SIZE,
    "qwen3_vl_moe": ANY_SIZE,
}


def golden(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return values


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_pictures_as_of_a_folder(name: str, tmp_path: Path) -> None:
    values, pictures = golden(name), FAMILIES[name]
    vocabulary = [TOKENS[name].get(index, f"t{index}") for index in range(256)]
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", name, values)
    (tmp_path / "config.json").write_text(json.dumps(values["config"]), encoding="utf-8")
    if name.startswith("qwen3"):  # what the GGUF file does not say and published folders do
        (tmp_path / "preprocessor_config.json").write_text('{"min_pixels": 65536}', encoding="utf-8")
    of_folder = picture_format_of(ModelFolder(tmp_path), pictures, vocabulary.__getitem__)
    assert read_mmproj_format(mmproj, tmp_path / "text.gguf", pictures, vocabulary) == of_folder
    assert of_folder.token == vocabulary[of_folder.token_id]


def test_a_file_says_how_many_tiles_a_picture_has(tmp_path: Path) -> None:
    changes = {"vision.preproc_min_tiles": 2, "vision.preproc_max_tiles": 3}
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", "internvl", golden("internvl"), **changes)
    vocabulary = [TOKENS["internvl"].get(index, f"t{index}") for index in range(256)]
    form = read_mmproj_format(mmproj, tmp_path / "text.gguf", FAMILIES["internvl"], vocabulary)
    assert form.max_tokens == 4 * FAMILIES["internvl"].num_tokens
