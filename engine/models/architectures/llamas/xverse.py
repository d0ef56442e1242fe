"""The XVERSE architecture (Shenzhen Yuanxiang Technology, "XVERSE-13B", 2023)."""

from dataclasses import dataclass

from engine.models.architectures.llama import Llama


@dataclass(frozen=True)
class Xverse(Llama):
    """Llama's layers."""

    model_type = "xverse"
