"""The architecture of Hunyuan-A13B (Tencent Hunyuan team, "Hunyuan-A13B Technical Report", 2025)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.models.architectures.dense.hunyuan import LateNormsDecoder, read_folder, with_late_norms
from engine.models.parts import gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.experts import ExpertsConfig, ExpertsDecoder
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routing import Routing, Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class HunyuanMoe(ExpertsDecoder, LateNormsDecoder):
    """The dense models' attention, experts in every layer, and one that every token goes through."""

    config: ExpertsConfig

    router_names: ClassVar[Names] = ("mlp.gate.wg", "ffn_gate_inp")
    shared_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
        "up": ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
        "down": ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = read_folder(config, tensor_names, "hunyuan_v1_moe")
        routing = Routing(
            num_experts=_same_in_all_layers(config, "num_experts"),
            num_picked=_same_in_all_layers(config, "moe_topk"),
            normalises_shares=True,
        )
        inner = usual.intermediate_size
        if config.value("moe_intermediate_size") is not None:
            inner = _same_in_all_layers(config, "moe_intermediate_size")
        num_shared = 1
        if config.value("num_shared_expert") is not None:
            num_shared = _same_in_all_layers(config, "num_shared_expert")
        shared_size = usual.intermediate_size * num_shared
        return cls(with_late_norms(routed_config.with_shared(usual, routing, inner=inner, shared_size=shared_size)))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        made = routed_config.read_gguf(file, usual, scoring=Scoring.SOFTMAX, normalises_shares=True)
        return cls(with_late_norms(made))


def _same_in_all_layers(config: JsonFile, key: str) -> int:
    """A number that is given once, or once for each layer; raises ModelError where layers differ."""
    value = config.value(key)
    if isinstance(value, list):
        if not value or any(each != value[0] for each in value):
            raise config.error(key, "it must be the same in all layers")
        config = config.with_values({key: value[0]})
    return config.required_integer(key, least=1)
