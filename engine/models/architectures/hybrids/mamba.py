"""The Mamba architecture (Gu and Dao, "Mamba", 2023); nothing attends."""

import math
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Self

from engine.models.architectures.hybrids.mamba2 import Mamba2
from engine.models.parts.folder_config import read_flag
from engine.models.parts.hybrids.mamba_decoder import MambaDecoder
from engine.models.parts.hybrids.mamba_sizes import MambaSizes, read_sizes_by_channel, sizes_by_channel
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_PART_EPSILON = 1e-6  # of Falcon Mamba; files do not state it
_TIME_RANKS = 16  # hidden features to a feature that time steps are made of, where a configuration says "auto"


@dataclass(frozen=True)
class Mamba(MambaDecoder, Mamba2):
    """State spaces alone, each behind a norm, as in Mamba-2."""

    model_type = "mamba"
    is_tied = True
    has_part_norms = False

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Files of Falcon Mamba name this architecture too."""
        made = super().from_gguf(file)
        return replace(made, part_epsilon=_PART_EPSILON) if file.fields.flag("ssm.dt_b_c_rms") else made

    @classmethod
    def read_sizes(cls, config: JsonFile, hidden_size: int) -> MambaSizes:
        time_rank = None
        if config.value("time_step_rank") != "auto":
            time_rank = config.integer("time_step_rank", least=1)
        # It is not always that of the size which is stated beside it, as in Falcon Mamba 7B.
        factor = config.integer("expand", least=1, most=64) or 2
        return sizes_by_channel(
            config.integer("intermediate_size", least=1) or factor * hidden_size,
            state_size=config.integer("state_size", least=1) or 16,
            kernel=config.integer("conv_kernel", least=1) or 4,
            time_rank=time_rank or math.ceil(hidden_size / _TIME_RANKS),
            has_convolution_bias=read_flag(config, "use_conv_bias", True),
            has_projection_bias=read_flag(config, "use_bias", False),
        )

    @classmethod
    def read_sizes_of_gguf(cls, file: GGUFTensors) -> MambaSizes:
        return read_sizes_by_channel(file, 0)


@dataclass(frozen=True)
class FalconMamba(Mamba):
    """Falcon Mamba (Zuo et al., "Falcon Mamba", 2024): time steps, B and C are normed, without weights."""

    model_type = "falcon_mamba"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        made = super().from_folder(config, tensor_names)
        return replace(made, part_epsilon=config.positive_number("mixer_rms_eps") or _PART_EPSILON)
