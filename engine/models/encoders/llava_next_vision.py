"""The pictures of LLaVA-NeXT (Liu et al., 2024) and Granite Vision (IBM, 2025): a map of tiles, marks behind rows."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from engine.backends.base.patches import patches
from engine.interface.types import CLIP_MEAN, CLIP_STD, TileMap
from engine.models.encoders.layer_products import (
    PREFIX,
    LayerProducts,
    biased_leaves,
    norm_leaves,
    product_leaf,
    vector_leaf,
)
from engine.models.encoders.picture_tensors import prefixes_of
from engine.models.encoders.siglip import ACTIVATIONS, Siglip, layer_norm, read_activation
from engine.models.encoders.vision_encoder import Colours, VisionEncoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_FIRST = "embeddings.patch_embedding.weight"  # the first tensor of the tower
_PROJECTOR = "multi_modal_projector."
_PROJECTION = f"{_PROJECTOR}linear_1.weight"
_NEWLINE = "image_newline"
_BLOCK = 64  # tokens whose embeddings lie beside each other
_SIGLIP, _CLIP = "siglip_vision_model", "clip_vision_model"
# Where config.json says nothing; source: transformers' SiglipVisionConfig and CLIPVisionConfig.
_DEFAULTS: dict[str, dict[str, Any]] = {
    _SIGLIP: {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    },
    _CLIP: {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
    },
}  # fmt: skip
_STRATEGIES = {_SIGLIP: "full", _CLIP: "default"}  # with which a tile's features are its patches, without a class token
_FEATURE_LAYER = -2  # where config.json says nothing; source: transformers' LlavaNextConfig
_MOST_TILES = 64


@dataclass(frozen=True)
class LlavaNextVision(VisionEncoder):
    """Patches attend to those of their tile; a picture is the whole one, and tiles without their black edges.

    The `grid` of a picture is that of `TileMap`.
    """

    tower: Siglip
    tower_prefix: str
    projector_prefix: str
    newline: str  # the name of the tensor behind each row
    has_class: bool  # whether each tile has a class token before its patches, as CLIP's tower
    features: tuple[int, ...]  # how many layers are before each part of a patch's features
    largest: tuple[int, int]  # rows and columns of tiles of which pictures are the largest
    max_tiles: int  # of a picture, with the whole one
    projector_activation: str
    has_projector_bias: bool
    scale: float  # multiplies the embeddings

    is_tiled = True

    @classmethod
    def read(cls, config: JsonFile, tensor_names: Set[str], hidden_size: int, scale: float) -> LlavaNextVision | None:
        """Reads `config.json` of a folder; None where it has no tensors of an encoder. Raises ModelError.

        Args:
            scale: by which the text model multiplies embeddings.
        """
        prefixes = prefixes_of(config, tensor_names, (_FIRST, _PROJECTION, _NEWLINE))
        vision = config.table("vision_config")
        if prefixes is None or vision is None:
            return None
        kind = vision.text("model_type") or _CLIP
        if kind not in _DEFAULTS:
            raise vision.error("model_type", f"of this architecture it must be one of {', '.join(_DEFAULTS)}")
        strategy = config.text("vision_feature_select_strategy") or "default"
        if strategy != _STRATEGIES[kind]:
            raise config.error("vision_feature_select_strategy", f'with this encoder it must be "{_STRATEGIES[kind]}"')
        whole = Siglip.read(vision.with_defaults(_DEFAULTS[kind]))
        features = _read_features(config, whole.num_layers)
        tower = replace(whole, num_layers=max(features))
        grids = [(height // tower.image_size, width // tower.image_size) for height, width in pinpoints_of(config)]
        side = tower.num_patches_a_side
        largest = max(grids, key=lambda grid: _num_tokens(grid, side))
        return cls(
            height=0, width=0, num_tokens=_BLOCK, num_layers=tower.num_layers, hidden_size=hidden_size,
            sees_both_ways=False, colours=Colours.read(config, Colours(CLIP_MEAN, CLIP_STD)), tower=tower,
            tower_prefix=prefixes[0], projector_prefix=prefixes[1] + _PROJECTOR, newline=prefixes[2] + _NEWLINE,
            has_class=kind == _CLIP, features=features, largest=largest,
            max_tiles=1 + max(rows * columns for rows, columns in grids),
            projector_activation=read_activation(config, "projector_hidden_act", "gelu"),
            has_projector_bias=config.flag("multimodal_projector_bias") is not False, scale=scale,
        )  # fmt: skip

    @property
    def _num_patches(self) -> int:
        """Of a tile, with its class token."""
        return self.tower.num_patches + self.has_class

    @property
    def _kept(self) -> tuple[int, ...]:
        """The features that are kept beside what goes through the layers."""
        return tuple(each for each in self.features if each != self.num_layers)

    def buckets(self, max_model_len: int) -> tuple[int, ...]:
        """As `VisionEncoder.buckets`: one, in which patches that a picture does not have are not computed."""
        return (_num_tokens(self.largest, self.tower.num_patches_a_side),)

    def pixels_shape(self, bucket: int) -> tuple[int, ...]:
        """As `VisionEncoder.pixels_shape`, of all tiles."""
        return self.max_tiles, self.tower.image_size, self.tower.image_size, 3

    def inner_shape(self, bucket: int) -> tuple[int, int]:
        """As `VisionEncoder.inner_shape`, with the features that are kept."""
        return self.max_tiles * self._num_patches, self.tower.hidden_size * (1 + len(self._kept))

    def num_real(self, grid: jax.Array) -> jax.Array | None:
        """Those of the picture's tiles."""
        tiles = TileMap.from_grid(grid)
        num_patches: jax.Array = (1 + tiles.tile_rows * tiles.tile_columns) * self._num_patches
        return num_patches

    def leaves(self) -> tuple[Leaf, ...]:
        inner, patch, tower, hidden = self.tower.hidden_size, self.tower.patch_size, self.tower_prefix, self.hidden_size
        embeddings, projector = f"{tower}embeddings.", self.projector_prefix
        of_clip = (
            vector_leaf("class", (inner,), f"{embeddings}class_embedding"),
            *norm_leaves("first_norm", inner, f"{tower}pre_layrnorm"),
        )
        of_siglip = (vector_leaf("patch_bias", (inner,), f"{embeddings}patch_embedding.bias"),)
        products = (("projection1", inner * len(self.features), "linear_1"), ("projection2", hidden, "linear_2"))
        return (
            vector_leaf("patch", (inner, 3, patch, patch), f"{embeddings}patch_embedding.weight"),
            *(of_clip if self.has_class else of_siglip),
            vector_leaf("position", (self._num_patches, inner), f"{embeddings}position_embedding.weight"),
            *self.tower.layer_leaves(tower),
            *(
                leaf
                for name, size, tensor in products
                for leaf in (
                    biased_leaves(name, (hidden, size), projector + tensor)
                    if self.has_projector_bias
                    else (product_leaf(name, (hidden, size), f"{projector}{tensor}.weight"),)
                )
            ),
            vector_leaf("newline", (hidden,), self.newline),
        )

    def begin(self, params: Params, pixels: jax.Array, grid: jax.Array) -> jax.Array:
        side, patch, inner = self.tower.num_patches_a_side, self.tower.patch_size, self.tower.hidden_size
        colours = self.colours.normalized(pixels[:, : side * patch, : side * patch])
        squares = colours.reshape(self.max_tiles, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        # A leaf is the tensor [inner, colour, row, column] with all axes reversed.
        weights = params[f"{PREFIX}patch"][0].transpose(1, 0, 2, 3).reshape(-1, inner)
        x = squares.reshape(self.max_tiles, side * side, -1) @ weights
        if self.has_class:
            first = jnp.broadcast_to(params[f"{PREFIX}class"][0], (self.max_tiles, 1, inner))
            x = jnp.concatenate([first, x], axis=1) + params[f"{PREFIX}position"][0].T
            norm, bias = params[f"{PREFIX}first_norm"][0], params[f"{PREFIX}first_norm_bias"][0]
            x = layer_norm(x, norm, bias, self.tower.epsilon)
        else:
            x = x + params[f"{PREFIX}patch_bias"][0] + params[f"{PREFIX}position"][0].T
        x = x.reshape(-1, inner)
        # Of the features, only those before all layers are known yet.
        return jnp.concatenate([x, *(x if each == 0 else jnp.zeros_like(x) for each in self._kept)], axis=1)

    def layer(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        last, *kept = jnp.split(x, 1 + len(self._kept), axis=-1)
        first_seen = (jnp.arange(len(x)) // self._num_patches * self._num_patches).astype(jnp.int32)
        seeing = products.patches._replace(first_seen=first_seen, last_seen=first_seen + self._num_patches - 1)
        last = self.tower.layer(last, replace(products, patches=seeing))
        index = products.index
        known = [jnp.where(index + 1 == number, last, each) for number, each in zip(self._kept, kept, strict=True)]
        return jnp.concatenate([last, *known], axis=-1)

    def end(self, x: jax.Array, grid: jax.Array, products: LayerProducts) -> jax.Array:
        last, *kept = jnp.split(x, 1 + len(self._kept), axis=-1)
        known = dict(zip(self._kept, kept, strict=True))
        features = jnp.concatenate([known.get(each, last) for each in self.features], axis=-1)
        tiles, (bucket,) = TileMap.from_grid(grid), self.buckets(0)
        source, is_newline = self._sources(bucket, tiles)
        num_tokens = self.tower.num_patches + tiles.rows * (tiles.columns + 1)
        of_tokens = replace(products, patches=patches(bucket, num_tokens))
        activation = ACTIVATIONS[self.projector_activation]
        inner = of_tokens.product(features[source], "projection1", None, activation)
        projected = of_tokens.product(inner, "projection2")
        return self.scale * jnp.where(is_newline[:, None], products.of("newline"), projected)

    def _sources(self, num_tokens: int, tiles: TileMap) -> tuple[jax.Array, jax.Array]:
        """Which patch each token is, and whether it is the mark behind a row instead."""
        side, of_whole = self.tower.num_patches_a_side, self.tower.num_patches
        token = jnp.arange(num_tokens)
        row, column = jnp.divmod(token - of_whole, tiles.columns + 1)
        is_newline = (token >= of_whole) & (column == tiles.columns)
        # Black edges, half of them before the picture, are left out.
        row += (tiles.tile_rows * side - tiles.rows) // 2
        column += (tiles.tile_columns * side - tiles.columns) // 2
        tile = 1 + row // side * tiles.tile_columns + column // side
        of_tiles = tile * self._num_patches + self.has_class + row % side * side + column % side
        source = jnp.where(token < of_whole, token + self.has_class, of_tiles)
        return jnp.clip(source, 0, self.max_tiles * self._num_patches - 1), is_newline


def pinpoints_of(config: JsonFile) -> list[tuple[int, int]]:
    """The heights and the widths to which pictures are scaled, whole multiples of a tile's side; raises ModelError."""
    vision = config.table("vision_config") or JsonFile(config.path, {})
    defaults = _DEFAULTS.get(vision.text("model_type") or _CLIP, {})
    edge = vision.with_defaults(defaults).required_integer("image_size", least=1, most=1 << 16)
    stated = config.value("image_grid_pinpoints")
    if stated is None:  # source: transformers' LlavaNextConfig
        stated = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    found = []
    for each in stated if isinstance(stated, list) and len(stated) <= 1 << 12 else [None]:
        match each:
            case [int(height), int(width)] if (
                min(height, width) > 0
                and height % edge == width % edge == 0
                and height // edge * (width // edge) <= _MOST_TILES
            ):
                found.append((height, width))
            case _:
                demand = f"it must be a list of heights and widths, multiples of {edge}, of up to {_MOST_TILES} tiles"
                raise config.error("image_grid_pinpoints", demand)
    if not found:
        raise config.error("image_grid_pinpoints", "it must name a size")
    return found


def _num_tokens(tiles: tuple[int, int], side: int) -> int:
    """Of a picture that fills so many rows and columns of tiles."""
    return side * side + tiles[0] * side * (tiles[1] * side + 1)


def _read_features(config: JsonFile, num_layers: int) -> tuple[int, ...]:
    """How many layers are before each part of a patch's features; raises ModelError."""
    stated = config.value("vision_feature_layer")
    stated = _FEATURE_LAYER if stated is None else stated
    numbers = stated if isinstance(stated, list) else [stated]
    if not 0 < len(numbers) <= 1 + num_layers or not all(
        isinstance(each, int) and not isinstance(each, bool) and -1 - num_layers <= each <= num_layers
        for each in numbers
    ):
        demand = f"it must be an integer from {-1 - num_layers} to {num_layers}, or a list of such"
        raise config.error("vision_feature_layer", demand)
    features = tuple(each if each >= 0 else each + 1 + num_layers for each in numbers)
    if max(features) < 1:
        raise config.error("vision_feature_layer", "it must be behind a layer")
    return features
