"""What `config.json` of each architecture may say beside what the goldens say, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from engine.client import EngineClient
from engine.interface.config import EngineConfig
from engine.interface.errors import ModelError
from engine.models.architectures.latent.deepseek32 import IndexSizes
from engine.models.open_model import OpenModel, open_model
from engine.models.parts.rotary import divided, longrope_magnitude, plain
from tests.golden.architectures.tiny_weights import tiny_weights

FOLDER = Path(__file__).parents[2] / "golden" / "architectures"
SHORT, LONG = [1.0, 1.0, 1.1, 1.2, 1.3, 1.5], [1.0, 1.5, 2.0, 3.5, 5.0, 8.0]
SU = {"type": "su", "short_factor": SHORT, "long_factor": LONG}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def opened(folder: Path, name: str, changes: dict[str, Any], left_out: tuple[str, ...] = ()) -> OpenModel:
    """The model of a golden with another configuration; `left_out` are keys that it does not have."""
    golden = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    config = {key: value for key, value in (golden["config"] | changes).items() if key not in left_out}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = tiny_weights(config["architectures"][0], golden["shapes"], golden["seed"])
    save_file(tensors, folder / "model.safetensors")
    return open_model(folder)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama_three_one", {"rope_theta": 500.0, "rope_scaling": LLAMA3}),
        ("llama_linear_biases_tied", {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.5}}),
        ("phi3_long", {"rope_theta": 500.0, "partial_rotary_factor": 0.75, "rope_scaling": SU}),
        ("smollm3", {"rope_theta": 5000.0, "layer_types": None, "no_rope_layers": None}),
        ("mistral", {"rope_theta": 5000.0, "rope_scaling": None}),
    ],
)  # fmt: skip
def test_older_spellings_mean_the_same(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    """`rope_theta`, `rope_scaling` and `partial_rotary_factor` stood side by side before transformers 5."""
    assert opened(tmp_path, name, changes, ("rope_parameters",)).model == opened(tmp_path, name, {}).model


@pytest.mark.parametrize(
    ("name", "changes", "left_out", "expected"),
    [
        ("mistral", {}, ("sliding_window",), {"windows": (4096,) * 3}),
        ("mistral", {"sliding_window": None}, (), {"windows": (0,) * 3}),
        ("ministral", {}, ("layer_types",), {"windows": (30,) * 3}),
        ("qwen2_windows", {"use_sliding_window": False}, (), {"windows": (0,) * 3}),
        ("qwen2_windows", {"max_window_layers": 2}, ("layer_types",), {"windows": (0, 0, 25)}),
        ("smollm3", {"no_rope_layer_interval": 2}, ("no_rope_layers",), {"tables": (0, -1, 0, -1)}),
        ("smollm3", {}, ("tie_word_embeddings",), {"has_output": False}),
        ("deepseek_v32", {}, (), {"context_length": 512, "index": IndexSizes(2, 32, 128)}),
        ("deepseek_v32", {}, ("index_topk",), {"index": IndexSizes(2, 32, 2048)}),
        ("olmo", {}, ("clip_qkv",), {"qkv_limit": 0.0}),
        ("smollm3", {}, ("rope_parameters",), {"rotary": (plain(16, 2000000.0),)}),
        ("granite", {}, ("logits_scaling", "residual_multiplier"), {"logit_scale": 1.0, "residual_scale": 1.0}),
        ("ministral3", {"rope_parameters": {"type": "default"}}, (), {"query_growth": 0.0}),
        (  # stretches nothing within the context that is served
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 4.0}},
            (),
            {"rotary": (plain(32, 5000.0),), "context_length": 512},
        ),
    ],
)
def test_what_a_configuration_leaves_out(
    tmp_path: Path, name: str, changes: dict[str, Any], left_out: tuple[str, ...], expected: dict[str, Any]
) -> None:
    config = opened(tmp_path, name, changes, left_out).config
    assert {key: getattr(config, key) for key in expected} == expected


def test_long_factors_are_for_contexts_above_the_original(tmp_path: Path) -> None:
    model = opened(tmp_path, "phi3_short", {}).model  # of 512 tokens, 128 of them original
    magnitude = longrope_magnitude(4, 128)
    short = divided(12, 500.0, SHORT, magnitude)
    long = divided(12, 500.0, LONG, magnitude)
    assert model.config.rotary == (long,)
    assert model.for_context(128).config.rotary == (short,)
    assert model.for_context(128).for_context(129) == model


def test_contexts_that_an_index_picks_whole_are_served_without_it(tmp_path: Path) -> None:
    whole = opened(tmp_path, "deepseek_v32", {})  # of 512 tokens, of which it picks 128
    picked = whole.laid_out_for(128)
    short, long = picked.model, whole.laid_out_for(129).model
    assert long == whole.model
    assert long.for_context(100) == long  # its pages are laid out
    size = {each.config.head_dim for each in (short, long)}
    assert size == {80, 112}
    in_model = {leaf.name for leaf in long.leaves()} - {leaf.name for leaf in short.leaves()}
    read = {leaf.name for leaf in whole.tensors.leaves} - {leaf.name for leaf in picked.tensors.leaves}
    assert in_model == read == {"index_key", "index_norm", "index_norm_bias", "index_queries", "index_weights"}
    less, more = (EngineClient.footprint(whole.path, EngineConfig(max_model_len=most)) for most in (128, 129))
    assert less.weight_bytes < more.weight_bytes
    assert less.kv_bytes_per_token < more.kv_bytes_per_token


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("ministral", {"layer_types": ["full_attention"]}, "layer_types is .*; it must list 3 times"),
        ("ministral", {"layer_types": ["full_attention", "mixed", "full_attention"]}, "'sliding_attention' or 'full_"),
        ("ministral", {"sliding_window": None}, "lacks sliding_window"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0; it must be an integer from 1"),
        ("smollm3", {"no_rope_layers": [1, 0]}, r"no_rope_layers is \[1, 0\]; it must list 0 or 1 for each of 4"),
        ("smollm3", {"no_rope_layers": [1, 0, 2, 1]}, "it must list 0 or 1"),
        ("granite", {"residual_multiplier": 0}, "residual_multiplier is 0; it must be a number above 0"),
        ("phi3_long", {"rope_parameters": {"type": "longrope", "short_factor": [1.0] * 8}}, "lacks long_factor"),
        ("phi3_long", {"rope_parameters": {"type": "longrope", "short_factor": [1.0]}}, "must list 8 numbers above 0"),
        ("phi3_long", {"rope_parameters": {"type": "su", "short_factor": [1.0] * 7 + [0.0]}}, "short_factor is"),
        ("phi3", {"partial_rotary_factor": 0.2, "rope_parameters": {}}, "it must make an even part of 16 features"),
        ("phi3", {"partial_rotary_factor": 1.5, "rope_parameters": {}}, "partial_rotary_factor is 1.5"),
        ("phi3", {"rope_parameters": {"rope_type": "ntk"}}, 'rope_type is "ntk"; rotary scaling is served of'),
        ("phi3", {"num_key_value_heads": 4}, r"qkv_proj.weight has shape \(128, 64\), expected \(64, 64\)"),
        ("deepseek_v32", {"index_topk": 0}, "index_topk is 0"),
        ("deepseek_v32", {"index_head_dim": 8}, "index_head_dim is 8; it must be at least 16"),
        ("deepseek_v32", {"index_n_heads": 1 << 31}, "index_n_heads is 2147483648"),
        ("minicpm3", {"original_max_position_embeddings": 128}, "contexts of 512 tokens, beyond the 128"),
        (
            "hunyuan_dense",
            {"rope_parameters": {"rope_type": "dynamic", "alpha": 1e308}},
            r"alpha is 1e\+308; it is too",
        ),
        ("stablelm", {"rope_parameters": {"partial_rotary_factor": 1e308}}, r"partial_rotary_factor is 1e\+308"),
        ("kimi_linear", {"num_attention_heads": 4_000_012}, "num_attention_heads is 4000012; it must be an integer"),
        ("deepseek_v3", {"num_attention_heads": 1 << 31}, "num_attention_heads is 2147483648"),
        ("olmo", {"clip_qkv": -1}, "clip_qkv is -1"),
        ("mamba", {"time_step_rank": 0}, "time_step_rank is 0"),
        ("mamba", {"expand": 65}, "expand is 65"),
        ("gpt_bigcode", {"multi_query": False}, r"c_attn.weight has shape \(96, 64\)"),
        ("bailing_moe", {"norm_head": True}, "norm_head is true"),
        ("bailing_moe", {"use_qkv_bias": True}, "use_qkv_bias is true"),
        ("qwen3", {"model_type": "qwen2"}, 'model_type is "qwen2"; of this architecture it must be "qwen3"'),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        opened(tmp_path, name, changes)
