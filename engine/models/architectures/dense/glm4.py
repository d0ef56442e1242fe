"""The GLM-4 architecture (GLM team, "ChatGLM: A Family of Large Language Models", 2024) as of GLM-4-0414."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.models.architectures.llamas.glm import Glm
from engine.models.parts.decoder import Names


@dataclass(frozen=True)
class Glm4(Glm):
    """GLM-4's layers of before, with norms behind each block too."""

    model_type = "glm4"
    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "attention_output_norm": ("post_self_attn_layernorm", "post_attention_norm"),
        "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
        "down_norm": ("post_mlp_layernorm", "post_ffw_norm"),
    }
