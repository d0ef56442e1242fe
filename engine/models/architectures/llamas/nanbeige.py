"""The architecture of Nanbeige 4.2 (Nanbeige LLM Lab, "Nanbeige4.2", 2026): layers that are gone through twice."""

from collections.abc import Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp

from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.llama import Llama
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.model import Carry, run_layers
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_MAX_NUM_LOOPS = 16  # the program has a loop over the layers for each of them
# What the maker's code can do besides, which no published model does.
_UNUSED = (
    "qk_layernorm", "emb_neighbor_num", "insert_ngram_layer_idx", "ngram_insert_all_layers", "loop_middle_layers",
    "enable_double_loop_split", "loop_share_kv", "enable_hyper_connection", "enable_mhc", "enable_h_res_identity",
    "enable_depth_attention",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NanbeigeConfig(DecoderConfig):
    """A decoder's, in which `num_layers` counts a layer each time that it is gone through."""

    num_loops: int
    norms_loops: bool  # whether the last norm stands behind each of them


@dataclass(frozen=True)
class Nanbeige(Llama):
    """Llama's layers several times: the same weights, and keys and values of each time."""

    config: NanbeigeConfig

    model_type = "nanbeige"
    takes_adapters = False  # their matrices would need to be gone through as often
    can_be_split = False

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        for name in _UNUSED:
            if config.value(name):
                raise config.error(name, "this is not served")
        usual = folder_config.read_decoder(config, tensor_names, cls.model_type)
        num_loops = config.integer("num_loops", least=1, most=_MAX_NUM_LOOPS) or 1
        return cls(_looped(usual, num_loops, folder_config.read_flag(config, "skip_loop_final_norm", False)))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        num_loops = file.fields.integer("num_loops") or 1
        if num_loops > _MAX_NUM_LOOPS:
            raise file.fields.error("num_loops", f"it must be at most {_MAX_NUM_LOOPS}")
        return cls(
            _looped(gguf_config.read_decoder(file), num_loops, file.fields.flag("skip_loop_final_norm") or False)
        )

    def leaves(self) -> tuple[Leaf, ...]:
        layers = tuple(range(self.config.num_layers // self.config.num_loops))
        return tuple(replace(leaf, layers=layers) if leaf.is_per_layer else leaf for leaf in super().leaves())

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        config, products = self.config, backends.products
        num_layers, constants = config.num_layers // config.num_loops, self.constants(params, layout)
        norm = self.norm(params, "attention_norm")

        def layer(place: jax.Array, carry: Carry, *, before: int) -> Carry:
            """Of weights at a place, before which so many layers have keys and values."""
            x, kv = carry
            qkv = products.norm_product(x, norm, params["qkv"], place, layout, bias=params.get("qkv_bias"))
            attended, kv = backends.attention(qkv, kv, place + before, layout, constants)
            x = self.added(x, attended, "attention_output", params, place, layout, products)
            return self.feed_forward(x, params, place, layout, products), kv

        x, last = self.embed(params, tokens, layout, products), self.norm(params, "output_norm")
        for loop in range(config.num_loops):
            if loop and config.norms_loops and last is not None:
                x = products.norm(x, last, jnp.int32(0), layout).astype(x.dtype)
            x, kv = run_layers(partial(layer, before=loop * num_layers), num_layers, x, kv)
        return x, kv


def _looped(usual: DecoderConfig, num_loops: int, skips_norms: bool) -> NanbeigeConfig:
    changed = {
        **vars(usual), "num_layers": usual.num_layers * num_loops, "tables": usual.tables * num_loops,
        "windows": usual.windows * num_loops,
    }  # fmt: skip
    return NanbeigeConfig(**changed, num_loops=num_loops, norms_loops=not skips_norms)
