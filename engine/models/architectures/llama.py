"""The Llama architecture (Touvron et al., "LLaMA", 2023), from Llama 2 to 3.3, and SmolLM2."""

from dataclasses import dataclass

from engine.models.parts.decoder import Decoder


@dataclass(frozen=True)
class Llama(Decoder):
    """A norm before each block. GGUF files of Mistral's models name this architecture too."""

    model_type = "llama"
    is_paired_in_gguf = True


@dataclass(frozen=True)
class Aquila(Llama):
    """Aquila and AquilaChat (BAAI, 2023): the same."""

    model_type = "aquila"


@dataclass(frozen=True)
class IQuestCoder(Llama):
    """IQuest Coder (IQuest Lab, 2026): the same."""

    model_type = "iquestcoder"


@dataclass(frozen=True)
class Helium(Llama):
    """Helium 1 (Kyutai, "Helium 1", 2025): adjacent features are rotated in folders."""

    model_type = "helium"
    is_paired_in_folder = True
