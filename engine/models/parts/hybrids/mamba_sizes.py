"""The sizes of state spaces, and how files state them."""

import math
from dataclasses import dataclass

from engine.interface.errors import ModelError
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

MAX_MAMBA_SIZE = 1 << 20  # of the values, or of B and C, of a token; far above any model's


@dataclass(frozen=True)
class MambaSizes:
    """The sizes of the state spaces of one model: Mamba-2's, or Mamba's, whose heads are for the kernels alone."""

    num_heads: int
    head_dim: int
    num_groups: int  # of heads that share B and C
    state_size: int
    kernel: int  # tokens that the convolution sees, its own included
    has_convolution_bias: bool
    has_projection_bias: bool = False
    time_limits: tuple[float, float] = (0.0, math.inf)
    has_norm: bool = True  # of the output, over each group
    norms_first: bool = False  # before the output is gated, not behind
    time_rank: int = 0  # of Mamba, the features that time steps are made of; 0: Mamba-2
    steps_by_head: bool = False  # whether heads, as Mamba-2's, have a time step each, which is made so

    def __post_init__(self) -> None:
        """Raises ModelError for heads that cannot share groups evenly, and for sizes that no model has."""
        if self.num_heads % self.num_groups:
            raise ModelError(f"in a state space {self.num_heads} heads cannot share {self.num_groups} groups evenly")
        if max(self.value_size, self.num_groups * self.state_size, self.time_rank) > MAX_MAMBA_SIZE:
            raise ModelError(
                f"a state space has {self.num_heads} heads of {self.head_dim} features and {self.num_groups} groups "
                f"of {self.state_size}; at most {MAX_MAMBA_SIZE} features of a token are served"
            )
        if not 2 <= self.kernel <= 64:
            raise ModelError(f"a state space has a convolution of {self.kernel}; convolutions of 2 to 64 are served")

    @property
    def is_by_channel(self) -> bool:
        """Whether each channel has a time step of its own, as in Mamba."""
        return self.time_rank > 0 and not self.steps_by_head

    @property
    def value_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def num_channels(self) -> int:
        """Of the convolution: values, and Mamba-2's B and C."""
        return self.value_size + (0 if self.time_rank else 2 * self.num_groups * self.state_size)

    @property
    def num_steps(self) -> int:
        """Time steps of a token."""
        return self.value_size if self.is_by_channel else self.num_heads

    @property
    def projected_size(self) -> int:
        """Features that the first product of a layer makes of a token."""
        return self.value_size + self.num_channels + (0 if self.time_rank else self.num_heads)


def read_sizes(
    config: JsonFile, *, value_size: int, num_heads: int, head_dim: int | None, num_groups: int, state_size: int,
    kernel: int, has_convolution_bias: bool, has_projection_bias: bool,
) -> MambaSizes:  # fmt: skip
    """The sizes of Mamba-2 in `config.json`, whose names differ between architectures; raises ModelError."""
    if head_dim is None:
        if value_size % num_heads:
            raise ModelError(
                f"{config.path}: {num_heads} heads of a state space cannot share {value_size} values evenly"
            )
        head_dim = value_size // num_heads
    if num_heads * head_dim != value_size:
        raise ModelError(
            f"{config.path}: {num_heads} heads of a state space of {head_dim} features are no {value_size} values"
        )
    return MambaSizes(
        num_heads=num_heads, head_dim=head_dim, num_groups=num_groups, state_size=state_size, kernel=kernel,
        has_convolution_bias=has_convolution_bias, has_projection_bias=has_projection_bias,
        time_limits=read_time_limits(config),
    )  # fmt: skip


def read_sizes_of_gguf(file: GGUFTensors, layer: int) -> MambaSizes:
    """The sizes of Mamba-2 in a GGUF file, of which `layer` has a state space; raises ModelError."""
    fields = file.fields
    num_heads = fields.required_integer("ssm.time_step_rank", least=1)
    value_size = fields.required_integer("ssm.inner_size", least=1)
    if value_size % num_heads:
        raise fields.error("ssm.inner_size", f"it must be a multiple of the {num_heads} heads of ssm.time_step_rank")
    return MambaSizes(
        num_heads=num_heads,
        head_dim=value_size // num_heads,
        num_groups=fields.integer("ssm.group_count") or 1,
        state_size=fields.required_integer("ssm.state_size", least=1),
        kernel=fields.required_integer("ssm.conv_kernel", least=1),
        has_convolution_bias=f"blk.{layer}.ssm_conv1d.bias" in file.names,
        has_projection_bias=f"blk.{layer}.ssm_in.bias" in file.names,
    )


def sizes_by_channel(
    value_size: int, *, state_size: int, kernel: int, time_rank: int, has_convolution_bias: bool,
    has_projection_bias: bool,
) -> MambaSizes:  # fmt: skip
    """The sizes of Mamba; raises ModelError."""
    num_heads, head_dim = heads_of_channels(value_size)
    return MambaSizes(
        num_heads=num_heads, head_dim=head_dim, num_groups=1, state_size=state_size, kernel=kernel,
        has_convolution_bias=has_convolution_bias, has_projection_bias=has_projection_bias, has_norm=False,
        time_rank=time_rank,
    )  # fmt: skip


def read_sizes_by_channel(file: GGUFTensors, layer: int) -> MambaSizes:
    """The sizes of Mamba in a GGUF file, of which `layer` has a state space; raises ModelError."""
    fields = file.fields
    return sizes_by_channel(
        fields.required_integer("ssm.inner_size", least=1),
        state_size=fields.required_integer("ssm.state_size", least=1),
        kernel=fields.required_integer("ssm.conv_kernel", least=1),
        time_rank=fields.required_integer("ssm.time_step_rank", least=1),
        has_convolution_bias=f"blk.{layer}.ssm_conv1d.bias" in file.names,
        has_projection_bias=f"blk.{layer}.ssm_in.bias" in file.names,
    )


def heads_of_channels(num_channels: int) -> tuple[int, int]:
    """Heads that Mamba's channels are computed in, and features of each."""
    head_dim = next((size for size in (64, 48, 32, 16) if num_channels % size == 0), num_channels)
    return num_channels // head_dim, head_dim


def read_time_limits(config: JsonFile) -> tuple[float, float]:
    """`time_step_limit`: the least and the largest time step; raises ModelError."""
    value, key = config.value("time_step_limit"), "time_step_limit"
    if value is None:
        return 0.0, math.inf
    # transformers writes an infinity as an object.
    limits = (
        [math.inf if each == {"__float__": "Infinity"} else each for each in value] if isinstance(value, list) else []
    )
    if len(limits) != 2 or not all(isinstance(each, int | float) and not isinstance(each, bool) for each in limits):
        raise config.error(key, "it must be two numbers")
    least, most = map(float, limits)
    if not 0 <= least <= most or math.isinf(least):
        raise config.error(key, "it must be two numbers from 0 on, the first not above the second")
    return least, most
