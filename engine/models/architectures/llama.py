"""The Llama architecture (Touvron et al., "LLaMA", 2023), from Llama 2 to 3.3, and SmolLM2."""

from dataclasses import dataclass

from engine.models.parts.decoder import Decoder


@dataclass(frozen=True)
class Llama(Decoder):
    """A norm before each block. GGUF files of Mistral's models name this architecture too."""

    model_type = "llama"
    is_paired_in_gguf = True
