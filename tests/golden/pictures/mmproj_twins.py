"""Tiny models that see, written as the converter of the ggml project writes them: a text model, and its encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from tests.engine.models.twins.gguf_twins import write_gguf
from tests.golden.architectures.tiny_weights import tiny_weights

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
TOKENS = {
    "gemma3": {250: "<start_of_image>", 251: "<end_of_image>", 252: "<image_soft_token>"},
    "smolvlm": {252: "<image>", 253: "<fake_token_around_image>", 254: "<global-img>"},
    "qwen2_5_vl": {250: "<|image_pad|>"},
    "qwen3_vl": {250: "<|image_pad|>"},
}
KINDS = {
    "gemma3": "gemma3",
    "smolvlm": "idefics3",
    "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen3_vl": "qwen3vl_merger",
}
PREFIXES = (
    "vision_tower.", "multi_modal_projector.", "model.vision_model.", "model.connector.", "model.visual.", "visual.",
)  # fmt: skip


def write_text(path: Path, name: str, golden: Mapping[str, Any]) -> Path:
    """The text model, with a vocabulary."""
    config = golden["config"]
    tensors = tiny_weights(config["architectures"][0], golden["shapes"], golden["seed"])

    def extra(writer: GGUFWriter) -> None:
        writer.add_token_list([TOKENS[name].get(index, f"t{index}") for index in range(256)])
        if name.startswith("qwen"):
            writer.add_rope_dimension_sections([*config["text_config"]["rope_parameters"]["mrope_section"], 0])
        if name == "qwen3_vl":
            writer.add_num_deepstack_layers(len(config["vision_config"]["deepstack_visual_indexes"]))

    return write_gguf(path, config, tensors, extra)


def write_mmproj(
    path: Path, name: str, golden: Mapping[str, Any], kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    **changes: Any,
) -> Path:  # fmt: skip
    """The encoder. `changes` are fields by their keys behind `clip.` that are written otherwise; None: not at all."""
    config = golden["config"]
    fields = {**_fields(name, config), **changes}
    writer = GGUFWriter(path, "clip")
    for key, value in fields.items():
        match value:
            case bool():
                writer.add_bool(f"clip.{key}", value)
            case int():
                writer.add_uint32(f"clip.{key}", value)
            case float():
                writer.add_float32(f"clip.{key}", value)
            case str():
                writer.add_string(f"clip.{key}", value)
            case list():
                writer.add_array(f"clip.{key}", value)
    for tensor, values in _tensors(name, golden).items():
        if kind is GGMLQuantizationType.Q8_0 and (values.ndim != 2 or values.shape[1] % 32):
            writer.add_tensor(tensor, values)
        elif kind is GGMLQuantizationType.F32 or values.ndim == 1:
            writer.add_tensor(tensor, np.ascontiguousarray(values))
        else:
            writer.add_tensor(tensor, quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _fields(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    vision = config["vision_config"]
    clip = name == "qwen2_5_vl"
    fields = {
        "projector_type": KINDS[name],
        "has_vision_encoder": True,
        "use_silu" if clip else "use_gelu": True,
        "vision.projection_dim": config["text_config"]["hidden_size"],
        "vision.embedding_length": vision["hidden_size"],
        "vision.feed_forward_length": vision["intermediate_size"],
        "vision.block_count": vision.get("depth") or vision["num_hidden_layers"],
        "vision.attention.head_count": vision.get("num_heads") or vision["num_attention_heads"],
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.patch_size": vision["patch_size"],
        "vision.image_size": vision.get("image_size", 560),
        "vision.image_mean": CLIP_MEAN if clip else [0.5] * 3,
        "vision.image_std": CLIP_STD if clip else [0.5] * 3,
    }
    match name:
        case "gemma3":
            side = vision["image_size"] // vision["patch_size"]
            fields["vision.projector.scale_factor"] = side // int(config["mm_tokens_per_image"] ** 0.5)
        case "smolvlm":
            fields["vision.projector.scale_factor"] = config["scale_factor"]
            fields["vision.preproc_image_size"] = 3 * vision["image_size"]
        case "qwen2_5_vl":
            fields["vision.n_wa_pattern"] = vision["fullatt_block_indexes"][0] + 1
            fields["vision.window_size"] = vision["window_size"]  # converters leave out that of published models
        case "qwen3_vl":
            fields["vision.spatial_merge_size"] = vision["spatial_merge_size"]
            deep = vision["deepstack_visual_indexes"]
            fields["vision.is_deepstack_layers"] = [layer in deep for layer in range(vision["depth"])]
    return fields


def _tensors(name: str, golden: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of the encoder by the names of a GGUF file, which the gguf package knows."""
    config = golden["config"]
    all_of_folder = tiny_weights(config["architectures"][0], golden["shapes"], golden["seed"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    made: dict[str, np.ndarray] = {}
    for folder_name, values in all_of_folder.items():
        if not folder_name.startswith(PREFIXES) or ".head." in folder_name:
            continue
        key = folder_name.replace("model.visual.", "visual.").replace("_weight", ".weight")
        key = key.replace("vision_tower.", "vision_tower.vision_model.")
        if "soft_emb_norm" in key:
            values = values + np.float32(1)
        if "patch_embed.proj.weight" in key:
            made["v.patch_embd.weight"], made["v.patch_embd.weight.1"] = values[:, :, 0], values[:, :, 1]
        elif "patch_embed.proj.bias" in key:
            made["v.patch_embd.bias"] = values
        elif ".qkv." in key and name == "qwen2_5_vl":
            for kind, part in zip("qkv", np.split(values, 3), strict=True):
                made[_named(names, key.replace("qkv", kind))] = part
        elif "deepstack_merger_list" in key:
            index, _, rest = key.split("deepstack_merger_list.")[1].partition(".")
            layer = config["vision_config"]["deepstack_visual_indexes"][int(index)]
            made[f"v.deepstack.{layer}.{rest.replace('linear_', '')}"] = values
        elif "visual.merger." in key and name == "qwen3_vl":
            made[key.replace("visual.merger.norm", "v.post_ln")] = values
        else:
            made[_named(names, key)] = values
    return {_of_merger(key): values for key, values in made.items()}


def _of_merger(key: str) -> str:
    return key.replace("visual.merger.linear_fc1", "mm.0").replace("visual.merger.linear_fc2", "mm.2")


def _named(names: Any, key: str) -> str:
    found = names.get_name(key, try_suffixes=(".weight", ".bias"))
    assert found is not None, key
    return str(found)
