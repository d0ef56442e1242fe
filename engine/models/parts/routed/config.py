"""Reads how experts are routed in models that have shared experts, and layers without any."""

from collections.abc import Sequence
from dataclasses import replace

from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.experts import ExpertsConfig, with_experts
from engine.models.parts.routing import Routing, Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_SCORINGS = {1: Scoring.SOFTMAX, 2: Scoring.SIGMOID}  # by their numbers in GGUF files


def read_folder(
    config: JsonFile, usual: DecoderConfig, *, scoring: Scoring = Scoring.SIGMOID, has_choice_bias: bool = True,
    normalises_shares: bool = True, experts_key: str = "n_routed_experts", picked_key: str = "num_experts_per_tok",
    shared_key: str = "n_shared_experts", dense_layers: Sequence[int] | None = None,
) -> ExpertsConfig:  # fmt: skip
    """The fields of `config.json` by the names that most of these models give them; raises ModelError.

    Args:
        normalises_shares: what holds where the configuration does not say.
        dense_layers: the layers without experts; None: those that `mlp_layer_types` names, or else the first ones, as
            `first_k_dense_replace` says.
    """
    routing = Routing(
        num_experts=config.required_integer(experts_key, least=1),
        num_picked=config.required_integer(picked_key, least=1),
        normalises_shares=folder_config.read_flag(config, "norm_topk_prob", normalises_shares),
        scoring=scoring,
        has_choice_bias=has_choice_bias,
        num_groups=config.integer("n_group", least=1) or 1,
        num_picked_groups=config.integer("topk_group", least=1) or 1,
        share_scale=config.positive_number("routed_scaling_factor") or 1.0,
    )
    dense_layers = read_kinds(config, usual.num_layers) if dense_layers is None else dense_layers
    if dense_layers is None:
        num_dense = config.integer("first_k_dense_replace", least=0) or 0
        dense_layers = range(min(num_dense, usual.num_layers))
        if len(dense_layers) == usual.num_layers:
            raise config.error("first_k_dense_replace", f"it must be below the {usual.num_layers} layers")
    inner = config.required_integer("moe_intermediate_size", least=1)
    shared_size = inner * (config.integer(shared_key, least=0) or 0)
    return with_shared(usual, routing, inner=inner, shared_size=shared_size, dense_layers=dense_layers)


def read_kinds(config: JsonFile, num_layers: int) -> Sequence[int] | None:
    """The layers that `mlp_layer_types` calls dense; None where it is absent. Raises ModelError."""
    kinds, known = config.value("mlp_layer_types"), ("dense", "sparse")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise config.error("mlp_layer_types", f"it must list {num_layers} times {known[0]!r} or {known[1]!r}")
    if "sparse" not in kinds:
        raise config.error("mlp_layer_types", "no layer has experts")
    return [layer for layer, kind in enumerate(kinds) if kind == "dense"]


def read_gguf(
    file: GGUFTensors, usual: DecoderConfig, *, scoring: Scoring = Scoring.SIGMOID, normalises_shares: bool = False,
    first: int | None = None,
) -> ExpertsConfig:  # fmt: skip
    """The same of a GGUF file; raises ModelError.

    Args:
        scoring, normalises_shares: what holds where the file does not say.
        first: a layer that has experts; None: the first one that the fields do not call dense.
    """
    fields, num_layers = file.fields, usual.num_layers
    num_dense = gguf_config.read_count(file, "leading_dense_block_count")
    step = fields.integer("interleave_moe_layer_step") or 1
    dense_layers = [layer for layer in range(num_layers) if layer < num_dense or (layer + 1) % step]
    if len(dense_layers) == num_layers:
        raise ModelError(f"none of the {num_layers} layers has experts")
    if first is None:
        first = next(layer for layer in range(num_layers) if layer not in frozenset(dense_layers))
    normalises = fields.flag("expert_weights_norm")
    routing = Routing(
        num_experts=fields.required_integer("expert_count", least=1),
        num_picked=fields.required_integer("expert_used_count", least=1),
        normalises_shares=normalises_shares if normalises is None else normalises,
        scoring=_read_scoring(file, scoring),
        has_choice_bias=f"blk.{first}.exp_probs_b.bias" in file.names,
        num_groups=gguf_config.read_count(file, "expert_group_count") or 1,
        num_picked_groups=gguf_config.read_count(file, "expert_group_used_count") or 1,
        # As in llama.cpp, 0 stands for none.
        share_scale=gguf_config.read_multiplier(file, "expert_weights_scale")
        if fields.value("expert_weights_scale")
        else 1.0,
    )
    inner = fields.integer("expert_feed_forward_length") or usual.intermediate_size
    # The fields for shared experts count them in several ways; the matrix has them all.
    shared = file.tensor(f"blk.{first}.ffn_up_shexp.weight")
    return with_shared(
        usual, routing, inner=inner, shared_size=0 if shared is None else shared.shape[0], dense_layers=dense_layers
    )


def with_shared(
    usual: DecoderConfig, routing: Routing, *, inner: int, shared_size: int, dense_layers: Sequence[int] = ()
) -> ExpertsConfig:
    """A configuration with experts of the size `inner`, beside which shared ones have no gate; raises ModelError."""
    made = with_experts(replace(usual, intermediate_size=inner), routing)
    dense_size = usual.intermediate_size if dense_layers else 0
    return replace(
        made, shared_size=shared_size, has_shared_gate=False, dense_layers=tuple(dense_layers), dense_size=dense_size
    )


def _read_scoring(file: GGUFTensors, default: Scoring) -> Scoring:
    number = gguf_config.read_count(file, "expert_gating_func")
    if number == 0:
        return default
    if number not in _SCORINGS:
        raise file.fields.error("expert_gating_func", "it must be 1 (softmax) or 2 (sigmoid)")
    return _SCORINGS[number]
