"""The family of decoders with state spaces of Mamba (Gu and Dao, "Mamba", 2023), such as Jamba."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from engine.backends.base.backend import Products
from engine.backends.base.even_sums import normed
from engine.backends.base.operands import Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts.decoder import in_layers
from engine.models.parts.hybrids.hybrid_decoder import HybridDecoder
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind


@dataclass(frozen=True)
class MambaDecoder(HybridDecoder):
    """Time steps, B and C are made of what is convolved, which are the values alone."""

    made_parts: ClassVar[tuple[str, ...]] = ("time", "b", "c")  # one after the other
    has_part_norms: ClassVar[bool] = True
    part_epsilon: float = 0.0  # above 0, parts are normed with this epsilon and without weights

    def mamba_leaves(self) -> list[Leaf]:
        """As `HybridDecoder.mamba_leaves`, with what makes time steps, B and C, and their norms."""
        mamba, name = self.config.mamba, self.mamba_name
        sizes = self._part_sizes()
        made = in_layers((sum(sizes.values()), mamba.value_size), (f"{name}.x_proj", "ssm_x"))
        steps = in_layers((mamba.num_steps, mamba.time_rank), (f"{name}.dt_proj", "ssm_dt"))
        leaves = [
            *super().mamba_leaves(),
            Leaf("mamba_x", LeafKind.MATRIX, (made,)),
            Leaf("mamba_time", LeafKind.MATRIX, (steps,)),
        ]
        if self.has_part_norms:
            for kind, size in sizes.items():
                stored = "dt" if kind == "time" else kind
                part = in_layers((size,), (f"{name}.{stored}_layernorm", f"ssm_{stored}_norm"))
                leaves.append(Leaf(f"mamba_{kind}_norm", LeafKind.VECTOR, (part,)))
        return leaves

    def _part_sizes(self) -> dict[str, int]:
        """Features of each part that is made of what is convolved."""
        mamba = self.config.mamba
        return {kind: mamba.time_rank if kind == "time" else mamba.state_size for kind in self.made_parts}

    @property
    def first_channel(self) -> int:
        return 0

    @property
    def first_gate(self) -> int:
        return self.config.mamba.value_size

    def mixed_and_steps(
        self, projected: jax.Array, mixed: jax.Array, params: Params, index: jax.Array, layout: TokenLayout,
        products: Products,
    ) -> tuple[jax.Array, jax.Array]:  # fmt: skip
        made = products.norm_product(mixed, None, params["mamba_x"], index, layout)
        sizes, start = self._part_sizes(), 0
        parts: dict[str, jax.Array] = {}
        norms: dict[str, Norm | None] = {}
        for kind, size in sizes.items():
            parts[kind], start = made[:, start : start + size], start + size
            if self.part_epsilon:
                parts[kind] = normed(parts[kind], None, self.part_epsilon).astype(made.dtype)
            has_norm = self.has_part_norms
            norms[kind] = Norm(params[f"mamba_{kind}_norm"], self.config.rms_norm_eps) if has_norm else None
        steps = products.norm_product(parts["time"], norms["time"], params["mamba_time"], index, layout)
        b, c = (
            parts[kind] if norm is None else products.norm(parts[kind], norm, index, layout)
            for kind, norm in norms.items()
            if kind != "time"
        )
        return jnp.concatenate([mixed, b, c], axis=1), steps
