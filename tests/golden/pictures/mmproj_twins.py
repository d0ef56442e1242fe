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
    "qwen2_5_vl": {250: "<|image_pad|>", 251: "<|video_pad|>"},
    "qwen3_vl": {250: "<|image_pad|>", 251: "<|video_pad|>"},
    "qwen3_vl_moe": {250: "<|image_pad|>", 251: "<|video_pad|>"},
    "qwen3_5": {250: "<|image_pad|>", 251: "<|video_pad|>"},
    "qwen3_5_moe": {250: "<|image_pad|>", 251: "<|video_pad|>"},
    "mistral3": {252: "[IMG]", 253: "[IMG_BREAK]", 254: "[IMG_END]"},
    "internvl": {252: "<IMG_CONTEXT>", 253: "<img>", 254: "</img>"},
    "lfm2_vl": {252: "<image>", 253: "<|image_start|>", 254: "<|image_end|>", 255: "<|img_thumbnail|>"},
    "gemma4": {250: "<|image|>", 253: "<|image>", 254: "<image|>"},
    "llava_next": {252: "<image>"},
    "llama4": {
        249: "<|tile_x_separator|>", 250: "<|tile_y_separator|>", 251: "<|image|>", 252: "<|patch|>",
        253: "<|image_start|>", 254: "<|image_end|>",
    },
}  # fmt: skip
KINDS = {
    "gemma3": "gemma3",
    "smolvlm": "idefics3",
    "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen3_vl": "qwen3vl_merger",
    "qwen3_vl_moe": "qwen3vl_merger",
    "qwen3_5": "qwen3vl_merger",
    "qwen3_5_moe": "qwen3vl_merger",
    "mistral3": "pixtral",
    "internvl": "internvl",
    "lfm2_vl": "lfm2",
    "gemma4": "gemma4v",
    "llama4": "llama4",
    "llava_next": "mlp",
}
IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
COLOURS = {
    "qwen2_5_vl": (CLIP_MEAN, CLIP_STD), "mistral3": (CLIP_MEAN, CLIP_STD), "internvl": (IMAGENET_MEAN, IMAGENET_STD),
    "gemma4": ([0.0] * 3, [1.0] * 3), "llava_next": (CLIP_MEAN, CLIP_STD),
}  # fmt: skip
PREFIXES = (
    "vision_tower.", "multi_modal_projector.", "model.vision_model.", "model.connector.", "model.visual.", "visual.",
    "model.vision_tower.", "model.multi_modal_projector.", "model.embed_vision.", "vision_model.",
)  # fmt: skip


def write_text(path: Path, name: str, golden: Mapping[str, Any]) -> Path:
    """The text model, with a vocabulary."""
    config = golden["config"]
    tensors = tiny_weights(config["architectures"][0], golden["shapes"], golden["seed"])

    def extra(writer: GGUFWriter) -> None:
        writer.add_token_list([TOKENS[name].get(index, f"t{index}") for index in range(256)])
        if name.startswith("qwen"):
            writer.add_rope_dimension_sections([*config["text_config"]["rope_parameters"]["mrope_section"], 0])
        if name.startswith("qwen3_vl"):
            writer.add_num_deepstack_layers(len(config["vision_config"]["deepstack_visual_indexes"]))

    if name == "llava_next":
        config = {**config, "architectures": ["GraniteForCausalLM"]}
        del tensors["image_newline"]
    return write_gguf(path, config, tensors, extra)


def write_mmproj(
    path: Path, name: str, golden: Mapping[str, Any], kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    *, renamed: tuple[str, str] = ("", ""), **changes: Any,
) -> Path:  # fmt: skip
    """The encoder.

    `changes` are fields by their keys behind `clip.` that are written otherwise; None: not at all. `renamed` is a part
    of the names of tensors, and what is written in its place.
    """
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
        tensor = tensor.replace(*renamed)
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
    mean, deviation = COLOURS.get(name, ([0.5] * 3, [0.5] * 3))
    image = vision.get("image_size", 560)
    patch = vision["patch_size"]
    fields = {
        "vision.projector_type" if name == "gemma4" else "projector_type": KINDS[name],
        "has_vision_encoder": True,
        "use_silu" if name == "qwen2_5_vl" else "use_gelu": True,
        "vision.projection_dim": config["text_config"]["hidden_size"],
        "vision.embedding_length": vision["hidden_size"],
        "vision.feed_forward_length": vision["intermediate_size"],
        "vision.block_count": vision.get("depth") or vision["num_hidden_layers"],
        "vision.attention.head_count": vision.get("num_heads") or vision["num_attention_heads"],
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.patch_size": patch[0] if isinstance(patch, list) else patch,
        "vision.image_size": image[0] if isinstance(image, list) else image,
        "vision.image_mean": mean,
        "vision.image_std": deviation,
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
        case "mistral3":
            fields["vision.spatial_merge_size"] = config["spatial_merge_size"]
        case "internvl":
            fields["vision.projector.scale_factor"] = int(1 / config["downsample_ratio"])
            fields |= {"vision.preproc_min_tiles": 1, "vision.preproc_max_tiles": 12}
        case "lfm2_vl":
            fields["vision.projector.scale_factor"] = config["downsample_factor"]
        case "llama4":
            fields["vision.projector.scale_factor"] = int(1 / vision["pixel_shuffle_ratio"])
        case "llava_next":  # of SigLIP, whose activation the converter does not name
            fields |= {"use_gelu": False, "has_llava_projector": True, "vision.projection_dim": 0}
            fields["vision.image_grid_pinpoints"] = [side for size in config["image_grid_pinpoints"] for side in size]
            fields["vision.mm_patch_merge_type"] = "spatial_unpad"
            fields["vision.feature_layer"] = _features_of(config)
            fields["vision.block_count"] = max(_features_of(config))
        case "gemma4":
            del fields["use_gelu"]
        case "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe":
            fields["vision.spatial_merge_size"] = vision["spatial_merge_size"]
            deep = vision.get("deepstack_visual_indexes", [])
            fields["vision.is_deepstack_layers"] = [layer in deep for layer in range(vision["depth"])]
    return fields


def _tensors(name: str, golden: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of the encoder by the names of a GGUF file, which the gguf package knows."""
    config = golden["config"]
    all_of_folder = tiny_weights(config["architectures"][0], golden["shapes"], golden["seed"])
    if name == "llava_next":
        return _of_llava_next(config, all_of_folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    vision, is_qwen = config["vision_config"], name.startswith("qwen")
    made: dict[str, np.ndarray] = {}
    for folder_name, values in all_of_folder.items():
        if not folder_name.startswith(PREFIXES) or ".head." in folder_name:
            continue
        key = folder_name.replace("model.visual.", "visual.").replace("_weight", ".weight")
        if name == "gemma3":
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
            layer = vision["deepstack_visual_indexes"][int(index)]
            made[f"v.deepstack.{layer}.{rest.replace('linear_', '')}"] = values
        elif "visual.merger." in key and is_qwen and name != "qwen2_5_vl":
            made[key.replace("visual.merger.norm", "v.post_ln")] = values
        elif name in CONVERTED:
            key, values = CONVERTED[name](key, values, vision)
            made[_named(names, key)] = values
        else:
            made[_named(names, key)] = values
    if name == "mistral3":
        made["v.token_embd.img_break"] = all_of_folder["language_model.model.embed_tokens.weight"][253]
    return {_of_merger(key): values for key, values in made.items()}


def _features_of(config: Mapping[str, Any]) -> list[int]:
    """How many layers are before each part of a patch's features."""
    depth = config["vision_config"]["num_hidden_layers"]
    return [layer if layer >= 0 else layer + 1 + depth for layer in config["vision_feature_layer"]]


def _of_llava_next(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By the converter of old, which exchanges the names of two products and leaves out the last layers."""
    pairs = {
        "vision_tower.": "v.", "vision_model.": "", "multi_modal_projector.linear_1": "mm.0",
        "multi_modal_projector.linear_2": "mm.2", "image_newline": "model.image_newline", "encoder.layers": "blk",
        "embeddings.": "", "embedding": "embd", "self_attn.": "attn_", "_proj": "", "layer_norm": "ln",
        "mlp.fc1": "ffn_down", "mlp.fc2": "ffn_up", "layernorm": "ln",
    }  # fmt: skip
    made, depth = {}, max(_features_of(config))
    for key, values in tensors.items():
        if "language_model" in key or ".head." in key or "post_layernorm" in key:
            continue
        for usual, own in pairs.items():
            key = key.replace(usual, own)
        if not (key.startswith("v.blk.") and int(key.split(".")[2]) >= depth):
            made[key] = values
    return made


def _of_pixtral(key: str, values: np.ndarray, vision: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    """Queries and keys for a rotation of adjacent features."""
    if "q_proj" in key or "k_proj" in key:
        values = values.reshape(vision["num_attention_heads"], 2, -1, values.shape[1]).swapaxes(1, 2)
        values = values.reshape(-1, values.shape[-1])
    return key, values


def _of_internvl(key: str, values: np.ndarray, vision: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    """The names of the checkpoints that were published first, for the projector, and a suffix for all but the token."""
    own = {"layer_norm": "mlp1.0", "linear_1": "mlp1.1", "linear_2": "mlp1.3"}
    rest = key.partition("multi_modal_projector.")[2]
    if rest:
        place, _, suffix = rest.partition(".")
        return f"{own[place]}.{suffix}", values
    key = f"model.{key}"
    return (f"{key}.weight" if "lambda_" in key or "position_embeddings" in key else key), values


def _of_lfm2(key: str, values: np.ndarray, vision: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    """The matrix of patches as that of a convolution."""
    key = key.removeprefix("model.").replace("vision_tower.", "vision_tower.vision_model.")
    return key, _as_convolution(values, vision["patch_size"]) if "patch_embedding.weight" in key else values


def _of_llama4(key: str, values: np.ndarray, vision: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    """A suffix for the positions, and the name of one product for the projector."""
    if "multi_modal_projector" in key:
        return "model.connector.modality_projection.proj.weight", values
    return (f"{key}.weight" if "positional_embedding" in key else key), values


def _of_gemma4(key: str, values: np.ndarray, vision: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    """The same, and bounds as vectors."""
    key = key.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
    if "position_embedding_table" in key:
        key += ".weight"
    if "input_proj.weight" in key:
        values = _as_convolution(values, vision["patch_size"])
    return key, values.reshape(-1) if values.ndim == 0 else values


def _as_convolution(values: np.ndarray, patch: int) -> np.ndarray:
    return values.reshape(len(values), patch, patch, 3).transpose(0, 3, 1, 2)


CONVERTED = {
    "mistral3": _of_pixtral,
    "internvl": _of_internvl,
    "lfm2_vl": _of_lfm2,
    "gemma4": _of_gemma4,
    "llama4": _of_llama4,
}


def _of_merger(key: str) -> str:
    return key.replace("visual.merger.linear_fc1", "mm.0").replace("visual.merger.linear_fc2", "mm.2")


def _named(names: Any, key: str) -> str:
    suffixes = (".weight", ".bias", ".input_min", ".input_max", ".output_min", ".output_max")
    found = names.get_name(key, try_suffixes=suffixes)
    if found is None:  # of Gemma 4, whose products the package knows by the names within their modules
        place, _, suffix = key.rpartition(".")
        found = names.get_name(f"{place}.linear.{suffix}", try_suffixes=suffixes)
    known = {"model.embed_vision.embedding_projection.weight": "mm.input_projection.weight"}
    known |= {f"model.vision_tower.std_{each}": f"v.std_{each}" for each in ("bias", "scale")}
    found = found or known.get(key)
    assert found is not None, key
    return str(found)
