"""What folders of models that see say of themselves, without computing anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from engine.interface.errors import ModelError
from engine.models.architectures.seeing.internvl import InternVL, InternVLLlama, InternVLQwen3
from engine.models.architectures.seeing.lfm2_vl import Lfm2VL
from engine.models.architectures.seeing.llama4 import SeeingLlama4
from engine.models.architectures.seeing.mistral3 import Mistral3
from engine.models.encoders.picture_tensors import is_of_pictures
from engine.models.open_model import open_model
from engine.models.parts.model import Model
from engine.models.registry import ARCHITECTURES
from engine.weights.formats.model_folder import JsonFile
from tests.golden.architectures.tiny_weights import tiny_weights

GOLDENS = Path(__file__).parents[3] / "golden" / "pictures"
MODELS: dict[str, type[Model]] = {"mistral3": Mistral3, "internvl": InternVL, "lfm2_vl": Lfm2VL}


def golden(name: str) -> tuple[dict[str, Any], set[str]]:
    """The configuration of a tiny model, and the names of its tensors."""
    values = json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))
    return values["config"], set(values["shapes"])


def read(name: str, config: dict[str, Any], names: set[str]) -> Model:
    return {**MODELS, "llama4": SeeingLlama4}[name].from_folder(JsonFile(Path("config.json"), config), names)


def stored_names(model: Model) -> set[str]:
    """The names of the tensors that a model reads."""
    layers = range(model.config.num_layers)
    return {
        part.stored["safetensors"].name.format(layer=layer)
        for leaf in model.all_leaves()
        for part in leaf.parts
        for layer in (leaf.layers or layers)
    }


def newer(name: str) -> str:
    """The name of a tensor since transformers 4.52; published folders, and what it saves, have others."""
    text = name.removeprefix("language_model.")
    if text == name:
        return f"model.{name}"
    return text if text == "lm_head.weight" else text.replace("model.", "model.language_model.", 1)


@pytest.mark.parametrize("name", MODELS)
def test_names_of_either_layout(name: str) -> None:
    config, published = golden(name)
    others = {newer(each) for each in published}
    if name == "lfm2_vl":  # whose published folders have the tower within another module
        others = {each.replace(".vision_tower.", ".vision_tower.vision_model.") for each in published}
    assert published != others
    for names in (published, others):
        model = read(name, config, names)
        assert model.encoder is not None
        assert stored_names(model) == names
        blind = read(name, config, {each for each in names if not is_of_pictures(each)})
        assert blind.encoder is None
        assert stored_names(blind) < names
        assert all(blind.leaves_out(each) for each in names - stored_names(blind))


@pytest.mark.parametrize(
    "name",
    [*MODELS, "gemma3", "gemma4", "smolvlm", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"],
)
def test_a_tower_without_its_first_tensor_is_no_model_of_text(name: str) -> None:
    config, names = golden(name)
    architecture = next(each for each in ARCHITECTURES if [each.transformers_name] == config["architectures"])

    def made(names: set[str]) -> Model:
        return architecture.model.from_folder(JsonFile(Path("folder/config.json"), config), names)

    tower = {each for each in names if is_of_pictures(each)}
    assert tower
    whole = made(names)
    assert whole.encoder is not None
    refusals = []
    for missing in tower:
        try:
            left = made(names - {missing})
        except ModelError as error:
            refusals.append(str(error))
        else:  # it is named where the folder is opened
            assert left.encoder is not None
    assert refusals
    for refusal in refusals:
        assert refusal.startswith("folder has")
        assert "tensors of an encoder of pictures, such as" in refusal
        assert "and lacks the one whose name ends with" in refusal
    assert made(names - tower).encoder is None


def written(path: Path, left_out: Callable[[str], bool]) -> Path:
    """The folder of a tiny InternVL without some tensors."""
    values = json.loads((GOLDENS / "internvl.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps(values["config"]), encoding="utf-8")
    tensors = tiny_weights(values["config"]["architectures"][0], values["shapes"], values["seed"])
    save_file({each: array for each, array in tensors.items() if not left_out(each)}, path / "model.safetensors")
    return path


def test_folders_without_an_encoder_and_with_a_part_of_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"lacks the tensor 'vision_tower\.encoder\.layer\.1\.lambda_2'"):
        open_model(written(tmp_path, lambda name: name == "vision_tower.encoder.layer.1.lambda_2"))
    written(tmp_path, lambda name: name.startswith("vision_tower.embeddings."))
    with pytest.raises(ModelError, match=r"lacks the one whose name ends with 'embeddings\.cls_token'"):
        open_model(tmp_path)
    assert not open_model(tmp_path, language_model_only=True).lacks_encoder
    text = open_model(written(tmp_path, is_of_pictures))
    assert text.model.encoder is None
    assert text.lacks_encoder
    assert not open_model(written(tmp_path, lambda name: False)).lacks_encoder


def test_mistral_3_with_the_text_of_mistral() -> None:
    config, names = golden("mistral3")
    text = {**config["text_config"], "model_type": "mistral", "rope_parameters": None, "rope_theta": 1e6}
    model = read("mistral3", {**config, "text_config": {**text, "sliding_window": None}}, names)
    assert isinstance(model, Mistral3)
    assert model.config.query_growth == 0
    assert set(model.config.windows) == {0}


def test_internvl_with_other_texts_and_the_largest_encoder() -> None:
    config, names = golden("internvl")
    text = config["text_config"]
    assert isinstance(
        read("internvl", {**config, "text_config": {**text, "model_type": "qwen3"}}, names), InternVLQwen3
    )
    vision = {
        **config["vision_config"], "norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False,
        "use_mean_pooling": False,
    }  # fmt: skip
    changed = {**config, "text_config": {**text, "model_type": "llama"}, "vision_config": vision}
    model = read("internvl", changed, names)
    assert isinstance(model, InternVLLlama)
    assert {each.partition("layer.0.")[2] or each for each in stored_names(model) ^ names if "layer.1" not in each} >= {
        "attention.q_norm.weight", "attention.q_proj.bias", "layernorm_before.bias", "vision_tower.layernorm.weight",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("mistral3", {"vision_config": {"patch_size": 0}}, "patch_size"),
        ("mistral3", {"vision_config": {"patch_size": 1 << 31}}, "patch_size"),
        ("mistral3", {"vision_config": {"image_size": "a"}}, "image_size"),
        ("mistral3", {"vision_config": {"num_attention_heads": 3}}, "num_attention_heads"),
        ("mistral3", {"vision_config": {"head_dim": 8}}, "head_dim"),
        ("mistral3", {"vision_config": {"hidden_act": "tanh"}}, "hidden_act"),
        ("mistral3", {"vision_config": {"model_type": "siglip"}}, "model_type"),
        ("mistral3", {"vision_config": {"rope_parameters": {"rope_type": "yarn"}}}, "rope_type"),
        ("mistral3", {"spatial_merge_size": 0}, "spatial_merge_size"),
        ("mistral3", {"vision_feature_layer": -2}, "vision_feature_layer"),
        ("mistral3", {"vision_feature_layer": [-1, -2]}, "vision_feature_layer"),
        ("internvl", {"vision_config": {"patch_size": 0}}, "patch_size"),
        ("internvl", {"vision_config": {"patch_size": [4, 8]}}, "patch_size"),
        ("internvl", {"vision_config": {"image_size": [1 << 31, 1 << 31]}}, "image_size"),
        ("internvl", {"vision_config": {"image_size": 18}}, "image_size"),
        ("internvl", {"vision_config": {"num_attention_heads": 3}}, "num_attention_heads"),
        ("internvl", {"vision_config": {"norm_type": "batch"}}, "norm_type"),
        ("internvl", {"downsample_ratio": 0.3}, "downsample_ratio"),
        ("internvl", {"downsample_ratio": 1e-300}, "downsample_ratio"),
        ("internvl", {"downsample_ratio": 1 / 3}, "downsample_ratio"),
        ("internvl", {"vision_feature_layer": -2}, "vision_feature_layer"),
        ("internvl", {"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy"),
        ("internvl", {"text_config": {"model_type": "gpt2"}}, "model_type"),
        ("lfm2_vl", {"vision_config": {"patch_size": 0}}, "patch_size"),
        ("lfm2_vl", {"vision_config": {"num_patches": 35}}, "num_patches"),
        ("lfm2_vl", {"vision_config": {"num_patches": 1 << 31}}, "num_patches"),
        ("lfm2_vl", {"vision_config": {"num_attention_heads": 3}}, "num_attention_heads"),
        ("lfm2_vl", {"vision_config": {"model_type": "siglip_vision_model"}}, "model_type"),
        ("lfm2_vl", {"downsample_factor": 0}, "downsample_factor"),
        ("lfm2_vl", {"projector_hidden_act": "tanh"}, "projector_hidden_act"),
        ("lfm2_vl", {"text_config": {"model_type": "llama"}}, "model_type"),
        ("llama4", {"vision_config": {"pixel_shuffle_ratio": 1e-320}}, "pixel_shuffle_ratio"),
        ("llama4", {"vision_config": {"pixel_shuffle_ratio": 0.3}}, "pixel_shuffle_ratio"),
        ("llama4", {"vision_config": {"pixel_shuffle_ratio": 2}}, "pixel_shuffle_ratio"),
        ("llama4", {"vision_config": {"num_attention_heads": 3}}, "num_attention_heads"),
        ("llama4", {"vision_config": {"intermediate_size": 1}}, "intermediate_size"),
        ("llama4", {"vision_config": {"image_size": 3}}, "image_size"),
        ("llama4", {"vision_config": {"hidden_act": "tanh"}}, "hidden_act"),
    ],
)
def test_wrong_fields_are_refused_by_name(name: str, changes: dict[str, Any], words: str) -> None:
    config, names = golden(name)
    tables = {key: {**config[key], **value} for key, value in changes.items() if isinstance(value, dict)}
    with pytest.raises(ModelError, match=words):
        read(name, {**config, **changes, **tables}, names)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma4", "mistral3", "llama4"])
def test_the_base_of_the_rotation_of_patches_is_what_the_folder_says(name: str) -> None:
    config, names = golden(name)
    model = next(each.model for each in ARCHITECTURES if [each.transformers_name] == config["architectures"])

    def theta(rotation: dict[str, Any]) -> float:
        vision = {key: value for key, value in config["vision_config"].items() if not key.startswith("rope_")}
        changed = JsonFile(Path("config.json"), {**config, "vision_config": {**vision, **rotation}})
        encoder: Any = model.from_folder(changed, names).encoder
        return float(encoder.theta)

    usual = 100.0 if name == "gemma4" else 10_000.0
    assert theta({}) == usual
    assert theta({"rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}}) == 500.0
    assert theta({"rope_theta": 700.0}) == 700.0
    with pytest.raises(ModelError, match="rope_type"):
        theta({"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0}})


def test_layers_of_deep_stack_are_named_in_their_order() -> None:
    config, names = golden("qwen3_vl")
    model = next(each.model for each in ARCHITECTURES if [each.transformers_name] == config["architectures"])
    for layers in ([1, 0], [1, 1]):
        vision = config["vision_config"] | {"deepstack_visual_indexes": layers}
        with pytest.raises(ModelError, match="deepstack_visual_indexes"):
            model.from_folder(JsonFile(Path("config.json"), config | {"vision_config": vision}), names)


@pytest.mark.parametrize("name", MODELS)
def test_another_type_is_refused(name: str) -> None:
    """By the type the server would find another way to take pictures, which the encoder cannot read."""
    config, names = golden(name)
    with pytest.raises(ModelError, match=f'model_type is "qwen3_vl"; of this architecture it must be "{name}"'):
        read(name, config | {"model_type": "qwen3_vl"}, names)


def test_tiles_of_very_many_patches_are_refused() -> None:
    config, names = golden("internvl")
    vision = config["vision_config"] | {"image_size": 4096, "use_absolute_position_embeddings": False}
    with pytest.raises(ModelError, match="image_size is 4096; tiles of at most 65536 patches are served"):
        read("internvl", config | {"vision_config": vision}, names)
