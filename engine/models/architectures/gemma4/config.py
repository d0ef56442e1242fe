"""The configuration of Gemma 4's text models, and how files state it."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from engine.backends.base.operands import Activation
from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import Rotary
from engine.models.parts.rotary_config import FACTORS, kind_of, read_factors, read_rotary
from engine.models.parts.routing import Routing
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_LOCAL, _FULL = "sliding_attention", "full_attention"
_PERIOD = 6  # the last of so many layers sees all, where config.json says nothing
_LARGEST_FACTOR = 1e20  # converters divide the frequencies of features that are not rotated by more
# Where config.json says nothing; source: transformers' Gemma4TextConfig.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
    "sliding_window": 512, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144,
    "rope_parameters": {
        _LOCAL: {"rope_type": "default", "rope_theta": 10_000.0},
        _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    },
}  # fmt: skip
_FULL_HEAD_DIM = 512
_OF_LAYERS = ("head_dim", "num_key_value_heads")  # what layers may have of their own


@dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """The heads of the layers of one kind, those with a window or those that see all."""

    head_dim: int
    num_kv_heads: int

    def __post_init__(self) -> None:
        """Raises ModelError for heads of a size that no model has."""
        if self.head_dim % 2 or self.head_dim > rotary.MAX_HEAD_DIM:
            raise ModelError(f"the head dimension is {self.head_dim}; it must be even, at most {rotary.MAX_HEAD_DIM}")


@dataclass(frozen=True, kw_only=True)
class Gemma4Config(DecoderConfig):
    """A decoder's, with pages for the larger heads; `tables` and `windows` are those of layers with pages."""

    is_full: tuple[bool, ...]  # of each layer, whether it sees all
    local: HeadSizes
    full: HeadSizes
    keys_are_values: bool  # in layers that see all
    num_shared: int  # the last layers, which read the keys and values of the last one of their kind before them
    wide_size: int  # the inner size of their feed-forward blocks; 0: as that of the others
    layer_size: int  # features of the embeddings by layer; 0: there are none
    routing: Routing  # of the experts, if there are any
    expert_size: int  # the inner size of an expert

    @property
    def num_paged_layers(self) -> int:
        return self.num_layers - self.num_shared

    def heads(self, *, is_full: bool) -> HeadSizes:
        """Those of the layers of a kind."""
        return self.full if is_full else self.local

    def layers_of(self, *, is_full: bool, has_pages: bool) -> tuple[int, ...]:
        """The layers of a kind, or those of them that make keys and values."""
        end = self.num_paged_layers if has_pages else self.num_layers
        return tuple(layer for layer in range(end) if self.is_full[layer] == is_full)

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        optional = {
            "shared layers": self.wide_size, "embeddings by layer": self.layer_size, "experts": self.expert_size,
        }  # fmt: skip
        return {
            "hidden": self.hidden_size, "intermediate": self.intermediate_size,
            "queries with a window": self.num_heads * self.local.head_dim,
            "queries": self.num_heads * self.full.head_dim,
            **{name: size for name, size in optional.items() if size},
        }  # fmt: skip

    @property
    def joined_outputs(self) -> dict[str, int]:
        """As `ModelConfig.joined_outputs`."""
        sizes = {"keys with a window": self.local, "keys": self.full}
        return {name: heads.num_kv_heads * heads.head_dim for name, heads in sizes.items()}


def read_folder(config: JsonFile, outputs: Set[str]) -> Gemma4Config:
    """The configuration in `config.json`, whose output matrix is among `outputs` if it has one; raises ModelError."""
    config = config.with_defaults(_DEFAULTS)
    _refuse(config)
    tables = config.table("rope_parameters")
    assert tables is not None
    sizes = folder_config.read_sizes(config)
    local_rotary = _read_rotary(tables, _LOCAL, sizes["head_dim"], sizes["context_length"])
    of_all = config.with_values({"per_layer_config": None})
    usual = folder_config.read_decoder(
        of_all, outputs, "gemma4_text", rotary=local_rotary, is_tied=True, hidden_act="gelu_pytorch_tanh"
    )
    num_layers, keys_are_values = usual.num_layers, folder_config.read_flag(config, "attention_k_eq_v", False)
    is_full = _read_kinds(config, num_layers)
    full = _read_full_heads(config, is_full, usual, keys_are_values=keys_are_values)
    num_shared = config.integer("num_kv_shared_layers", least=0) or 0
    is_wide = folder_config.read_flag(config, "use_double_wide_mlp", False)
    has_experts = folder_config.read_flag(config, "enable_moe_block", False)
    vocab = config.required_integer("vocab_size_per_layer_input", least=1)
    layer_size = config.integer("hidden_size_per_layer_input", least=0) or 0
    if layer_size and vocab != usual.vocab_size:
        raise config.error("vocab_size_per_layer_input", f"it must be vocab_size ({usual.vocab_size})")
    return made(
        usual, is_full, HeadSizes(head_dim=usual.head_dim, num_kv_heads=usual.num_kv_heads), full,
        (local_rotary, _read_rotary(tables, _FULL, full.head_dim, usual.context_length)),
        window=config.required_integer("sliding_window", least=1), keys_are_values=keys_are_values,
        num_shared=num_shared, wide_size=2 * usual.intermediate_size if is_wide and num_shared else 0,
        layer_size=layer_size, softcap=config.positive_number("final_logit_softcapping"),
        routing=_read_routing(config) if has_experts else Routing(),
        expert_size=config.required_integer("moe_intermediate_size", least=1) if has_experts else 0,
    )  # fmt: skip


def _read_routing(config: JsonFile) -> Routing:
    routing = Routing(
        num_experts=config.required_integer("num_experts", least=1),
        num_picked=config.required_integer("top_k_experts", least=1),
        normalises_shares=True,
    )
    routing.check()
    return routing


def _refuse(config: JsonFile) -> None:
    if folder_config.read_flag(config, "attention_bias", False):
        raise config.error("attention_bias", "biases are not served")
    if config.value("use_bidirectional_attention") == "all":
        raise config.error("use_bidirectional_attention", "attention to what comes later is not served")
    if config.text("hidden_activation") not in (None, "gelu_pytorch_tanh"):
        raise config.error("hidden_activation", 'of this architecture it must be "gelu_pytorch_tanh"')


def _read_kinds(config: JsonFile, num_layers: int) -> tuple[bool, ...]:
    kinds = config.value("layer_types")
    if kinds is None:
        kinds = [_FULL if (layer + 1) % _PERIOD == 0 else _LOCAL for layer in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in (_LOCAL, _FULL) for kind in kinds):
        raise config.error("layer_types", f"it must list {num_layers} times {_LOCAL!r} or {_FULL!r}")
    return tuple(kind == _FULL for kind in [*kinds[:-1], _FULL])


def _read_full_heads(
    config: JsonFile, is_full: Sequence[bool], usual: DecoderConfig, *, keys_are_values: bool
) -> HeadSizes:
    """The heads of layers that see all, which files state in one of two ways; raises ModelError."""
    by_layer = config.table("per_layer_config")
    if by_layer is not None:
        return _read_heads_by_layer(by_layer, is_full, usual)
    head_dim = config.integer("global_head_dim", least=2) or _FULL_HEAD_DIM
    num_kv_heads = config.integer("num_global_key_value_heads", least=1) if keys_are_values else None
    return HeadSizes(head_dim=head_dim, num_kv_heads=num_kv_heads or usual.num_kv_heads)


def _read_heads_by_layer(by_layer: JsonFile, is_full: Sequence[bool], usual: DecoderConfig) -> HeadSizes:
    """The same of a table of what layers have of their own, by their numbers, before which there may be zeros."""
    of_all = HeadSizes(head_dim=usual.head_dim, num_kv_heads=usual.num_kv_heads)
    of_kinds = {False: of_all}
    names = {name.lstrip("0") or "0": name for name in by_layer.names}
    for layer, kind in enumerate(is_full):
        name = names.get(str(layer), str(layer))
        stated = by_layer.table(name) or JsonFile(by_layer.path, {})
        others = sorted(key for key in stated.names if key not in _OF_LAYERS and stated.value(key) is not None)
        if others:
            raise by_layer.error(name, f"layers with {others[0]!r} of their own are not served")
        heads = HeadSizes(
            head_dim=stated.integer("head_dim", least=2) or of_all.head_dim,
            num_kv_heads=stated.integer("num_key_value_heads", least=1) or of_all.num_kv_heads,
        )
        if of_kinds.setdefault(kind, heads) != heads:
            raise by_layer.error(name, "layers of a kind must have heads alike, those with a window as stated for all")
    return of_kinds[True]


def _read_rotary(tables: JsonFile, kind: str, head_dim: int, context_length: int) -> Rotary:
    """The rotary embedding of the layers of a kind; raises ModelError."""
    table = tables.table(kind)
    if table is None:
        raise tables.missing(kind)
    if kind_of(table) != "proportional":
        return read_rotary(table, head_dim, context_length, table=table)
    share = table.positive_number("partial_rotary_factor") or 1.0
    if share > 1:
        raise table.error("partial_rotary_factor", "it must be at most 1")
    frequencies = rotary.divided(
        head_dim, table.required_positive_number("rope_theta"), table.positive_number("factor") or 1.0
    ).frequencies
    num_rotated = int(share * head_dim // 2)
    return _of_first(frequencies, num_rotated, head_dim)


def _of_first(frequencies: tuple[float, ...], num_rotated: int, head_dim: int) -> Rotary:
    """The first so many pairs of features with their frequencies, the others without any."""
    return Rotary(frequencies[:num_rotated] + (0.0,) * (head_dim // 2 - num_rotated), 1.0)


def read_gguf(file: GGUFTensors) -> Gemma4Config:
    """The configuration in a GGUF file; raises ModelError."""
    fields, routing, expert_size = file.fields, Routing(), 0
    if fields.value("expert_count"):
        routing = Routing(
            num_experts=fields.required_integer("expert_count", least=1),
            num_picked=fields.required_integer("expert_used_count", least=1),
            normalises_shares=True,
        )
        routing.check()
        expert_size = fields.required_integer("expert_feed_forward_length", least=1)
    num_layers = fields.required_integer("block_count", least=1)
    pattern, key = fields.value("attention.sliding_window_pattern"), "attention.sliding_window_pattern"
    if num_layers > len(file.names):
        raise ModelError(f"the file has {len(file.names)} tensors, too few for {num_layers} layers")
    if not isinstance(pattern, list) or len(pattern) != num_layers or all(pattern):
        raise fields.error(key, f"it must say of each of {num_layers} layers whether it has a window, and of some not")
    is_full = tuple(not each for each in pattern)
    num_shared = gguf_config.read_count(file, "attention.shared_kv_layers")
    if num_shared >= num_layers:
        raise fields.error("attention.shared_kv_layers", f"it must be below the {num_layers} layers")
    first, first_shared = is_full.index(True), num_layers - num_shared
    num_kv_heads = _of_layers(file, "attention.head_count_kv", num_layers)
    inner = _of_layers(file, "feed_forward_length", num_layers)
    local_layer = is_full.index(False) if False in is_full else first
    local = HeadSizes(
        head_dim=fields.required_integer("attention.key_length_swa", least=2), num_kv_heads=num_kv_heads[local_layer]
    )
    full = HeadSizes(
        head_dim=fields.required_integer("attention.key_length", least=2), num_kv_heads=num_kv_heads[first]
    )
    sizes = gguf_config.read_sizes_of(file, num_kv_heads=local.num_kv_heads, intermediate_size=inner[0])
    local_rotary = rotary.plain(local.head_dim, fields.positive_number("rope.freq_base_swa") or 10_000.0)
    usual = gguf_config.decoder_of(file, sizes, local_rotary)
    wide = inner[first_shared] if num_shared else inner[0]
    return made(
        usual, is_full, local, full, (local_rotary, _read_full_rotary(file, full.head_dim)),
        window=fields.required_integer("attention.sliding_window", least=1),
        keys_are_values=f"blk.{first}.attn_v.weight" not in file.names, num_shared=num_shared,
        wide_size=wide if wide != inner[0] else 0,
        layer_size=gguf_config.read_count(file, "embedding_length_per_layer_input"),
        softcap=fields.positive_number("final_logit_softcapping"), routing=routing, expert_size=expert_size,
    )  # fmt: skip


def _of_layers(file: GGUFTensors, key: str, num_layers: int) -> list[int]:
    """A size of each layer, which a file may state once for all; raises ModelError."""
    value = file.fields.value(key)
    if not isinstance(value, list):
        return [file.fields.required_integer(key, least=1)] * num_layers
    if len(value) != num_layers or any(not isinstance(each, int) or not 0 < each < 1 << 31 for each in value):
        raise file.fields.error(key, f"it must list {num_layers} sizes above 0")
    return value


def _read_full_rotary(file: GGUFTensors, head_dim: int) -> Rotary:
    frequencies = rotary.plain(head_dim, file.fields.positive_number("rope.freq_base") or 1_000_000.0).frequencies
    if FACTORS not in file.names:
        return Rotary(frequencies, 1.0)
    factors = read_factors(file, FACTORS, head_dim)
    divided = (frequency / factor for frequency, factor in zip(frequencies, factors, strict=True))
    num_rotated = sum(factor < _LARGEST_FACTOR for factor in factors)
    return _of_first(tuple(divided), num_rotated, head_dim)


def made(
    usual: DecoderConfig, is_full: tuple[bool, ...], local: HeadSizes, full: HeadSizes,
    rotaries: tuple[Rotary, Rotary], *, window: int, keys_are_values: bool, num_shared: int, wide_size: int,
    layer_size: int, softcap: float | None, routing: Routing, expert_size: int,
) -> Gemma4Config:  # fmt: skip
    """Raises ModelError if heads cannot share keys evenly, or a shared layer has none before it to share with."""
    num_paged = usual.num_layers - num_shared
    if num_paged < 1 or set(is_full[num_paged:]) - set(is_full[:num_paged]):
        raise ModelError(f"{num_shared} of {usual.num_layers} layers share keys and values that no other layer makes")
    for heads in (local, full):
        if usual.num_heads % heads.num_kv_heads:
            raise ModelError(f"{usual.num_heads} heads cannot share {heads.num_kv_heads} heads of keys evenly")
    most = max(local.num_kv_heads, full.num_kv_heads)
    if most % min(local.num_kv_heads, full.num_kv_heads):
        raise ModelError(f"layers with {local.num_kv_heads} and {full.num_kv_heads} heads of keys have no common pages")
    head_dim = max(local.head_dim, full.head_dim)
    usual = replace(
        usual, head_dim=head_dim, num_kv_heads=most, rotary=tuple(_widened(each, head_dim) for each in rotaries),
        tables=tuple(map(int, is_full[:num_paged])),
        windows=tuple(0 if each else window for each in is_full[:num_paged]),
        attention_scale=1.0, embedding_scale=usual.hidden_size**0.5, activation=Activation.GELU_TANH,
        logit_softcap=softcap or 0.0, has_qkv_bias=False, has_attention_output_bias=False, has_mlp_bias=False,
    )  # fmt: skip
    return Gemma4Config(
        **vars(usual), is_full=is_full, local=local, full=full, keys_are_values=keys_are_values, num_shared=num_shared,
        wide_size=wide_size, layer_size=layer_size, routing=routing, expert_size=expert_size,
    )  # fmt: skip


def _widened(table: Rotary, head_dim: int) -> Rotary:
    """For heads of so many features, of which the first of each half are rotated."""
    return replace(table, frequencies=table.frequencies + (0.0,) * (head_dim // 2 - len(table.frequencies)))
