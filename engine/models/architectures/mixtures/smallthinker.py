"""The SmallThinker architecture (Song et al., "SmallThinker", 2025)."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import jax

from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.operands import Activation, AttentionConstants
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.experts import ExpertsConfig, ExpertsDecoder
from engine.models.parts.model import Carry, run_layers
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routing import Routing, Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params

_PERIOD = 4  # in GGUF files with a window, the first of so many layers sees all and does not rotate


@dataclass(frozen=True)
class SmallThinker(ExpertsDecoder):
    """A router that reads what a layer begins with, before attention; experts whose gates are a ReLU."""

    router_names: ClassVar[Names] = ("block_sparse_moe.primary_router", "ffn_gate_inp")
    expert_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("block_sparse_moe.experts.{expert}.gate", "ffn_gate_exps"),
        "up": ("block_sparse_moe.experts.{expert}.up", "ffn_up_exps"),
        "down": ("block_sparse_moe.experts.{expert}.down", "ffn_down_exps"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        inner = config.required_integer("moe_ffn_hidden_size", least=1)
        usual = folder_config.read_decoder(
            config.with_values({"intermediate_size": inner}), tensor_names, "smallthinker", is_tied=True,
            default_theta=1_000_000.0,
        )  # fmt: skip
        softmax = folder_config.read_flag(config, "moe_primary_router_apply_softmax", False)
        routing = Routing(
            num_experts=config.required_integer("moe_num_primary_experts", least=1),
            num_picked=config.required_integer("moe_num_active_primary_experts", least=1),
            normalises_shares=True,
            scoring=Scoring.SOFTMAX if softmax else Scoring.SIGMOID,
        )
        rotates = _read_layout(config, "rope_layout", usual.num_layers, default=True)
        is_local = _read_layout(config, "sliding_window_layout", usual.num_layers, default=False)
        window = config.required_integer("sliding_window_size", least=1) if any(is_local) else 0
        return cls(
            _made(
                routed_config.with_shared(usual, routing, inner=inner, shared_size=0),
                rotates,
                [window if local else 0 for local in is_local],
            )
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        made = routed_config.read_gguf(file, usual, normalises_shares=True)
        if made.dense_layers:
            raise ModelError("layers without experts are not served for this architecture")
        window, num_layers = gguf_config.read_window(file), usual.num_layers
        is_local = [bool(window) and layer % _PERIOD != 0 for layer in range(num_layers)]
        return cls(_made(made, is_local if window else [True] * num_layers, [window * local for local in is_local]))

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Decoder.forward`."""
        layer = partial(
            self._layer, params=params, layout=layout, backends=backends, constants=self.constants(params, layout)
        )
        x = self.embed(params, tokens, layout, backends.products)
        return run_layers(layer, self.config.num_layers, x, kv)

    def _layer(
        self, index: jax.Array, carry: Carry, *, params: Params, layout: TokenLayout, backends: Backends,
        constants: AttentionConstants,
    ) -> Carry:  # fmt: skip
        (x, kv), products = carry, backends.products
        scores = self.scores(x, params, index, layout, products)
        attended, kv = self.attend(x, kv, params, index, layout, backends, constants)
        x = self.added(x, attended, "attention_output", params, index, layout, products)
        norm = self.norm(params, "mlp_norm")
        assert norm is not None
        inputs = products.norm(x, norm, index, layout)
        return self.with_experts(x, inputs, scores, params, index, layout, products), kv


def _made(usual: ExpertsConfig, rotates: Sequence[bool], windows: Sequence[int]) -> ExpertsConfig:
    tables = tuple(0 if each else -1 for each in rotates)
    return replace(usual, tables=tables, windows=tuple(windows), activation=Activation.RELU)


def _read_layout(config: JsonFile, key: str, num_layers: int, *, default: bool) -> list[bool]:
    """What a list says of each layer by 0 or 1; raises ModelError."""
    layout = config.value(key)
    if layout is None:
        return [default] * num_layers
    if not isinstance(layout, list) or len(layout) != num_layers or any(each not in (0, 1) for each in layout):
        raise config.error(key, f"it must list 0 or 1 for each of {num_layers} layers")
    return [bool(each) for each in layout]
