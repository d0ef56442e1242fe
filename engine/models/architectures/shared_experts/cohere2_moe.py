"""The architecture of Cohere's mixtures, such as Command A+ and North Mini Code (Cohere team, 2026)."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax

from engine.backends.base.backend import Products
from engine.backends.base.operands import Norm, NormKind
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import FeedForward, Names
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.models.parts.routing import Routing, Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params

_LOGIT_SCALE, _WINDOW, _PERIOD = 0.0625, 4096, 4  # of transformers' class, where a configuration leaves them out
_SCORINGS = {"softmax": Scoring.SOFTMAX, "sigmoid": Scoring.SIGMOID}
_STRATEGIES = ("average", "sum")


@dataclass(frozen=True, kw_only=True)
class Cohere2MoeConfig(ExpertsConfig):
    """A mixture's, whose norms are of either kind."""

    norm_kind: NormKind
    takes_average: bool = False  # of what the routed and the shared experts make, in the place of their sum


@dataclass(frozen=True)
class Cohere2Moe(RoutedDecoder):
    """Blocks side by side behind one norm, windows in most layers, and experts behind the first layers.

    Adjacent features are rotated, in layers that see all only where they have no experts.
    """

    config: Cohere2MoeConfig

    norms: ClassVar[Mapping[str, Names]] = {"attention_norm": ("input_layernorm", "attn_norm")}
    is_paired_in_folder = True
    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        is_rms = config.value("rms_norm_eps") is not None
        usual = folder_config.read_decoder(
            config, tensor_names, "cohere2_moe", is_tied=True,
            epsilon_key="rms_norm_eps" if is_rms else "layer_norm_eps", default_epsilon=1e-5,
        )  # fmt: skip
        if usual.has_qkv_bias:
            raise config.error("attention_bias", "biases are not served for this architecture")
        strategy = config.text("shared_expert_combination_strategy") or _STRATEGIES[0]
        if strategy not in _STRATEGIES:
            raise config.error("shared_expert_combination_strategy", f"it must be one of {', '.join(_STRATEGIES)}")
        scoring = _SCORINGS.get(config.text("expert_selection_fn") or "softmax")
        if scoring is None:
            raise config.error("expert_selection_fn", f"it must be one of {', '.join(_SCORINGS)}")
        dense = routed_config.read_kinds(config, usual.num_layers)
        num_first = config.integer("first_k_dense_replace", least=0) or 0
        if dense is None:
            if num_first >= usual.num_layers:
                raise config.error("first_k_dense_replace", f"it must be below the {usual.num_layers} layers")
            dense = range(num_first)
        routing = Routing(
            num_experts=config.required_integer("num_experts", least=1),
            num_picked=config.required_integer("num_experts_per_tok", least=1),
            # A softmax is one over the picked experts.
            normalises_shares=scoring is Scoring.SOFTMAX or folder_config.read_flag(config, "norm_topk_prob", True),
            scoring=scoring,
        )
        inner = usual.intermediate_size
        dense_size = config.integer("prefix_dense_intermediate_size", least=1) or inner
        num_shared = config.integer("num_shared_experts", least=0) or 0
        made = routed_config.with_shared(
            replace(usual, intermediate_size=dense_size), routing, inner=inner, shared_size=inner * num_shared,
            dense_layers=dense,
        )  # fmt: skip
        of_first = config.integer("prefix_dense_sliding_window_pattern", least=1) or 1
        period = config.integer("sliding_window_pattern", least=1) or _PERIOD
        is_local = [
            (layer + 1) % of_first != 0 if layer < num_first else (layer - num_first + 1) % period != 0
            for layer in range(usual.num_layers)
        ]
        return cls(
            _of_cohere(
                made, folder_config.read_windows(config, is_local, default=_WINDOW), dense if of_first == 1 else (),
                logit_scale=config.positive_number("logit_scale") or _LOGIT_SCALE,
                norm_kind=NormKind.RMS if is_rms else NormKind.LAYER,
                takes_average=num_shared > 0 and strategy == "average",
            )
        )  # fmt: skip

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        is_rms = bool(file.fields.value("attention.layer_norm_rms_epsilon"))
        key = "attention.layer_norm_rms_epsilon" if is_rms else "attention.layer_norm_epsilon"
        made = routed_config.read_gguf(file, gguf_config.read_decoder(file, epsilon_key=key))
        file.fields.required_integer("attention.sliding_window", least=1)
        return cls(
            _of_cohere(
                made, gguf_config.read_windows(file, made.num_layers, period=_PERIOD), made.dense_layers,
                logit_scale=gguf_config.read_multiplier(file, "logit_scale"),
                norm_kind=NormKind.RMS if is_rms else NormKind.LAYER, takes_average=made.shared_size > 0,
            )
        )  # fmt: skip

    def side_by_side(
        self, x: jax.Array, attended: jax.Array, feed_forward: FeedForward, params: Params, index: jax.Array,
        layout: TokenLayout, products: Products,
    ) -> jax.Array:  # fmt: skip
        """As `Decoder.side_by_side`; blocks with experts are of several products, so that attention is added last."""
        mixed = feed_forward(x, params, index, layout, products)
        return self.added(mixed, attended, "attention_output", params, index, layout, products)

    def with_experts(
        self, x: jax.Array, inputs: jax.Array, scores: jax.Array, params: Params, place: jax.Array,
        layout: TokenLayout, products: Products,
    ) -> jax.Array:  # fmt: skip
        config = self.config
        halved = replace(config, residual_scale=0.5 if config.takes_average else 1.0)
        return RoutedDecoder.with_experts(
            replace(self, config=halved), x, inputs, scores, params, place, layout, products
        )

    def norm(self, params: Params, leaf: str) -> Norm | None:
        """Both blocks read what one norm makes."""
        norm = super().norm(params, "attention_norm" if leaf == "mlp_norm" else leaf)
        return None if norm is None else replace(norm, kind=self.config.norm_kind)


def _of_cohere(
    made: ExpertsConfig, windows: tuple[int, ...], rotating: Sequence[int], *, logit_scale: float, **more: Any
) -> Cohere2MoeConfig:
    """Layers with a window rotate, and those that are listed."""
    changed = {
        **vars(made), "windows": windows, "logit_scale": logit_scale, "is_parallel": True,
        "tables": tuple(0 if window or layer in rotating else -1 for layer, window in enumerate(windows)),
    }  # fmt: skip
    return Cohere2MoeConfig(**changed, **more)
