"""The sizes that every model has, whatever its architecture."""

from dataclasses import dataclass, field
from typing import NamedTuple

from cache.states import StateArray
from cache.storage import KVLayout


class Projection(NamedTuple):
    """A dense layer that a pooled text goes through, or the head of a decoder that scores texts."""

    num_inputs: int
    num_outputs: int
    in_folder: str  # the name of its tensors, without ".weight"
    in_gguf: str
    has_bias: bool = False
    has_tanh: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether the sum of what it makes of parts is what it makes of their sum."""
        return not self.has_bias and not self.has_tanh


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one model. An architecture adds its own constants in a subclass."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of the feed-forward block
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int  # tokens it was trained for
    num_labels: int = field(default=0, kw_only=True)  # scores of its head; 0: it has none
    projections: tuple[Projection, ...] = field(default=(), kw_only=True)  # of a pooled text, one after the other

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def embedding_size(self) -> int:
        """The numbers of an embedding, behind the projections."""
        return self.projections[-1].num_outputs if self.projections else self.hidden_size

    @property
    def product_inputs(self) -> dict[str, int]:
        """The widths of the inputs of the model's products, each under a name for messages."""
        return {"hidden": self.hidden_size, "queries": self.q_size, "intermediate": self.intermediate_size}

    @property
    def joined_outputs(self) -> dict[str, int]:
        """The widths of outputs behind which a product has more, each under a name for messages."""
        return {"keys": self.kv_size}

    @property
    def recurrence_sizes(self) -> dict[str, int]:
        """The features of heads of recurrent layers, each under a name for messages; nothing where there are none."""
        return {}

    @property
    def has_distance_biases(self) -> bool:
        """Whether scores of attention fall with the distance of two tokens."""
        return False

    @property
    def norms_heads_outside_attention(self) -> bool:
        """Whether heads of queries and keys are normed with weights of each head, which no device has in part."""
        return False

    @property
    def num_paged_layers(self) -> int:
        """Layers with keys and values in pages."""
        return self.num_layers

    @property
    def page_windows(self) -> tuple[int, ...]:
        """The window of each layer with pages; empty where pages are never given back."""
        return ()

    @property
    def num_page_parts(self) -> int:
        """Vectors of a token in the pages: 2 for keys and values, 1 where one vector is both."""
        return 2

    @property
    def states(self) -> tuple[StateArray, ...]:
        """What recurrent layers hold of a sequence instead; nothing where there are none."""
        return ()

    def kv_layout(self, num_pages: int, page_size: int, dtype: str) -> KVLayout:
        """The layout of this model's pages, of `page_size` tokens each."""
        return KVLayout(
            self.num_paged_layers, num_pages, page_size, self.num_kv_heads, self.head_dim, dtype,
            num_parts=self.num_page_parts,
        )  # fmt: skip
