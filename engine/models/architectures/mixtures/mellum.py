"""The Mellum 2 architecture (JetBrains, "Mellum 2", 2026)."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Self

from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import QueryKeyNorm
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.experts import ExpertsDecoder
from engine.models.parts.rotary import Rotary
from engine.models.parts.rotary_config import read_rotaries_of_kinds
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routing import Routing, Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_PERIOD = 4  # the last of so many layers sees all, where a GGUF file does not say
_THETA, _LOCAL_THETA, _WINDOW = 500_000.0, 10_000.0, 1024  # of transformers' class, where a configuration is silent


@dataclass(frozen=True)
class Mellum(ExpertsDecoder):
    """Qwen3's attention with windows, whose layers have a rotation of their own, and experts."""

    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        head_dim, context = (folder_config.read_sizes(config)[key] for key in ("head_dim", "context_length"))
        full, local = read_rotaries_of_kinds(config, head_dim, context, default_theta=_THETA, local_theta=_LOCAL_THETA)
        usual = folder_config.read_decoder(config, tensor_names, "mellum", rotary=full)
        windows = folder_config.read_windows(config, [False] * usual.num_layers, default=_WINDOW)
        routing = Routing(
            # Releases of transformers store it by either name.
            num_experts=config.integer("num_experts", least=1) or config.required_integer("num_local_experts", least=1),
            num_picked=config.required_integer("num_experts_per_tok", least=1),
            normalises_shares=folder_config.read_flag(config, "norm_topk_prob", True),
        )
        made = routed_config.with_shared(
            _with_windows(usual, windows, local), routing, shared_size=0,
            inner=config.required_integer("moe_intermediate_size", least=1),
            dense_layers=routed_config.read_kinds(config, usual.num_layers) or (),
        )  # fmt: skip
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        windows = gguf_config.read_windows(file, usual.num_layers, period=_PERIOD)
        base = file.fields.positive_number("rope.freq_base_swa") or file.fields.positive_number("rope.freq_base")
        usual = _with_windows(usual, windows, rotary.plain(usual.head_dim, base or 10_000.0))
        return cls(routed_config.read_gguf(file, usual, scoring=Scoring.SOFTMAX, normalises_shares=True))


def _with_windows(usual: DecoderConfig, windows: tuple[int, ...], local: Rotary) -> DecoderConfig:
    """Layers with a window have a rotary embedding of their own."""
    return replace(
        usual, windows=windows, rotary=(*usual.rotary, local), tables=tuple(int(window > 0) for window in windows)
    )
