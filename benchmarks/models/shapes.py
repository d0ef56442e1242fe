"""The shapes of known models, as GGUF files describe them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gguf import GGMLQuantizationType

F32, Q4_K, Q6_K = GGMLQuantizationType.F32, GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K


class TensorShape(NamedTuple):
    name: str
    shape: tuple[int, ...]  # row-major; matrices are [outputs, inputs], those of experts have one axis more in front
    kind: GGMLQuantizationType


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model, and the formats of its tensors in llama.cpp's mixture Q4_K_M."""

    architecture: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner: int  # of the feed-forward block, or of each expert
    vocab_size: int
    rope_base: float
    has_output: bool = False  # whether the last matrix is another than the embedding
    has_head_norms: bool = False
    num_experts: int = 0
    num_picked: int = 0
    context_length: int = 8192

    def fields(self) -> dict[str, int | float]:
        """What the file says of the sizes, by keys without the architecture's name."""
        sizes: dict[str, int | float] = {
            "block_count": self.num_layers,
            "context_length": self.context_length,
            "embedding_length": self.hidden,
            "feed_forward_length": self.inner * max(1, self.num_picked),
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": self.num_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": self.head_dim,
            "rope.freq_base": self.rope_base,
            "vocab_size": self.vocab_size,
        }
        if self.num_experts:
            sizes |= {
                "expert_count": self.num_experts,
                "expert_used_count": self.num_picked,
                "expert_feed_forward_length": self.inner,
            }
        return sizes

    def tensors(self) -> Iterator[TensorShape]:
        embedding = (self.vocab_size, self.hidden)
        yield TensorShape("token_embd.weight", embedding, Q4_K if self.has_output else Q6_K)
        for layer in range(self.num_layers):
            for name, shape, kind in self._layer(_has_more_bits(layer, self.num_layers)):
                yield TensorShape(f"blk.{layer}.{name}.weight", shape, kind)
        yield TensorShape("output_norm.weight", (self.hidden,), F32)
        if self.has_output:
            yield TensorShape("output.weight", embedding, Q6_K)

    def _layer(self, has_more_bits: bool) -> Iterator[TensorShape]:
        """The tensors of a layer, by their names within it."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        mixed = Q6_K if has_more_bits else Q4_K
        yield TensorShape("attn_norm", (self.hidden,), F32)
        yield TensorShape("attn_q", (queries, self.hidden), Q4_K)
        yield TensorShape("attn_k", (keys, self.hidden), Q4_K)
        yield TensorShape("attn_v", (keys, self.hidden), mixed)
        yield TensorShape("attn_output", (self.hidden, queries), Q4_K)
        if self.has_head_norms:
            yield TensorShape("attn_q_norm", (self.head_dim,), F32)
            yield TensorShape("attn_k_norm", (self.head_dim,), F32)
        yield TensorShape("ffn_norm", (self.hidden,), F32)
        experts, suffix = ((self.num_experts,), "_exps") if self.num_experts else ((), "")
        if self.num_experts:
            yield TensorShape("ffn_gate_inp", (self.num_experts, self.hidden), F32)
        yield TensorShape(f"ffn_gate{suffix}", (*experts, self.inner, self.hidden), Q4_K)
        yield TensorShape(f"ffn_up{suffix}", (*experts, self.inner, self.hidden), Q4_K)
        yield TensorShape(f"ffn_down{suffix}", (*experts, self.hidden, self.inner), mixed)


def _has_more_bits(layer: int, num_layers: int) -> bool:
    """Whether values and downward matrices are of six bits: in the first and last eighth, and in each third between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


SHAPES = {
    "llama-3.2-1b": ModelShape(
        "llama", num_layers=16, hidden=2048, num_heads=32, num_kv_heads=8, head_dim=64, inner=8192,
        vocab_size=128_256, rope_base=500_000.0,
    ),
    "qwen3-4b": ModelShape(
        "qwen3", num_layers=36, hidden=2560, num_heads=32, num_kv_heads=8, head_dim=128, inner=9728,
        vocab_size=151_936, rope_base=1_000_000.0, has_head_norms=True,
    ),
    "qwen3-30b-a3b": ModelShape(
        "qwen3moe", num_layers=48, hidden=2048, num_heads=32, num_kv_heads=4, head_dim=128, inner=768,
        vocab_size=151_936, rope_base=1_000_000.0, has_output=True, has_head_norms=True,
        num_experts=128, num_picked=8,
    ),
}  # fmt: skip
