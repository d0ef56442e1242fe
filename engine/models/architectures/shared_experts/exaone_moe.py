"""The architecture of K-EXAONE (LG AI Research, "K-EXAONE Technical Report", 2026)."""

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.models.architectures.dense.exaone4 import read_windows_of_folder, read_windows_of_gguf
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names, QueryKeyNorm
from engine.models.parts.model import Model
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class ExaoneMoe(RoutedDecoder):
    """EXAONE 4's windows and norms of heads, norms before the blocks, and experts behind the first layers."""

    query_key_norm = QueryKeyNorm.HEAD
    choice_bias_names: ClassVar[Names] = ("mlp.e_score_correction_bias", "exp_probs_b")

    # What predicts several tokens at once is left where it is.
    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(Model.derived_tensors.pattern + r"|mtp\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "exaone_moe", default_epsilon=1e-5)
        usual = read_windows_of_folder(config, usual)
        made = routed_config.read_folder(config, usual, experts_key="num_experts", shared_key="num_shared_experts")
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = read_windows_of_gguf(file, gguf_config.read_decoder(file))
        return cls(routed_config.read_gguf(file, usual, normalises_shares=True))
