"""The Mamba architecture (Gu and Dao, "Mamba", 2023); nothing attends."""

import math
from dataclasses import dataclass

from engine.models.architectures.hybrids.mamba2 import Mamba2
from engine.models.parts.folder_config import read_flag
from engine.models.parts.hybrids.mamba_decoder import MambaDecoder
from engine.models.parts.hybrids.mamba_sizes import MambaSizes, read_sizes_by_channel, sizes_by_channel
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_TIME_RANKS = 16  # hidden features to a feature that time steps are made of, where a configuration says "auto"


@dataclass(frozen=True)
class Mamba(MambaDecoder, Mamba2):
    """State spaces alone, each behind a norm, as in Mamba-2."""

    model_type = "mamba"
    is_tied = True
    has_part_norms = False

    @classmethod
    def read_sizes(cls, config: JsonFile, hidden_size: int) -> MambaSizes:
        time_rank = None
        if config.value("time_step_rank") != "auto":
            time_rank = config.integer("time_step_rank", least=1)
        return sizes_by_channel(
            (config.integer("expand", least=1, most=64) or 2) * hidden_size,
            state_size=config.integer("state_size", least=1) or 16,
            kernel=config.integer("conv_kernel", least=1) or 4,
            time_rank=time_rank or math.ceil(hidden_size / _TIME_RANKS),
            has_convolution_bias=read_flag(config, "use_conv_bias", True),
            has_projection_bias=read_flag(config, "use_bias", False),
        )

    @classmethod
    def read_sizes_of_gguf(cls, file: GGUFTensors) -> MambaSizes:
        """As `Mamba2.read_sizes_of_gguf`; files of Falcon Mamba name this architecture too."""
        if file.fields.flag("ssm.dt_b_c_rms"):
            raise file.fields.error("ssm.dt_b_c_rms", "norms of time steps, B and C are not served here")
        return read_sizes_by_channel(file, 0)
