"""Reads the fields of GGUF files that several architectures share. Source of the names: the ggml project."""

import numpy as np

from engine.interface.errors import ModelError
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.folder_config import MAX_NUM_HEADS, Sizes
from engine.models.parts.rotary import MAX_HEAD_DIM, Rotary
from engine.models.parts.rotary_config import read_rotary_dim_of_gguf, read_rotary_of_gguf
from engine.weights.formats.fields import MAX_INTEGER
from engine.weights.formats.gguf_tensors import GGUFTensors

EMBEDDING = "token_embd.weight"  # [vocab, hidden]
OUTPUT = "output.weight"


def read_sizes(file: GGUFTensors) -> Sizes:
    """The sizes, of which the vocabulary's is that of the embedding; raises ModelError."""
    fields = file.fields
    num_kv_heads = read_of_layers(file, "attention.head_count_kv")
    intermediate_size = (
        read_of_layers(file, "feed_forward_length")
        or fields.integer("expert_feed_forward_length")
        or fields.required_integer("feed_forward_length", least=1)
    )
    return read_sizes_of(file, num_kv_heads=num_kv_heads, intermediate_size=intermediate_size)


def read_sizes_of(
    file: GGUFTensors, *, num_kv_heads: int | None, intermediate_size: int, num_heads: int | None = None
) -> Sizes:
    """The same, where layers differ in the sizes that are given."""
    fields = file.fields
    hidden_size = fields.required_integer("embedding_length", least=1)
    num_heads = num_heads or read_of_layers(file, "attention.head_count")
    if num_heads is None:
        raise fields.missing("attention.head_count")
    if num_heads > MAX_NUM_HEADS:
        raise fields.error("attention.head_count", f"it must be at most {MAX_NUM_HEADS}")
    num_kv_heads = num_kv_heads or num_heads
    if num_heads % num_kv_heads:
        raise ModelError(f"{num_heads} heads cannot share {num_kv_heads} heads of keys evenly")
    head_dim = fields.integer("attention.key_length") or hidden_size // num_heads
    if head_dim > MAX_HEAD_DIM:
        raise ModelError(f"the head dimension is {head_dim}; it must be at most {MAX_HEAD_DIM}")
    if head_dim % 2 or head_dim == 0:
        raise ModelError(f"the head dimension is {head_dim}; rotary embedding needs an even one above 0")
    embedding = file.tensor(EMBEDDING)
    if embedding is None:
        raise ModelError(f"the file has no tensor {EMBEDDING!r}")
    if len(embedding.shape) != 2:
        raise ModelError(f"{EMBEDDING} is no matrix")
    if embedding.shape[0] == 0:
        raise ModelError(f"{EMBEDDING} has no rows")
    num_layers = fields.required_integer("block_count", least=1)
    if num_layers > len(file.names):
        raise ModelError(f"the file has {len(file.names)} tensors, too few for {num_layers} layers")
    # Layers behind the others predict several tokens at once; they are left where they are.
    num_ahead = read_count(file, "nextn_predict_layers")
    if num_ahead >= num_layers:
        raise fields.error("nextn_predict_layers", f"it must be below the {num_layers} layers")
    return Sizes(
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers - num_ahead,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=fields.required_integer("context_length", least=1),
    )


def read_count(file: GGUFTensors, key: str) -> int:
    """A number of things, of which there may be none; 0 where the file does not say."""
    return 0 if file.fields.value(key) == 0 else file.fields.integer(key) or 0


def read_of_layers(file: GGUFTensors, key: str) -> int | None:
    """A size that a file may state for each layer, with 0 for those that have no such thing; raises ModelError."""
    value = file.fields.value(key)
    if not isinstance(value, list):
        return file.fields.integer(key)
    found = {each for each in value if each != 0}
    if len(found) > 1 or any(not isinstance(each, int) or not 0 < each <= MAX_INTEGER for each in found):
        raise file.fields.error(key, "layers of different sizes are not served")
    return next(iter(found), None)


def has_of_layers(file: GGUFTensors, key: str, num_layers: int) -> tuple[bool, ...]:
    """Of each layer, whether a size of it that a file states for each is above 0; raises ModelError."""
    value = file.fields.value(key)
    if num_layers > len(file.names):
        raise ModelError(f"the file has {len(file.names)} tensors, too few for {num_layers} layers")
    if not isinstance(value, list):
        return (file.fields.integer(key) is not None,) * num_layers
    if len(value) != num_layers:
        raise file.fields.error(key, f"it must list {num_layers} layers")
    return tuple(each != 0 for each in value)


def read_epsilon(file: GGUFTensors, key: str) -> float:
    """The epsilon of a norm; it is stored as a float32, from which 1e-5 comes back as 9.99999974e-06."""
    return float(f"{file.fields.required_positive_number(key):.6g}")


def read_multiplier(file: GGUFTensors, key: str, default: float = 1.0) -> float:
    """A constant with a default; the shortest decimal number that is stored as this float32."""
    stored = file.fields.positive_number(key)
    return default if stored is None else float(str(np.float32(stored)))


def read_decoder(
    file: GGUFTensors, *, rotary: Rotary | None = None, rotates_a_part: bool = False,
    epsilon_key: str = "attention.layer_norm_rms_epsilon", bias_layer: int = 0,
) -> DecoderConfig:  # fmt: skip
    """The configuration of most models of the family, whose layers are all alike; raises ModelError.

    `bias_layer` is the layer whose tensors show which biases there are.
    """
    sizes = read_sizes(file)
    head_dim = sizes["head_dim"]
    if rotary is None:
        rotary_dim = read_rotary_dim_of_gguf(file, head_dim)
        if rotary_dim != head_dim and not rotates_a_part:
            raise ModelError("a rotary embedding over a part of the head is not served")
        rotary = read_rotary_of_gguf(file, rotary_dim, sizes["context_length"])
    return decoder_of(file, sizes, rotary, epsilon_key=epsilon_key, bias_layer=bias_layer)


def decoder_of(
    file: GGUFTensors, sizes: Sizes, rotary: Rotary, *, epsilon_key: str = "attention.layer_norm_rms_epsilon",
    bias_layer: int = 0,
) -> DecoderConfig:  # fmt: skip
    """The same of sizes that have been read."""
    num_layers, head_dim = sizes["num_layers"], sizes["head_dim"]
    return DecoderConfig(
        **sizes,
        rms_norm_eps=read_epsilon(file, epsilon_key),
        rotary=(rotary,),
        tables=(0,) * num_layers,
        windows=(read_window(file),) * num_layers,
        attention_scale=head_dim**-0.5,
        has_output=OUTPUT in file.names,
        has_qkv_bias=f"blk.{bias_layer}.attn_q.bias" in file.names,
        has_attention_output_bias=f"blk.{bias_layer}.attn_output.bias" in file.names,
        has_mlp_bias=f"blk.{bias_layer}.ffn_down.bias" in file.names,
    )


def read_window(file: GGUFTensors) -> int:
    """Tokens that a query sees, up to and with its own; 0 where it sees all."""
    return read_count(file, "attention.sliding_window")


def read_windows(file: GGUFTensors, num_layers: int, *, period: int) -> tuple[int, ...]:
    """The window of each layer in tokens, 0 for none; raises ModelError.

    `attention.sliding_window_pattern` lists which layers have one, or says the last of how many layers has none;
    `period` is that number where it is absent.
    """
    window, key = read_window(file), "attention.sliding_window_pattern"
    pattern = file.fields.value(key)
    if isinstance(pattern, list):
        if len(pattern) != num_layers or any(each not in (0, 1) for each in pattern):
            raise file.fields.error(key, f"it must say of each of {num_layers} layers whether it has a window")
        return tuple(window if each else 0 for each in pattern)
    period = file.fields.integer(key) or period
    return tuple(window if (index + 1) % period else 0 for index in range(num_layers))
