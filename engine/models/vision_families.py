"""The families of encoders in GGUF files: who reads them, and how a folder's tensors are called and stored there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from engine.backends.base.model_config import ModelConfig
from engine.models.architectures.gemma4.config import Gemma4Config
from engine.models.architectures.seeing.idefics3 import Idefics3
from engine.models.architectures.seeing.internvl import InternVLLlama, InternVLQwen2, InternVLQwen3
from engine.models.architectures.seeing.lfm2_vl import Lfm2VL
from engine.models.architectures.seeing.llava_next import LlavaNextGranite, LlavaNextLlama, LlavaNextQwen2
from engine.models.architectures.seeing.mistral3 import Mistral3, Mistral3Llama
from engine.models.encoders.gemma3_vision import Gemma3Vision
from engine.models.encoders.gemma4_vision import Gemma4Vision
from engine.models.encoders.idefics3_vision import Idefics3Vision
from engine.models.encoders.internvl_vision import InternVLVision
from engine.models.encoders.lfm2_vision import Lfm2Vision
from engine.models.encoders.llama4_vision import Llama4Vision
from engine.models.encoders.llava_next_vision import LlavaNextVision
from engine.models.encoders.pixtral_vision import PixtralVision
from engine.models.encoders.qwen.qwen2_5_vision import Qwen25Vision
from engine.models.encoders.qwen.qwen3_vision import Qwen3Vision
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.model import Model
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.mmproj_kinds import NEWLINE
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part
from engine.weights.tensors import Transform, paired_rows, patch_rows, reshaped

QKV = "attn_qkv"

# The names of tensors of a folder, behind their prefix and without `.weight`, and those of a GGUF file.
_SIGLIP = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "encoder.layers.{layer}.layer_norm1": "v.blk.{layer}.ln1",
    "encoder.layers.{layer}.layer_norm2": "v.blk.{layer}.ln2",
    "encoder.layers.{layer}.self_attn.q_proj": "v.blk.{layer}.attn_q",
    "encoder.layers.{layer}.self_attn.k_proj": "v.blk.{layer}.attn_k",
    "encoder.layers.{layer}.self_attn.v_proj": "v.blk.{layer}.attn_v",
    "encoder.layers.{layer}.self_attn.out_proj": "v.blk.{layer}.attn_out",
    "encoder.layers.{layer}.mlp.fc1": "v.blk.{layer}.ffn_up",
    "encoder.layers.{layer}.mlp.fc2": "v.blk.{layer}.ffn_down",
    "post_layernorm": "v.post_ln",
}
_QWEN = {
    "patch_embed.proj": "v.patch_embd",
    "pos_embed": "v.position_embd",
    "blocks.{layer}.norm1": "v.blk.{layer}.ln1",
    "blocks.{layer}.norm2": "v.blk.{layer}.ln2",
    "blocks.{layer}.attn.qkv": f"v.blk.{{layer}}.{QKV}",
    "blocks.{layer}.attn.proj": "v.blk.{layer}.attn_out",
    "blocks.{layer}.mlp.gate_proj": "v.blk.{layer}.ffn_gate",
    "blocks.{layer}.mlp.up_proj": "v.blk.{layer}.ffn_up",
    "blocks.{layer}.mlp.down_proj": "v.blk.{layer}.ffn_down",
    "blocks.{layer}.mlp.linear_fc1": "v.blk.{layer}.ffn_up",
    "blocks.{layer}.mlp.linear_fc2": "v.blk.{layer}.ffn_down",
    "merger.ln_q": "v.post_ln",
    "merger.norm": "v.post_ln",
    "merger.mlp.0": "mm.0",
    "merger.mlp.2": "mm.2",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
    "deepstack_merger_list.{layer}.norm": "v.deepstack.{layer}.norm",
    "deepstack_merger_list.{layer}.linear_fc1": "v.deepstack.{layer}.fc1",
    "deepstack_merger_list.{layer}.linear_fc2": "v.deepstack.{layer}.fc2",
}
_PIXTRAL = {
    "patch_conv": "v.patch_embd",
    "ln_pre": "v.pre_ln",
    "transformer.layers.{layer}.attention_norm": "v.blk.{layer}.ln1",
    "transformer.layers.{layer}.ffn_norm": "v.blk.{layer}.ln2",
    "transformer.layers.{layer}.attention.q_proj": "v.blk.{layer}.attn_q",
    "transformer.layers.{layer}.attention.k_proj": "v.blk.{layer}.attn_k",
    "transformer.layers.{layer}.attention.v_proj": "v.blk.{layer}.attn_v",
    "transformer.layers.{layer}.attention.o_proj": "v.blk.{layer}.attn_out",
    "transformer.layers.{layer}.feed_forward.gate_proj": "v.blk.{layer}.ffn_gate",
    "transformer.layers.{layer}.feed_forward.up_proj": "v.blk.{layer}.ffn_up",
    "transformer.layers.{layer}.feed_forward.down_proj": "v.blk.{layer}.ffn_down",
    "multi_modal_projector.norm": "mm.input_norm",
    "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
    "multi_modal_projector.linear_1": "mm.1",
    "multi_modal_projector.linear_2": "mm.2",
}
_INTERNVL = {
    "embeddings.cls_token": "v.class_embd",
    "embeddings.patch_embeddings.projection": "v.patch_embd",
    "embeddings.position_embeddings": "v.position_embd.weight",
    "encoder.layer.{layer}.layernorm_before": "v.blk.{layer}.ln1",
    "encoder.layer.{layer}.layernorm_after": "v.blk.{layer}.ln2",
    "encoder.layer.{layer}.attention.q_proj": "v.blk.{layer}.attn_q",
    "encoder.layer.{layer}.attention.k_proj": "v.blk.{layer}.attn_k",
    "encoder.layer.{layer}.attention.v_proj": "v.blk.{layer}.attn_v",
    "encoder.layer.{layer}.attention.q_norm": "v.blk.{layer}.attn_q_norm",
    "encoder.layer.{layer}.attention.k_norm": "v.blk.{layer}.attn_k_norm",
    "encoder.layer.{layer}.attention.projection_layer": "v.blk.{layer}.attn_out",
    "encoder.layer.{layer}.mlp.fc1": "v.blk.{layer}.ffn_up",
    "encoder.layer.{layer}.mlp.fc2": "v.blk.{layer}.ffn_down",
    "encoder.layer.{layer}.lambda_1": "v.blk.{layer}.ls1.weight",
    "encoder.layer.{layer}.lambda_2": "v.blk.{layer}.ls2.weight",
    "multi_modal_projector.layer_norm": "mm.model.mlp.0",
    "multi_modal_projector.linear_1": "mm.model.mlp.1",
    "multi_modal_projector.linear_2": "mm.model.mlp.3",
}
_LLAVA = {
    **_SIGLIP,
    "embeddings.class_embedding": "v.class_embd",
    "pre_layrnorm": "v.pre_ln",
    "multi_modal_projector.linear_1": "mm.0",
    "multi_modal_projector.linear_2": "mm.2",
    "image_newline": NEWLINE,
}
_LFM2 = {
    **_SIGLIP,
    "multi_modal_projector.layer_norm": "mm.input_norm",
    "multi_modal_projector.linear_1": "mm.1",
    "multi_modal_projector.linear_2": "mm.2",
}
_LLAMA4 = {
    "patch_embedding.linear": "v.patch_embd",
    "class_embedding": "v.class_embd",
    "positional_embedding_vlm": "v.position_embd.weight",
    "layernorm_pre": "v.pre_ln",
    "layernorm_post": "v.post_ln",
    "model.layers.{layer}.input_layernorm": "v.blk.{layer}.ln1",
    "model.layers.{layer}.post_attention_layernorm": "v.blk.{layer}.ln2",
    "model.layers.{layer}.self_attn.q_proj": "v.blk.{layer}.attn_q",
    "model.layers.{layer}.self_attn.k_proj": "v.blk.{layer}.attn_k",
    "model.layers.{layer}.self_attn.v_proj": "v.blk.{layer}.attn_v",
    "model.layers.{layer}.self_attn.o_proj": "v.blk.{layer}.attn_out",
    "model.layers.{layer}.mlp.fc1": "v.blk.{layer}.ffn_up",
    "model.layers.{layer}.mlp.fc2": "v.blk.{layer}.ffn_down",
    "vision_adapter.mlp.fc1": "mm.model.mlp.1",
    "vision_adapter.mlp.fc2": "mm.model.mlp.2",
    "multi_modal_projector.linear_1": "mm.model.fc",
}
_GEMMA4_PRODUCTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA4 = {
    "patch_embedder.input_proj": "v.patch_embd",
    "patch_embedder.position_embedding_table": "v.position_embd.weight",
    # The product's bounds stand beside it.
    **{f"encoder.layers.{{layer}}.{name}": f"v.blk.{{layer}}.{own}" for name, own in _GEMMA4_PRODUCTS.items()},
    **{f"encoder.layers.{{layer}}.{name}.linear": f"v.blk.{{layer}}.{own}" for name, own in _GEMMA4_PRODUCTS.items()},
    "encoder.layers.{layer}.self_attn.q_norm": "v.blk.{layer}.attn_q_norm",
    "encoder.layers.{layer}.self_attn.k_norm": "v.blk.{layer}.attn_k_norm",
    "encoder.layers.{layer}.input_layernorm": "v.blk.{layer}.ln1",
    "encoder.layers.{layer}.post_attention_layernorm": "v.blk.{layer}.attn_post_norm",
    "encoder.layers.{layer}.pre_feedforward_layernorm": "v.blk.{layer}.ln2",
    "encoder.layers.{layer}.post_feedforward_layernorm": "v.blk.{layer}.ffn_post_norm",
    "std_bias": "v.std_bias",
    "std_scale": "v.std_scale",
    "embed_vision.embedding_projection": "mm.input_projection",
}
_PROJECTOR = "multi_modal_projector.linear_1.weight"

Read = Callable[[JsonFile, Set[str], ModelConfig], VisionEncoder | None]


def _as_stored(name: str, part: Part, encoder: VisionEncoder) -> Transform | None:
    """Of a family whose tensors are those of folders."""
    return None


def _paired(name: str, part: Part, encoder: VisionEncoder) -> Transform | None:
    """Queries and keys are stored for a rotation of adjacent features."""
    if not isinstance(encoder, PixtralVision) or not re.search(r"\.attn_[qk]\.", name):
        return None
    head_dim = encoder.inner_size // encoder.num_heads
    return paired_rows(head_dim, head_dim)


def _with_axes(name: str, part: Part, encoder: VisionEncoder) -> Transform | None:
    """A file may leave out axes of one."""
    return reshaped(part.shape) if name in ("v.class_embd", "v.position_embd.weight") else None


def _with_flat_patches(name: str, part: Part, encoder: VisionEncoder) -> Transform | None:
    """The matrix of patches is stored as that of a convolution."""
    return patch_rows if name == "v.patch_embd.weight" else None


def _sees(file: GGUFTensors, text: ModelConfig) -> str:
    """Of a family all of whose text models see."""
    return ""


def _gemma4_sees(file: GGUFTensors, text: ModelConfig) -> str:
    if file.value("tokenizer.ggml.padding_token_id") not in (None, 0):
        return "its tokenizer.ggml.padding_token_id must be 0"
    return ""


def _read_gemma4(config: JsonFile, names: Set[str], text: ModelConfig) -> VisionEncoder | None:
    """No field says whether pictures see both ways; those without embeddings by layer do (26B-A4B and 31B)."""
    assert isinstance(text, Gemma4Config)
    return Gemma4Vision.read(config, names, text.hidden_size, sees_both_ways=not text.layer_size)


class Family(NamedTuple):
    """A kind of encoder, as the engine reads it."""

    read: Read
    first: tuple[str, ...]  # the tensors of a folder by which `read` knows that there is an encoder
    prefix: str  # of the names of tensors in a folder
    names: Mapping[str, str]
    transform: Callable[[str, Part, VisionEncoder], Transform | None] = _as_stored
    # Where the text model alone is of another class, those with pictures by the names of architectures in GGUF files.
    decoders: Mapping[str, type[Model]] = {}
    refusal: Callable[[GGUFTensors, ModelConfig], str] = _sees  # why a text model reads text alone, if it does
    other_names: Mapping[str, str] = {}  # parts of names, and what stands in their place in files of some converters


def _of_size(read: Callable[[JsonFile, Set[str], int], VisionEncoder | None]) -> Read:
    """One that needs to know no more of the text model."""
    return lambda config, names, text: read(config, names, text.hidden_size)


def _read_pixtral(config: JsonFile, names: Set[str], text: ModelConfig) -> VisionEncoder | None:
    assert isinstance(text, DecoderConfig)
    return PixtralVision.read(config, names, text.hidden_size, text.rms_norm_eps)


def _read_llava(config: JsonFile, names: Set[str], text: ModelConfig) -> VisionEncoder | None:
    assert isinstance(text, DecoderConfig)
    return LlavaNextVision.read(config, names, text.hidden_size, text.embedding_scale)


# By the projectors of `PROJECTORS`.
FAMILIES: Mapping[str, Family] = {
    "gemma3": Family(
        _of_size(Gemma3Vision.read),
        ("embeddings.patch_embedding.weight", "mm_input_projection_weight"),
        "",
        {
            **_SIGLIP,
            "mm_input_projection_weight": "mm.input_projection.weight",
            "mm_soft_emb_norm": "mm.soft_emb_norm",
        },
    ),
    "gemma4v": Family(
        _read_gemma4,
        ("patch_embedder.input_proj.weight", "embed_vision.embedding_projection.weight"),
        "",
        _GEMMA4,
        _with_flat_patches,
        refusal=_gemma4_sees,
    ),
    "idefics3": Family(
        _of_size(Idefics3Vision.read),
        (
            "model.vision_model.embeddings.patch_embedding.weight",
            "model.connector.modality_projection.proj.weight",
        ),
        "model.vision_model.",
        {**_SIGLIP, "model.connector.modality_projection.proj": "mm.model.fc"},
        decoders={"llama": Idefics3},
    ),
    "internvl": Family(
        _of_size(InternVLVision.read),
        ("embeddings.cls_token", _PROJECTOR),
        "",
        _INTERNVL,
        _with_axes,
        {"llama": InternVLLlama, "qwen2": InternVLQwen2, "qwen3": InternVLQwen3},
    ),
    "lfm2": Family(
        _of_size(Lfm2Vision.read),
        ("embeddings.patch_embedding.weight", _PROJECTOR),
        "",
        _LFM2,
        _with_flat_patches,
        {"lfm2": Lfm2VL},
    ),
    "llama4": Family(
        _of_size(Llama4Vision.read),
        ("vision_model.patch_embedding.linear.weight", _PROJECTOR),
        "vision_model.",
        _LLAMA4,
        other_names={".ln2.": ".attn_post_norm."},
    ),
    "mlp": Family(
        _read_llava,
        ("embeddings.patch_embedding.weight", _PROJECTOR, "image_newline"),
        "",
        _LLAVA,
        decoders={"granite": LlavaNextGranite, "llama": LlavaNextLlama, "qwen2": LlavaNextQwen2},
    ),
    "pixtral": Family(
        _read_pixtral,
        ("patch_conv.weight", _PROJECTOR),
        "",
        _PIXTRAL,
        _paired,
        {"llama": Mistral3Llama, "mistral3": Mistral3},
    ),
    "qwen2.5vl_merger": Family(_of_size(Qwen25Vision.read), ("patch_embed.proj.weight",), "", _QWEN),
    "qwen3vl_merger": Family(_of_size(Qwen3Vision.read), ("patch_embed.proj.weight",), "", _QWEN),
}
