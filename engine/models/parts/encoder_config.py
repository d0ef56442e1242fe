"""The configuration of one encoder of texts, and how it is read from files."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.backends.base.model_config import ModelConfig
from engine.backends.base.operands import Activation
from engine.interface.errors import ModelError
from engine.models.parts.folder_config import Sizes
from engine.weights.formats.model_folder import JsonFile

MAX_LABELS = 10_000

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": Activation.GELU_ERF,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "silu": Activation.SILU,
}


@dataclass(frozen=True)
class EncoderConfig(ModelConfig):
    """Sizes and constants of one encoder; its layers are all alike."""

    layer_norm_eps: float
    activation: Activation
    num_token_types: int  # of texts in a pair
    first_position: int = 0  # the row of the first token in the matrix of positions
    num_labels: int = 0  # scores of its head; 0: it has none
    prefix: str = ""  # of the names of its tensors in a folder


def read_sizes_of_encoder(config: JsonFile) -> Sizes:
    """The sizes, by the names that encoders give them; raises ModelError."""
    hidden_size = config.required_integer("hidden_size", least=1)
    num_heads = config.required_integer("num_attention_heads", least=1)
    if hidden_size % num_heads:
        raise config.error("num_attention_heads", f"it must divide hidden_size ({hidden_size})")
    return Sizes(
        vocab_size=config.required_integer("vocab_size", least=1),
        hidden_size=hidden_size,
        intermediate_size=config.required_integer("intermediate_size", least=1),
        num_layers=config.required_integer("num_hidden_layers", least=1, most=10_000),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        context_length=config.required_integer("max_position_embeddings", least=2),
    )


def read_activation(config: JsonFile) -> Activation:
    """The activation of the feed-forward blocks; raises ModelError."""
    name = config.text("hidden_act") or "gelu"
    if name not in ACTIVATIONS:
        raise config.error("hidden_act", f"it must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def read_num_labels(config: JsonFile) -> int:
    """The number of labels of a head, which is 2 where the configuration says nothing; raises ModelError."""
    labels = config.table("id2label")
    if labels is not None:
        if not 1 <= len(labels.names) <= MAX_LABELS:
            raise ModelError(f"{config.path}: id2label has {len(labels.names)} labels; it must have 1 to {MAX_LABELS}")
        return len(labels.names)
    return config.integer("num_labels", least=1, most=MAX_LABELS) or 2
