"""The configuration of one decoder: sizes, constants, and which optional parts it has."""

from dataclasses import dataclass

from engine.backends.base.model_config import ModelConfig
from engine.backends.base.operands import Activation
from engine.models.parts.rotary import Rotary


@dataclass(frozen=True)
class DecoderConfig(ModelConfig):
    """Sizes and constants of one model; the defaults are those of Llama."""

    rms_norm_eps: float
    rotary: tuple[Rotary, ...]  # the tables that layers choose from
    tables: tuple[int, ...]  # of each layer, the index into them; -1: it does not rotate
    windows: tuple[int, ...]  # of each layer, tokens that a query sees, up to and with its own; 0: all
    attention_scale: float  # multiplies the scores
    has_output: bool = True  # a matrix of its own makes logits; else the embedding does (tied)
    has_qkv_bias: bool = False
    has_attention_output_bias: bool = False
    has_mlp_bias: bool = False
    activation: Activation = Activation.SILU  # of the gates in the feed-forward block
    is_parallel: bool = False  # whether both blocks of a layer read what it began with, and add to it side by side
    embedding_scale: float = 1.0  # multiplies the embedded tokens
    residual_scale: float = 1.0  # multiplies what a block adds
    logit_scale: float = 1.0
    attention_softcap: float = 0.0  # above 0, scores become softcap * tanh(scores / softcap)
    logit_softcap: float = 0.0  # the same of logits
    qkv_limit: float = 0.0  # above 0, queries, keys and values are clamped to ±limit
    # Of each head, what a position between two tokens takes from their score (ALiBi); nothing where it takes none.
    distance_slopes: tuple[float, ...] = ()
    rounds_biases: bool = False  # as `AttentionConstants.rounds_biases`

    @property
    def has_distance_biases(self) -> bool:
        return bool(self.distance_slopes)

    @property
    def page_windows(self) -> tuple[int, ...]:
        """As `ModelConfig.page_windows`; beside states, which have snapshots of whole prefixes, pages stay whole."""
        return () if self.states or len(self.windows) != self.num_paged_layers else self.windows
