"""The configuration of one encoder of texts, and how it is read from files."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.backends.base.model_config import ModelConfig
from engine.backends.base.operands import Activation
from engine.interface.errors import ModelError
from engine.interface.types import Pooling
from engine.models.parts.folder_config import Sizes
from engine.models.parts.rotary import Rotary
from engine.weights.formats.gguf_tensors import GGUFTensors
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
    """Sizes and constants of one encoder."""

    layer_norm_eps: float
    activation: Activation
    num_token_types: int  # of texts in a pair
    first_position: int = 0  # the row of the first token in the matrix of positions
    prefix: str = ""  # of the names of its tensors in a folder
    has_biases: bool = True  # of its products
    is_gated: bool = False  # whether the activation's outputs gate others in the feed-forward block
    rotary: tuple[Rotary, ...] = ()  # the tables that layers choose from; without any, positions are learned
    tables: tuple[int, ...] = ()  # of each layer, the index into them
    windows: tuple[int, ...] = ()  # of each layer, tokens that a token sees on either side, with its own; 0: all
    has_alibi: bool = False  # whether scores of attention fall with the distance of two tokens
    head_pooling: Pooling = Pooling.CLS  # of the text that its head scores
    head_activation: Activation = Activation.GELU_ERF
    has_head_bias: bool = True  # in the first product of its head

    @property
    def has_distance_biases(self) -> bool:
        return self.has_alibi


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


def read_activation(config: JsonFile, key: str = "hidden_act") -> Activation:
    """The activation of the feed-forward blocks, or of a head; raises ModelError."""
    name = config.text(key) or "gelu"
    if name not in ACTIVATIONS:
        raise config.error(key, f"it must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def read_num_labels(config: JsonFile) -> int:
    """The number of labels of a head, which is 2 where the configuration says nothing; raises ModelError."""
    labels = config.table("id2label")
    if labels is not None:
        if not 1 <= len(labels.names) <= MAX_LABELS:
            raise ModelError(f"{config.path}: id2label has {len(labels.names)} labels; it must have 1 to {MAX_LABELS}")
        return len(labels.names)
    return config.integer("num_labels", least=1, most=MAX_LABELS) or 2


def num_rows(file: GGUFTensors, name: str) -> int:
    """The rows of a tensor that must be there; raises ModelError."""
    tensor = file.tensor(name)
    if tensor is None or not tensor.shape:
        raise ModelError(f"the file has no tensor {name!r} with rows")
    return tensor.shape[0]
