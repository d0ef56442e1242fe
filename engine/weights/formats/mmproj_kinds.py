"""The kinds of encoders of pictures in GGUF files: for which text models they are, and what their fields say.

Source of names and fields: llama.cpp's tools/mtmd and its converter. What a file does not state, such as the size of
a window, is what the family's models were published with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gguf import ReaderTensor

from engine.interface.errors import ModelError
from engine.weights.formats.gguf_fields import GGUFFields
from engine.weights.formats.image_processor import colours_of

SECOND_FRAME = "v.patch_embd.weight.1"  # the matrix of a patch's second picture of a video
DEEP = "v.deepstack."
NEWLINE = "model.image_newline"  # what LLaVA-NeXT puts behind the rows of a picture

_MOST = 1 << 16  # of any size
_POSITIONS = "v.position_embd.weight"
_SCALE_FACTOR = "vision.projector.scale_factor"
_MERGE_SIZE = "vision.spatial_merge_size"
# Where the file says nothing; source: the models that were published.
_GEMMA3_SCALE, _GEMMA4_SCALE = 4, 3
_UNPADDED = "spatial_unpad"  # tiles that are put together, without the black edges of the picture
_QWEN_MERGE_SIZE = 2
_QWEN25_RATE = 2  # rotary positions a second of a video
_QWEN25_WINDOW = 112  # pixels on a side
_QWEN3_MIN_PIXELS = 1 << 16


@dataclass(frozen=True)
class Stated:
    """What a file states."""

    fields: GGUFFields
    tensors: Mapping[str, ReaderTensor]

    def size(self, key: str) -> int:
        """A size; raises ModelError where it is missing."""
        return self.fields.required_integer(key, least=1, most=_MOST)

    def optional_size(self, key: str) -> int | None:
        return self.fields.integer(key, most=_MOST)

    @property
    def epsilon(self) -> float:
        """Of the norms, which is stored as a float32, from which 1e-6 comes back as 9.99999997e-07."""
        return float(f"{self.fields.required_positive_number('vision.attention.layer_norm_epsilon'):.6g}")

    @property
    def num_layers(self) -> int:
        return self.size("vision.block_count")

    @property
    def num_features(self) -> int:
        """Of the text model."""
        return self.size("vision.projection_dim")

    @property
    def deep_layers(self) -> tuple[int, ...]:
        """The layers whose outputs the text model gets beside that of the last one, by the names of their tensors."""
        numbers = {name.removeprefix(DEEP).partition(".")[0] for name in self.tensors if name.startswith(DEEP)}
        if not all(number.isdecimal() and len(number) <= 5 for number in numbers):
            raise ModelError(f"the file has a tensor {DEEP}… without the number of a layer")
        return tuple(sorted(map(int, numbers)))

    def colours(self) -> dict[str, Any]:
        """Their mean and deviation, by the names that image processors give them; raises ModelError."""
        return colours_of(self.fields, "vision.")

    def shape(self, tensor: str, num_axes: int) -> tuple[int, ...]:
        """Row-major, of a tensor that must have so many axes; raises ModelError."""
        stored = self.tensors.get(tensor)
        if stored is None or len(stored.shape) != num_axes:
            raise ModelError(f"the file has no tensor {tensor!r} of {num_axes} axes")
        return tuple(reversed([int(each) for each in stored.shape]))

    def sizes(self) -> dict[str, Any]:
        """Those that most encoders have, by the names that transformers gives them."""
        return {
            "hidden_size": self.size("vision.embedding_length"),
            "intermediate_size": self.size("vision.feed_forward_length"),
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.size("vision.attention.head_count"),
            "patch_size": self.size("vision.patch_size"),
        }


Read = Callable[[Stated], dict[str, Any]]


def no_settings(file: Stated) -> dict[str, Any]:
    """Of a kind whose files say nothing of the image processor."""
    return {}


@dataclass(frozen=True)
class Projector:
    """A kind of encoder, by the end of which llama.cpp knows the family."""

    model_type: str  # of a folder, in config.json
    architectures: tuple[str, ...]  # of text models, in GGUF files
    # The tokens that config.json names by their ids; of several, the first that the vocabulary has.
    tokens: Mapping[str, tuple[str, ...]]
    read: Read  # what config.json has of the encoder; raises ModelError
    processor: Read = no_settings  # what preprocessor_config.json has, as far as the file or the family says it
    # Further tokens that stand in the text of a picture.
    marks: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # how the names of tensors begin that are not read
    num_features: Callable[[Stated], int] = lambda file: file.num_features  # of the text model; raises ModelError


def _of_siglip(file: Stated) -> dict[str, Any]:
    """What SigLIP's towers have in common."""
    fields = file.fields
    if fields.flag("use_silu"):
        raise fields.error("use_silu", "this kind of encoder has GELU")
    activation = "gelu_pytorch_tanh" if fields.flag("use_gelu") else "quick_gelu"
    return {**file.sizes(), "layer_norm_eps": file.epsilon, "hidden_act": activation}


def _read_gemma3(file: Stated) -> dict[str, Any]:
    image, patch = file.size("vision.image_size"), file.size("vision.patch_size")
    scale = file.optional_size(_SCALE_FACTOR) or _GEMMA3_SCALE
    if image // patch % scale or image < patch:
        raise file.fields.error(_SCALE_FACTOR, f"it must divide the {image // patch} patches of a picture's side")
    vision = {**_of_siglip(file), "image_size": image}
    return {"vision_config": vision, "mm_tokens_per_image": (image // patch // scale) ** 2}


def _read_idefics3(file: Stated) -> dict[str, Any]:
    vision = {**_of_siglip(file), "image_size": file.size("vision.image_size")}
    return {"vision_config": vision, "scale_factor": file.size(_SCALE_FACTOR)}


def _idefics3_processor(file: Stated) -> dict[str, Any]:
    edge = file.fields.integer("vision.preproc_image_size")
    return {} if edge is None else {"size": {"longest_edge": edge}}


def _read_lfm2(file: Stated) -> dict[str, Any]:
    num_places, _ = file.shape(_POSITIONS, 2)
    projected, _ = file.shape("mm.1.weight", 2)
    return {
        "vision_config": {**_of_siglip(file), "num_patches": num_places},
        "downsample_factor": file.size(_SCALE_FACTOR),
        "projector_hidden_size": projected,
        "projector_bias": "mm.1.bias" in file.tensors,
        "projector_use_layernorm": "mm.input_norm.weight" in file.tensors,
    }


def _activation(file: Stated) -> str:
    """GELU or SiLU, one of which the file must name."""
    flags = {name: file.fields.flag(f"use_{name}") is True for name in ("gelu", "silu")}
    if sum(flags.values()) != 1:
        raise file.fields.error("use_gelu", "this kind of encoder has either this or use_silu")
    return "gelu" if flags["gelu"] else "silu"


def _read_pixtral(file: Stated) -> dict[str, Any]:
    vision = {**file.sizes(), "image_size": file.size("vision.image_size"), "hidden_act": _activation(file)}
    return {
        "vision_config": vision,
        "spatial_merge_size": file.optional_size(_MERGE_SIZE) or 1,
        "multimodal_projector_bias": "mm.1.bias" in file.tensors,
    }


def _read_internvl(file: Stated) -> dict[str, Any]:
    vision = {
        **file.sizes(),
        "image_size": file.size("vision.image_size"),
        "layer_norm_eps": file.epsilon,
        "hidden_act": _activation(file),
        "norm_type": "layer_norm" if "v.blk.0.ln1.bias" in file.tensors else "rms_norm",
        "attention_bias": "v.blk.0.attn_q.bias" in file.tensors,
        "use_qk_norm": "v.blk.0.attn_q_norm.weight" in file.tensors,
    }
    return {"vision_config": vision, "downsample_ratio": 1 / file.size(_SCALE_FACTOR)}


def _internvl_processor(file: Stated) -> dict[str, Any]:
    return {f"{end}_patches": file.optional_size(f"vision.preproc_{end}_tiles") for end in ("min", "max")}


def _read_gemma4(file: Stated) -> dict[str, Any]:
    _, num_places, _ = file.shape(_POSITIONS, 3)
    (head_dim,) = file.shape("v.blk.0.attn_q_norm.weight", 1)
    vision = {
        **file.sizes(),
        "head_dim": head_dim,
        "pooling_kernel_size": file.optional_size(_SCALE_FACTOR) or _GEMMA4_SCALE,
        "position_embedding_size": num_places,
        "rms_norm_eps": file.epsilon,
        "use_clipped_linears": "v.blk.0.attn_q.input_min" in file.tensors,
        "standardize": "v.std_bias" in file.tensors,
    }
    return {"vision_config": vision}


def _read_llama4(file: Stated) -> dict[str, Any]:
    if file.fields.flag("use_silu"):
        raise file.fields.error("use_silu", "this kind of encoder has GELU")
    projected, _ = file.shape("mm.model.mlp.1.weight", 2)
    vision = {
        **file.sizes(),
        "image_size": file.size("vision.image_size"),
        "pixel_shuffle_ratio": 1 / file.size(_SCALE_FACTOR),
        "projector_input_dim": projected,
        "projector_output_dim": projected,
        "vision_output_dim": projected,
    }
    return {"vision_config": vision}


def _read_llava(file: Stated) -> dict[str, Any]:
    """Of files that state no layers of which features are read, the last one in the file is that."""
    fields, is_clip = file.fields, "v.class_embd" in file.tensors
    if fields.flag("use_silu"):
        raise fields.error("use_silu", "this kind of encoder has GELU")
    if fields.text("vision.mm_patch_merge_type") not in (None, _UNPADDED):
        raise fields.error("vision.mm_patch_merge_type", f'only "{_UNPADDED}" is served')
    sides = fields.value("vision.image_grid_pinpoints")
    if not isinstance(sides, list) or not sides or len(sides) % 2:
        raise fields.error("vision.image_grid_pinpoints", "it must be a list of heights and widths (of LLaVA 1.6)")
    of_clip = "gelu" if fields.flag("use_gelu") else "quick_gelu"
    vision = {
        **file.sizes(),
        "model_type": "clip_vision_model" if is_clip else "siglip_vision_model",
        "image_size": file.size("vision.image_size"),
        "layer_norm_eps": file.epsilon,
        "hidden_act": of_clip if is_clip else "gelu_pytorch_tanh",
    }
    stated = fields.value("vision.feature_layer")
    return {
        "vision_config": vision,
        "vision_feature_layer": file.num_layers if stated is None else stated,
        "vision_feature_select_strategy": "default" if is_clip else "full",
        "image_grid_pinpoints": [list(pair) for pair in zip(sides[::2], sides[1::2], strict=True)],
        "multimodal_projector_bias": "mm.0.bias" in file.tensors,
    }


def _of_qwen(file: Stated, other_activation: str) -> dict[str, Any]:
    """What both of Qwen's encoders have."""
    fields = file.fields
    if fields.flag(other_activation):
        raise fields.error(other_activation, "this kind of encoder has the other activation")
    sizes = file.sizes()
    return {
        "depth": sizes["num_hidden_layers"],
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "num_heads": sizes["num_attention_heads"],
        "patch_size": sizes["patch_size"],
        "spatial_merge_size": file.optional_size(_MERGE_SIZE) or _QWEN_MERGE_SIZE,
        "temporal_patch_size": 2 if SECOND_FRAME in file.tensors else 1,
        "out_hidden_size": file.num_features,
    }


def _read_qwen25(file: Stated) -> dict[str, Any]:
    vision, period = _of_qwen(file, "use_gelu"), file.size("vision.n_wa_pattern")  # the last of so many layers sees all
    vision["fullatt_block_indexes"] = list(range(period - 1, file.num_layers, period))
    vision["tokens_per_second"] = _QWEN25_RATE
    vision["window_size"] = file.optional_size("vision.window_size") or _QWEN25_WINDOW
    return {"vision_config": vision}


def _read_qwen3(file: Stated) -> dict[str, Any]:
    num_places, _ = file.shape(_POSITIONS, 2)
    deep = list(file.deep_layers)
    vision = {**_of_qwen(file, "use_silu"), "num_position_embeddings": num_places, "deepstack_visual_indexes": deep}
    return {"vision_config": vision}


def _qwen25_processor(file: Stated) -> dict[str, Any]:
    return {f"{end}_pixels": file.fields.integer(f"vision.image_{end}_pixels") for end in ("min", "max")}


def _qwen3_processor(file: Stated) -> dict[str, Any]:
    stated = _qwen25_processor(file)
    return {**stated, "min_pixels": stated["min_pixels"] or _QWEN3_MIN_PIXELS}


PROJECTORS: Mapping[str, Projector] = {
    "gemma3": Projector(
        "gemma3",
        ("gemma3",),
        {
            "boi_token_index": ("<start_of_image>",),
            "eoi_token_index": ("<end_of_image>",),
            # Most files leave out the last token of the vocabulary, whose embedding is never read.
            "image_token_index": ("<image_soft_token>", "<pad>"),
        },
        _read_gemma3,
    ),
    "gemma4v": Projector(
        "gemma4",
        ("gemma4",),
        {"boi_token_id": ("<|image>",), "eoi_token_id": ("<image|>",), "image_token_id": ("<|image|>",)},
        _read_gemma4,
    ),
    "idefics3": Projector(
        "idefics3",
        ("llama",),
        {"image_token_id": ("<image>",)},
        _read_idefics3,
        _idefics3_processor,
        ("<fake_token_around_image>", "<global-img>"),
    ),
    "internvl": Projector(
        "internvl",
        ("qwen2", "qwen3", "llama"),
        {"image_token_id": ("<IMG_CONTEXT>",)},
        _read_internvl,
        _internvl_processor,
        ("<img>", "</img>"),
    ),
    "lfm2": Projector(
        "lfm2_vl",
        ("lfm2",),
        {"image_token_id": ("<image>",)},
        _read_lfm2,
        marks=("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
    ),
    "llama4": Projector(
        "llama4",
        ("llama4",),
        {"image_token_index": ("<|patch|>",)},
        _read_llama4,
        marks=("<|image_start|>", "<|image_end|>", "<|image|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
    ),
    "mlp": Projector(
        "llava_next",
        ("granite", "llama", "qwen2"),
        {"image_token_index": ("<image>",)},
        _read_llava,
        num_features=lambda file: file.shape("mm.2.weight", 2)[0],
        unused=("v.head.", "v.post_ln."),  # behind the layers of which features are read
    ),
    "pixtral": Projector(
        "mistral3",
        ("mistral3", "llama"),
        {"image_token_index": ("[IMG]",)},
        _read_pixtral,
        marks=("[IMG_BREAK]", "[IMG_END]"),
        unused=("v.token_embd.img_break",),  # a row of the text model's embedding
    ),
    "qwen2.5vl_merger": Projector(
        "qwen2_5_vl",
        ("qwen2vl",),
        {"image_token_id": ("<|image_pad|>",), "video_token_id": ("<|video_pad|>", "<|image_pad|>")},
        _read_qwen25,
        _qwen25_processor,
    ),
    "qwen3vl_merger": Projector(
        "qwen3_vl",
        ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
        {"image_token_id": ("<|image_pad|>",), "video_token_id": ("<|video_pad|>", "<|image_pad|>")},
        _read_qwen3,
        _qwen3_processor,
    ),
}
