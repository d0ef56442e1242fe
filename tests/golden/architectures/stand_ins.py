"""What computes the models that transformers has no class for: classes of others that compute the same, or a plain one.

Bailing's, ChatGLM's, CodeShell's, DeepSeek's first, EXAONE's, InternLM2's, Maincoder's, MiniCPM's, Nanbeige's, Orion's,
Pangu's, Qwen's first and XVERSE's code, which their makers publish beside the weights, computes what GLM, GLM 4.5,
Granite, Hunyuan, Llama, Qwen2, its mixtures, StableLM and Starcoder 2 compute of the same tensors by other names, and
Refact's what Baichuan's does. SmallThinker's is written here once more.
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save_file
from torch.nn.functional import linear, relu, rms_norm, silu
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.step3p7 import modeling_step3p7

from tests.golden.architectures.alibi import Baichuan, Jais, baichuan_shapes, jais_shapes
from tests.golden.architectures.plamo import Plamo, plamo_shapes

Tensors = dict[str, torch.Tensor]
Config = Mapping[str, Any]


class StandIn(NamedTuple):
    """What computes the models of a class that transformers does not have."""

    model_type: str
    shapes: Callable[[Config], dict[str, list[int]]]  # of a checkpoint's tensors
    load: Callable[[Tensors, Config, Path], Any]  # from a checkpoint's tensors, by way of a folder


def bailing_shapes(config: Config) -> dict[str, list[int]]:
    hidden = config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    is_second = "use_qk_norm" in config
    shapes = _outside_layers(config, "model.word_embeddings.weight", "lm_head.weight")
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        joined = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * head_dim
        shapes |= {
            f"{before}input_layernorm.weight": [hidden], f"{before}post_attention_layernorm.weight": [hidden],
            f"{before}attention.query_key_value.weight": [joined, hidden],
            f"{before}attention.dense.weight": [hidden, config["num_attention_heads"] * head_dim],
        }  # fmt: skip
        if is_second:
            shapes |= {f"{before}attention.{kind}_layernorm.weight": [head_dim] for kind in ("query", "key")}
        if layer < config["first_k_dense_replace"]:
            shapes |= _block(f"{before}mlp.", hidden, config["intermediate_size"])
            continue
        inner, count = config["moe_intermediate_size"], config["num_experts"]
        shapes[f"{before}mlp.gate.weight"] = [count, hidden]
        if is_second:
            shapes[f"{before}mlp.gate.expert_bias"] = [count]
        shapes |= _block(f"{before}mlp.shared_experts.", hidden, inner * config["num_shared_experts"])
        for expert in range(count):
            shapes |= _block(f"{before}mlp.experts.{expert}.", hidden, inner)
    return shapes


def load_bailing(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As GLM 4.5 with norms of queries and keys."""
    sizes = [config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value", "key_value")]
    names = {
        "model.word_embeddings": "model.embed_tokens", "attention.query_layernorm": "self_attn.q_norm",
        "attention.key_layernorm": "self_attn.k_norm", "attention.dense": "self_attn.o_proj",
        "gate.expert_bias": "gate.e_score_correction_bias",
    }  # fmt: skip
    changed = _split(tensors, "attention.query_key_value", lambda joined: torch.split(joined, sizes))
    same = {
        **config, "n_routed_experts": config["num_experts"], "n_shared_experts": config["num_shared_experts"],
        "rope_parameters": {
            "rope_type": "default", "rope_theta": config["rope_theta"],
            "partial_rotary_factor": config["partial_rotary_factor"],
        },
    }  # fmt: skip
    return _loaded("Glm4MoeForCausalLM", same, _renamed(changed, names), folder)


def internlm2_shapes(config: Config) -> dict[str, list[int]]:
    hidden, heads, inner = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
    joined = (heads + 2 * config["num_key_value_heads"]) * (hidden // heads)
    shapes = _outside_layers(config, "model.tok_embeddings.weight", "output.weight")
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        shapes |= {
            f"{before}attention_norm.weight": [hidden], f"{before}ffn_norm.weight": [hidden],
            f"{before}attention.wqkv.weight": [joined, hidden], f"{before}attention.wqkv.bias": [joined],
            f"{before}attention.wo.weight": [hidden, hidden], f"{before}attention.wo.bias": [hidden],
            f"{before}feed_forward.w1.weight": [inner, hidden], f"{before}feed_forward.w2.weight": [hidden, inner],
            f"{before}feed_forward.w3.weight": [inner, hidden],
        }  # fmt: skip
    return shapes


def load_internlm2(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As Llama; heads that share keys stand together with their keys and values."""
    groups, head_dim = config["num_key_value_heads"], config["hidden_size"] // config["num_attention_heads"]

    def parts(joined: torch.Tensor) -> list[torch.Tensor]:
        by_group = joined.reshape(groups, -1, head_dim, *joined.shape[1:])
        cut = by_group.shape[1] - 2
        parts = (by_group[:, :cut], by_group[:, cut], by_group[:, cut + 1])
        return [part.reshape(-1, *joined.shape[1:]).contiguous() for part in parts]

    names = {
        "model.tok_embeddings": "model.embed_tokens", "attention.wo": "self_attn.o_proj", "output.": "lm_head.",
        "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
    }  # fmt: skip
    same = {**config, "attention_bias": config["bias"], "rope_parameters": _rotation(config)}
    return _loaded("LlamaForCausalLM", same, _renamed(_split(tensors, "attention.wqkv", parts), names), folder)


def load_first_bailing(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As Granite's mixtures with shared experts."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config["hidden_size"] // heads
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    changed = _split(tensors, "attention.query_key_value", lambda joined: torch.split(joined, sizes))
    names = {
        "model.word_embeddings": "model.embed_tokens", "attention.dense": "self_attn.o_proj",
        "mlp.gate.": "block_sparse_moe.router.layer.", "mlp.shared_experts.down_proj": "shared_mlp.output_linear",
    }  # fmt: skip
    changed = _renamed(changed, names)
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        shared = [changed.pop(f"{before}mlp.shared_experts.{kind}_proj.weight") for kind in ("gate", "up")]
        gates, ups, downs = (
            [changed.pop(f"{before}mlp.experts.{expert}.{kind}_proj.weight") for expert in range(config["num_experts"])]
            for kind in ("gate", "up", "down")
        )
        changed |= {
            f"{before}shared_mlp.input_linear.weight": torch.cat(shared),
            f"{before}block_sparse_moe.input_linear.weight": torch.cat([torch.stack(gates), torch.stack(ups)], dim=1),
            f"{before}block_sparse_moe.output_linear.weight": torch.stack(downs),
        }
    inner = config["moe_intermediate_size"]
    same = {
        **config, "num_local_experts": config["num_experts"], "intermediate_size": inner,
        "shared_intermediate_size": inner * config["num_shared_experts"], "attention_multiplier": head_dim**-0.5,
        "rope_parameters": _rotation(config),
    }  # fmt: skip
    return _loaded("GraniteMoeSharedForCausalLM", same, changed, folder)


def orion_shapes(config: Config) -> dict[str, list[int]]:
    shapes = minicpm_shapes(config)
    return shapes | {name.replace(".weight", ".bias"): shape for name, shape in shapes.items() if "norm." in name}


def load_orion(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As StableLM with a rotation of whole heads."""
    rotation = {**_rotation(config), "partial_rotary_factor": 1.0}
    same = {**config, "layer_norm_eps": config["rms_norm_eps"], "rope_parameters": rotation, "use_qkv_bias": False}
    return _loaded("StableLmForCausalLM", same, tensors, folder)


def load_xverse(tensors: Tensors, config: Config, folder: Path) -> Any:
    return _loaded("LlamaForCausalLM", {**config, "rope_parameters": _rotation(config)}, tensors, folder)


def exaone_shapes(config: Config) -> dict[str, list[int]]:
    hidden, head_dim, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    shapes = {
        "transformer.wte.weight": [config["vocab_size"], hidden], "lm_head.weight": [config["vocab_size"], hidden],
        "transformer.ln_f.weight": [hidden],
    }  # fmt: skip
    for layer in range(config["num_layers"]):
        before = f"transformer.h.{layer}."
        shapes |= {
            f"{before}ln_1.weight": [hidden], f"{before}ln_2.weight": [hidden],
            f"{before}attn.attention.q_proj.weight": [heads * head_dim, hidden],
            f"{before}attn.attention.k_proj.weight": [kv_heads * head_dim, hidden],
            f"{before}attn.attention.v_proj.weight": [kv_heads * head_dim, hidden],
            f"{before}attn.attention.out_proj.weight": [hidden, heads * head_dim],
            f"{before}mlp.c_fc_0.weight": [inner, hidden], f"{before}mlp.c_fc_1.weight": [inner, hidden],
            f"{before}mlp.c_proj.weight": [hidden, inner],
        }  # fmt: skip
    return shapes


def load_exaone(tensors: Tensors, config: Config, folder: Path) -> Any:
    names = {
        "transformer.wte": "model.embed_tokens", "transformer.ln_f": "model.norm", "transformer.h": "model.layers",
        "attn.attention.out_proj": "self_attn.o_proj", "attn.attention": "self_attn", "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm", "c_fc_0": "gate_proj", "c_fc_1": "up_proj", "mlp.c_proj": "mlp.down_proj",
    }  # fmt: skip
    same = {
        **config, "num_hidden_layers": config["num_layers"], "rms_norm_eps": config["layer_norm_epsilon"],
        "hidden_act": config["activation_function"],
        "rope_parameters": {**config["rope_scaling"], "rope_theta": config["rope_theta"]},
    }  # fmt: skip
    return _loaded("LlamaForCausalLM", same, _renamed(tensors, names), folder)


def minicpm_shapes(config: Config) -> dict[str, list[int]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_size = config["num_key_value_heads"] * hidden // heads
    shapes = _outside_layers(config, "model.embed_tokens.weight", "lm_head.weight")
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        shapes |= {f"{before}input_layernorm.weight": [hidden], f"{before}post_attention_layernorm.weight": [hidden]}
        for kind, size in {"q": hidden, "k": kv_size, "v": kv_size, "o": hidden}.items():
            shapes[f"{before}self_attn.{kind}_proj.weight"] = [size, hidden]
        shapes |= _block(f"{before}mlp.", hidden, config["intermediate_size"])
    return shapes


def load_minicpm(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As Granite."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    same = {
        **config, "embedding_multiplier": config["scale_emb"],
        "residual_multiplier": config["scale_depth"] / layers**0.5,
        "attention_multiplier": (hidden // config["num_attention_heads"]) ** -0.5,
        "logits_scaling": hidden / config["dim_model_base"], "rope_parameters": _rotation(config),
    }  # fmt: skip
    return _loaded("GraniteForCausalLM", same, tensors, folder)


def deepseek_shapes(config: Config) -> dict[str, list[int]]:
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    shapes = minicpm_shapes(config)
    for layer in range(config["first_k_dense_replace"], config["num_hidden_layers"]):
        before = f"model.layers.{layer}.mlp."
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(before)}
        shapes[f"{before}gate.weight"] = [config["n_routed_experts"], hidden]
        shapes |= _block(f"{before}shared_experts.", hidden, inner * config["n_shared_experts"])
        for expert in range(config["n_routed_experts"]):
            shapes |= _block(f"{before}experts.{expert}.", hidden, inner)
    return shapes


def load_deepseek(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As Qwen2's mixtures, whose gate of the shared expert, of zeros, halves what that makes twice."""
    changed = _renamed(tensors, {"mlp.shared_experts": "mlp.shared_expert"})
    for layer in range(config["first_k_dense_replace"], config["num_hidden_layers"]):
        before = f"model.layers.{layer}.mlp."
        changed[f"{before}shared_expert_gate.weight"] = torch.zeros(1, config["hidden_size"])
        changed[f"{before}shared_expert.down_proj.weight"] = changed[f"{before}shared_expert.down_proj.weight"] * 2
    same = {
        **config, "num_experts": config["n_routed_experts"], "qkv_bias": False,
        "shared_expert_intermediate_size": config["moe_intermediate_size"] * config["n_shared_experts"],
        "mlp_only_layers": list(range(config["first_k_dense_replace"])), "rope_parameters": _rotation(config),
    }  # fmt: skip
    return _loaded("Qwen2MoeForCausalLM", same, changed, folder)


def maincoder_shapes(config: Config) -> dict[str, list[int]]:
    hidden, head_dim, inner = config["hidden_size"], config["head_dim"], config["intermediate_size_mlp"]
    sizes = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    shapes = _outside_layers(config, "model.embed_tokens.weight", "lm_head.weight")
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        shapes |= {f"{before}input_layernorm.weight": [hidden], f"{before}post_attention_layernorm.weight": [hidden]}
        shapes |= {f"{before}self_attn.{kind}_proj.weight": [size * head_dim, hidden] for kind, size in sizes.items()}
        shapes |= {f"{before}self_attn.{kind}_norm.weight": [head_dim] for kind in "qk"}
        shapes[f"{before}self_attn.o_proj.weight"] = [hidden, sizes["q"] * head_dim]
        shapes |= _block(f"{before}feed_forward.", hidden, inner)
    return shapes


def load_maincoder(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As Hunyuan, whose rotation is one of halves."""
    names = {
        "feed_forward": "mlp", "self_attn.q_norm": "self_attn.query_layernorm",
        "self_attn.k_norm": "self_attn.key_layernorm",
    }  # fmt: skip
    changed: Tensors = {}
    for name, values in tensors.items():
        if any(kind in name for kind in ("q_proj", "k_proj", "q_norm", "k_norm")):
            pairs = values.reshape(-1, config["head_dim"] // 2, 2, *values.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(values.shape).contiguous()
        changed[name] = values
    same = {
        **config, "intermediate_size": config["intermediate_size_mlp"], "rope_parameters": _rotation(config),
    }  # fmt: skip
    return _loaded("HunYuanDenseV1ForCausalLM", same, _renamed(changed, names), folder)


def qwen_shapes(config: Config) -> dict[str, list[int]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"] // 2
    size, vocab = config["num_attention_heads"] * config["kv_channels"], [config["vocab_size"], config["hidden_size"]]
    shapes = {"transformer.wte.weight": vocab, "lm_head.weight": vocab, "transformer.ln_f.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        before = f"transformer.h.{layer}."
        shapes |= {
            f"{before}ln_1.weight": [hidden], f"{before}ln_2.weight": [hidden],
            f"{before}attn.c_attn.weight": [3 * size, hidden], f"{before}attn.c_attn.bias": [3 * size],
            f"{before}attn.c_proj.weight": [hidden, size], f"{before}mlp.w1.weight": [inner, hidden],
            f"{before}mlp.w2.weight": [inner, hidden], f"{before}mlp.c_proj.weight": [hidden, inner],
        }  # fmt: skip
    return shapes


def load_qwen(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As Qwen2, with a head of keys for each of queries."""
    names = {
        "transformer.wte": "model.embed_tokens", "transformer.h": "model.layers", "transformer.ln_f": "model.norm",
        "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.c_proj": "self_attn.o_proj",
        "mlp.w2": "mlp.gate_proj", "mlp.w1": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj",
    }  # fmt: skip
    changed = _split(tensors, "attn.c_attn", lambda packed: torch.chunk(packed, 3))
    same = {
        **config, "intermediate_size": config["intermediate_size"] // 2, "head_dim": config["kv_channels"],
        "num_key_value_heads": config["num_attention_heads"], "rms_norm_eps": config["layer_norm_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rotary_emb_base"]},
    }  # fmt: skip
    return _loaded("Qwen2ForCausalLM", same, _renamed(changed, names), folder)


def nanbeige_shapes(config: Config) -> dict[str, list[int]]:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    sizes = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    shapes = minicpm_shapes(config)
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}.self_attn."
        shapes |= {f"{before}{kind}_proj.weight": [size * head_dim, hidden] for kind, size in sizes.items()}
        shapes[f"{before}o_proj.weight"] = [hidden, sizes["q"] * head_dim]
    return shapes


class Nanbeige:
    """Logits of a text, by Llama of transformers, which reads again what its last norm makes."""

    def __init__(self, tensors: Tensors, config: Config, folder: Path) -> None:
        same = {**config, "rope_parameters": _rotation(config)}
        self.llama = _loaded("LlamaForCausalLM", same, tensors, folder)
        self.num_loops = config["num_loops"]

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        x = self.llama.model.embed_tokens(input_ids)
        for _ in range(self.num_loops):
            x = self.llama.model(inputs_embeds=x, use_cache=False).last_hidden_state
        return SimpleNamespace(logits=self.llama.lm_head(x))


def smallthinker_shapes(config: Config) -> dict[str, list[int]]:
    hidden, head_dim, inner = config["hidden_size"], config["head_dim"], config["moe_ffn_hidden_size"]
    sizes = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    shapes = _outside_layers(config, "model.embed_tokens.weight", "lm_head.weight")
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        shapes |= {f"{before}input_layernorm.weight": [hidden], f"{before}post_attention_layernorm.weight": [hidden]}
        shapes |= {f"{before}self_attn.{kind}_proj.weight": [size * head_dim, hidden] for kind, size in sizes.items()}
        shapes[f"{before}self_attn.o_proj.weight"] = [hidden, sizes["q"] * head_dim]
        shapes[f"{before}block_sparse_moe.primary_router.weight"] = [config["moe_num_primary_experts"], hidden]
        for expert in range(config["moe_num_primary_experts"]):
            of_expert = _block(f"{before}block_sparse_moe.experts.{expert}.", hidden, inner)
            shapes |= {name.replace("_proj", ""): shape for name, shape in of_expert.items()}
    return shapes


class SmallThinker:
    """Logits of a text; as the maker's code, of which no line is here."""

    def __init__(self, tensors: Tensors, config: Config, folder: Path) -> None:
        self.tensors, self.config = tensors, config

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        x = self.tensors["model.embed_tokens.weight"][input_ids[0]]
        for layer in range(self.config["num_hidden_layers"]):
            scores = self._product(x, layer, "block_sparse_moe.primary_router")  # of what the layer begins with
            x = x + self._attended(self._normed(x, f"model.layers.{layer}.input_layernorm"), layer)
            x = x + self._mixed(self._normed(x, f"model.layers.{layer}.post_attention_layernorm"), scores, layer)
        return SimpleNamespace(logits=linear(self._normed(x, "model.norm"), self.tensors["lm_head.weight"])[None])

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])

    def _product(self, x: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        return linear(x, self.tensors[f"model.layers.{layer}.{name}.weight"])

    def _attended(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        config, length = self.config, len(x)
        q, k, v = (
            self._product(x, layer, f"self_attn.{kind}_proj").reshape(length, -1, config["head_dim"]).swapaxes(0, 1)
            for kind in ("q", "k", "v")
        )
        if config["rope_layout"][layer]:
            q, k = self._rotated(q), self._rotated(k)
        shared = len(q) // len(k)
        k, v = k.repeat_interleave(shared, dim=0), v.repeat_interleave(shared, dim=0)
        distance = torch.arange(length)[:, None] - torch.arange(length)
        is_seen = distance >= 0
        if config["sliding_window_layout"][layer]:
            is_seen &= distance < config["sliding_window_size"]
        scores = (q @ k.swapaxes(1, 2) / math.sqrt(config["head_dim"])).masked_fill(~is_seen, -math.inf)
        mixed = (scores.softmax(dim=-1) @ v).swapaxes(0, 1).reshape(length, -1)
        return self._product(mixed, layer, "self_attn.o_proj")

    def _rotated(self, heads: torch.Tensor) -> torch.Tensor:
        half = heads.shape[-1] // 2
        frequencies = self.config["rope_theta"] ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.arange(heads.shape[1], dtype=torch.float32)[:, None] * frequencies
        first, second = heads[..., :half], heads[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def _mixed(self, x: torch.Tensor, scores: torch.Tensor, layer: int) -> torch.Tensor:
        best, picks = scores.topk(self.config["moe_num_active_primary_experts"], dim=-1)
        if self.config["moe_primary_router_apply_softmax"]:
            shares = best.softmax(dim=-1)
        else:
            shares = best.sigmoid() / best.sigmoid().sum(dim=-1, keepdim=True)
        total = torch.zeros_like(x)
        for expert in range(self.config["moe_num_primary_experts"]):
            tokens, places = torch.where(picks == expert)
            before = f"block_sparse_moe.experts.{expert}."
            gate, up = (self._product(x[tokens], layer, before + kind) for kind in ("gate", "up"))
            made = self._product(relu(gate) * up, layer, f"{before}down")
            total[tokens] += shares[tokens, places, None] * made
        return total


def load_baichuan(tensors: Tensors, config: Config, folder: Path) -> Any:
    """With a rotation as Llama; of 13B, which does not rotate, as a program of ours."""
    if "max_position_embeddings" not in config:
        return Baichuan(tensors, config, folder)
    changed = _split(tensors, "self_attn.W_pack", lambda packed: torch.chunk(packed, 3))
    same = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    return _loaded("LlamaForCausalLM", same, changed, folder)


def deci_shapes(config: Config) -> dict[str, list[int]]:
    hidden = config["hidden_size"]
    shapes = _outside_layers(config, "model.embed_tokens.weight", "lm_head.weight")
    for layer, (num_kv_heads, is_linear, inner) in enumerate(_layers_of_deci(config)):
        before = f"model.layers.{layer}."
        if num_kv_heads or is_linear:
            shapes[f"{before}input_layernorm.weight"] = [hidden]
        if is_linear:
            shapes[f"{before}self_attn.linear_attn.weight"] = [hidden, hidden]
        if num_kv_heads:
            keys = [num_kv_heads * hidden // config["num_attention_heads"], hidden]
            of_kind = {"q": [hidden, hidden], "k": keys, "v": keys, "o": [hidden, hidden]}
            shapes |= {f"{before}self_attn.{kind}_proj.weight": shape for kind, shape in of_kind.items()}
        if inner:
            shapes[f"{before}post_attention_layernorm.weight"] = [hidden]
            shapes |= _block(f"{before}mlp.", hidden, inner)
    return shapes


class Deci:
    """Logits of a text, by Llama's rotation and attention of transformers, as each layer has them."""

    def __init__(self, tensors: Tensors, config: Config, folder: Path) -> None:
        self.tensors, self.config = tensors, config

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        length = input_ids.shape[1]
        x = self.tensors["model.embed_tokens.weight"][input_ids]
        mask = torch.full((length, length), -math.inf).triu(1)[None, None]
        for layer, (num_kv_heads, is_linear, inner) in enumerate(_layers_of_deci(self.config)):
            before = f"model.layers.{layer}."
            if num_kv_heads:
                normed = self._normed(x, f"{before}input_layernorm")
                x = x + self._attended(normed, f"{before}self_attn.", num_kv_heads, mask)
            elif is_linear:
                normed = self._normed(x, f"{before}input_layernorm")
                x = x + linear(normed, self.tensors[f"{before}self_attn.linear_attn.weight"])
            if inner:
                normed = self._normed(x, f"{before}post_attention_layernorm")
                gate, up = (linear(normed, self.tensors[f"{before}mlp.{kind}_proj.weight"]) for kind in ("gate", "up"))
                x = x + linear(silu(gate) * up, self.tensors[f"{before}mlp.down_proj.weight"])
        return SimpleNamespace(logits=linear(self._normed(x, "model.norm"), self.tensors["lm_head.weight"]))

    def _attended(self, x: torch.Tensor, before: str, num_kv_heads: int, mask: torch.Tensor) -> torch.Tensor:
        same = {key: value for key, value in self.config.items() if key != "block_configs"}
        config = transformers.LlamaConfig(**same, num_key_value_heads=num_kv_heads)
        config._attn_implementation = "eager"
        attention = modeling_llama.LlamaAttention(config, layer_idx=0).eval()
        attention.load_state_dict(
            {f"{kind}_proj.weight": self.tensors[f"{before}{kind}_proj.weight"] for kind in ("q", "k", "v", "o")}
        )
        rotation = modeling_llama.LlamaRotaryEmbedding(config)(x, torch.arange(x.shape[1])[None])
        attended: torch.Tensor = attention(x, position_embeddings=rotation, attention_mask=mask)[0]
        return attended

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])


def _layers_of_deci(config: Config) -> list[tuple[int, bool, int]]:
    """Of each layer the heads of keys, whether a matrix is in the place of attention, and the inner features."""
    num_heads, hidden, layers = config["num_attention_heads"], config["hidden_size"], []
    for block in config["block_configs"]:
        group, factor = block["attention"]["n_heads_in_group"], block["ffn"]["ffn_mult"]
        inner = math.ceil(int(2 * factor * hidden / 3) / 256) * 256 if factor else 0
        layers.append((num_heads // group if group else 0, block["attention"]["replace_with_linear"], inner))
    return layers


def gpt_shapes(config: Config) -> dict[str, list[int]]:
    """Of CodeShell and Refact."""
    hidden, is_refact = config["n_embd"], "num_query_groups" not in config
    head_dim = hidden // config["n_head"]
    shapes = {
        "transformer.wte.weight": [config["vocab_size"], hidden], "lm_head.weight": [config["vocab_size"], hidden],
        "transformer.ln_f.weight": [hidden],
    }  # fmt: skip
    if is_refact:
        inner = -(-int(8 * hidden / 3) // 256) * 256
        matrices = {
            "attn.q": [hidden, hidden], "attn.kv": [2 * head_dim, hidden], "attn.c_proj": [hidden, hidden],
            "mlp.gate_up_proj": [2 * inner, hidden], "mlp.c_proj": [hidden, inner],
        }  # fmt: skip
    else:
        inner, joined = config["n_inner"], hidden + 2 * config["num_query_groups"] * head_dim
        matrices = {
            "attn.c_attn": [joined, hidden], "attn.c_proj": [hidden, hidden], "mlp.c_fc": [inner, hidden],
            "mlp.c_proj": [hidden, inner],
        }  # fmt: skip
    for layer in range(config["n_layer"]):
        before = f"transformer.h.{layer}."
        shapes |= {f"{before}{norm}.weight": [hidden] for norm in ("ln_1", "ln_2")}
        shapes |= {f"{before}{name}.weight": shape for name, shape in matrices.items()}
    if is_refact:
        return shapes
    outside = ("lm_head", "transformer.wte")
    biases = {name: shape for name, shape in shapes.items() if not name.startswith(outside)}
    return shapes | {name.replace(".weight", ".bias"): shape[:1] for name, shape in biases.items()}


_GPT_NAMES = {
    "transformer.wte": "model.embed_tokens", "transformer.ln_f": "model.norm", "transformer.h": "model.layers",
    "attn.c_proj": "self_attn.o_proj", "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm",
}  # fmt: skip


def load_codeshell(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As Starcoder 2."""
    hidden = config["n_embd"]
    kv_size = config["num_query_groups"] * hidden // config["n_head"]
    changed = _split(tensors, "attn.c_attn", lambda joined: torch.split(joined, [hidden, kv_size, kv_size]))
    same = {
        "vocab_size": config["vocab_size"], "hidden_size": hidden, "intermediate_size": config["n_inner"],
        "num_hidden_layers": config["n_layer"], "num_attention_heads": config["n_head"],
        "num_key_value_heads": config["num_query_groups"], "max_position_embeddings": config["n_positions"],
        "norm_epsilon": config["layer_norm_epsilon"], "use_bias": True, "tie_word_embeddings": False,
        "sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    return _loaded("Starcoder2ForCausalLM", same, _renamed(changed, _GPT_NAMES), folder)


def load_refact(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As Baichuan 13B, whose heads of keys are all the same here."""
    changed = _renamed(tensors, {**_GPT_NAMES, "mlp.c_proj": "mlp.down_proj"})
    for layer in range(config["n_layer"]):
        before = f"model.layers.{layer}."
        keys, values = (part.repeat(config["n_head"], 1) for part in changed.pop(f"{before}attn.kv.weight").chunk(2))
        queries = changed.pop(f"{before}attn.q.weight")
        changed[f"{before}self_attn.W_pack.weight"] = torch.cat([queries, keys, values])
        gate, up = changed.pop(f"{before}mlp.gate_up_proj.weight").chunk(2)
        changed |= {f"{before}mlp.gate_proj.weight": gate, f"{before}mlp.up_proj.weight": up}
    same = {
        "hidden_size": config["n_embd"], "num_attention_heads": config["n_head"],
        "num_hidden_layers": config["n_layer"], "rms_norm_eps": config["layer_norm_epsilon"],
    }  # fmt: skip
    return Baichuan(changed, same, folder)


def chatglm_shapes(config: Config) -> dict[str, list[int]]:
    hidden, inner, head_dim = config["hidden_size"], config["ffn_hidden_size"], config["kv_channels"]
    q_size = config["num_attention_heads"] * head_dim
    joined = q_size + 2 * config["multi_query_group_num"] * head_dim
    vocab = [config["padded_vocab_size"], hidden]
    shapes = {
        "transformer.embedding.word_embeddings.weight": vocab, "transformer.output_layer.weight": vocab,
        "transformer.encoder.final_layernorm.weight": [hidden],
    }  # fmt: skip
    for layer in range(config["num_layers"]):
        before = f"transformer.encoder.layers.{layer}."
        shapes |= {
            f"{before}input_layernorm.weight": [hidden], f"{before}post_attention_layernorm.weight": [hidden],
            f"{before}self_attention.query_key_value.weight": [joined, hidden],
            f"{before}self_attention.query_key_value.bias": [joined],
            f"{before}self_attention.dense.weight": [hidden, q_size],
            f"{before}mlp.dense_h_to_4h.weight": [2 * inner, hidden],
            f"{before}mlp.dense_4h_to_h.weight": [hidden, inner],
        }  # fmt: skip
    return shapes


def load_chatglm(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As GLM-4 of transformers."""
    sizes = [config["kv_channels"] * config[key] for key in ("num_attention_heads", *["multi_query_group_num"] * 2)]
    changed = _split(tensors, "self_attention.query_key_value", lambda joined: torch.split(joined, sizes))
    names = {
        "transformer.embedding.word_embeddings": "model.embed_tokens", "transformer.output_layer": "lm_head",
        "transformer.encoder.final_layernorm": "model.norm", "transformer.encoder.layers": "model.layers",
        "self_attention.dense": "self_attn.o_proj", "dense_h_to_4h": "gate_up_proj", "dense_4h_to_h": "down_proj",
    }  # fmt: skip
    same = {
        "vocab_size": config["padded_vocab_size"], "hidden_size": config["hidden_size"],
        "intermediate_size": config["ffn_hidden_size"], "num_hidden_layers": config["num_layers"],
        "num_attention_heads": config["num_attention_heads"], "head_dim": config["kv_channels"],
        "num_key_value_heads": config["multi_query_group_num"], "max_position_embeddings": config["seq_length"],
        "rms_norm_eps": config["layernorm_epsilon"], "attention_bias": True, "tie_word_embeddings": False,
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0 * config["rope_ratio"], "partial_rotary_factor": 0.5,
        },
    }  # fmt: skip
    return _loaded("GlmForCausalLM", same, _renamed(changed, names), folder)


def pangu_shapes(config: Config) -> dict[str, list[int]]:
    shapes = minicpm_shapes(config)
    biases = {name: shape for name, shape in shapes.items() if "self_attn" in name}
    return shapes | {name.replace(".weight", ".bias"): shape[:1] for name, shape in biases.items()}


def load_pangu(tensors: Tensors, config: Config, folder: Path) -> Any:
    same = {**config, "attention_bias": config["bias"], "rope_parameters": _rotation(config)}
    return _loaded("LlamaForCausalLM", same, tensors, folder)


def plm_shapes(config: Config) -> dict[str, list[int]]:
    hidden, heads, inner = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
    rank, rope, nope = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        shapes |= {
            f"{before}input_layernorm.weight": [hidden], f"{before}post_attention_layernorm.weight": [hidden],
            f"{before}self_attn.q_proj.weight": [heads * (nope + rope), hidden],
            f"{before}self_attn.kv_a_proj_with_mqa.weight": [rank + rope, hidden],
            f"{before}self_attn.kv_a_layernorm.weight": [rank],
            f"{before}self_attn.kv_b_proj.weight": [heads * (nope + config["v_head_dim"]), rank],
            f"{before}self_attn.o_proj.weight": [hidden, heads * config["v_head_dim"]],
            f"{before}mlp.up_proj.weight": [inner, hidden], f"{before}mlp.down_proj.weight": [hidden, inner],
        }  # fmt: skip
    return shapes


class SquaredReluBlock(torch.nn.Module):
    """A feed-forward block without gates."""

    def __init__(self, up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        self.up, self.down = up, down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(relu(linear(x, self.up)) ** 2, self.down)


def load_plm(tensors: Tensors, config: Config, folder: Path) -> Any:
    """As Youtu, with other feed-forward blocks."""
    changed = dict(tensors)
    blocks = []
    for layer in range(config["num_hidden_layers"]):
        up, down = (changed[f"model.layers.{layer}.mlp.{kind}_proj.weight"] for kind in ("up", "down"))
        changed[f"model.layers.{layer}.mlp.gate_proj.weight"] = up.clone()
        blocks.append(SquaredReluBlock(up, down))
    same = {**config, "hidden_act": "silu", "q_lora_rank": None, "rope_parameters": _rotation(config)}
    model = _loaded("YoutuForCausalLM", same, changed, folder)
    for layer, block in zip(model.model.layers, blocks, strict=True):
        layer.mlp = block
    return model


def openelm_shapes(config: Config) -> dict[str, list[int]]:
    hidden, head_dim = config["model_dim"], config["head_dim"]
    shapes = {
        "transformer.token_embeddings.weight": [config["vocab_size"], hidden], "transformer.norm.weight": [hidden],
    }  # fmt: skip
    for layer, (heads, kv_heads, inner) in enumerate(_layers_of_openelm(config)):
        before = f"transformer.layers.{layer}."
        shapes |= {
            f"{before}attn_norm.weight": [hidden], f"{before}ffn_norm.weight": [hidden],
            f"{before}attn.q_norm.weight": [head_dim], f"{before}attn.k_norm.weight": [head_dim],
            f"{before}attn.qkv_proj.weight": [(heads + 2 * kv_heads) * head_dim, hidden],
            f"{before}attn.out_proj.weight": [hidden, heads * head_dim],
            f"{before}ffn.proj_1.weight": [2 * inner, hidden], f"{before}ffn.proj_2.weight": [hidden, inner],
        }  # fmt: skip
    return shapes


class OpenElm:
    """Logits of a text, by Qwen3's rotation and attention of transformers, as each layer has them."""

    def __init__(self, tensors: Tensors, config: Config, folder: Path) -> None:
        self.tensors, self.config = tensors, config

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        length, tensors = input_ids.shape[1], self.tensors
        x = tensors["transformer.token_embeddings.weight"][input_ids]
        mask = torch.full((length, length), -math.inf).triu(1)[None, None]
        for layer, (heads, kv_heads, _) in enumerate(_layers_of_openelm(self.config)):
            before = f"transformer.layers.{layer}."
            x = x + self._attended(self._normed(x, f"{before}attn_norm"), f"{before}attn.", heads, kv_heads, mask)
            gate, up = linear(self._normed(x, f"{before}ffn_norm"), tensors[f"{before}ffn.proj_1.weight"]).chunk(2, -1)
            x = x + linear(silu(gate) * up, tensors[f"{before}ffn.proj_2.weight"])
        logits = linear(self._normed(x, "transformer.norm"), tensors["transformer.token_embeddings.weight"])
        return SimpleNamespace(logits=logits)

    def _attended(self, x: torch.Tensor, before: str, heads: int, kv_heads: int, mask: torch.Tensor) -> torch.Tensor:
        head_dim = self.config["head_dim"]
        config = transformers.Qwen3Config(
            hidden_size=self.config["model_dim"], num_attention_heads=heads, num_key_value_heads=kv_heads,
            head_dim=head_dim, rms_norm_eps=1e-6, attention_bias=False,
            rope_parameters={"rope_type": "default", "rope_theta": float(self.config["rope_freq_constant"])},
        )  # fmt: skip
        config._attn_implementation = "eager"
        attention = modeling_qwen3.Qwen3Attention(config, layer_idx=0).eval()
        sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        parts = torch.split(self.tensors[f"{before}qkv_proj.weight"], sizes)
        weights = {f"{kind}_proj.weight": part for kind, part in zip("qkv", parts, strict=True)}
        weights |= {f"{kind}_norm.weight": self.tensors[f"{before}{kind}_norm.weight"] for kind in "qk"}
        attention.load_state_dict({**weights, "o_proj.weight": self.tensors[f"{before}out_proj.weight"]})
        rotation = modeling_qwen3.Qwen3RotaryEmbedding(config)(x, torch.arange(x.shape[1])[None])
        attended: torch.Tensor = attention(x, position_embeddings=rotation, attention_mask=mask)[0]
        return attended

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], 1e-6)


def _layers_of_openelm(config: Config) -> list[tuple[int, int, int]]:
    """Of each layer the heads of queries and of keys, and the inner features."""
    divisor, sizes = config["ffn_dim_divisor"], []
    for multiplier in config["ffn_multipliers"]:
        size = multiplier * config["model_dim"]
        nearest = max(divisor, int(size + divisor / 2) // divisor * divisor)
        sizes.append(nearest + divisor if nearest < 0.9 * size else nearest)
    return list(zip(config["num_query_heads"], config["num_kv_heads"], sizes, strict=True))


def step35_shapes(config: Config) -> dict[str, list[int]]:
    hidden, head_dim, inner = config["hidden_size"], config["head_dim"], config["moe_intermediate_size"]
    kv_size, count = config["num_attention_groups"] * head_dim, config["moe_num_experts"]
    sparse = {int(layer) for layer in config["moe_layers_enum"].split(",")}
    shapes = _outside_layers(config, "model.embed_tokens.weight", "lm_head.weight")
    for layer in range(config["num_hidden_layers"]):
        is_local = config["layer_types"][layer] == "sliding_attention"
        heads = (config["attention_other_setting"] if is_local else config)["num_attention_heads"]
        before = f"model.layers.{layer}."
        sizes = {"q_proj": heads * head_dim, "k_proj": kv_size, "v_proj": kv_size, "g_proj": heads}
        shapes |= {f"{before}self_attn.{name}.weight": [size, hidden] for name, size in sizes.items()}
        shapes |= {f"{before}self_attn.{kind}_norm.weight": [head_dim] for kind in "qk"}
        shapes[f"{before}self_attn.o_proj.weight"] = [hidden, heads * head_dim]
        shapes |= {f"{before}{kind}_layernorm.weight": [hidden] for kind in ("input", "post_attention")}
        if layer not in sparse:
            shapes |= _block(f"{before}mlp.", hidden, config["intermediate_size"])
            continue
        shapes |= {f"{before}moe.gate.weight": [count, hidden], f"{before}moe.router_bias": [count]}
        of_experts = _block(f"{before}moe.", hidden, inner)
        shapes |= {name: [count, *shape] for name, shape in of_experts.items()}
        shapes |= _block(f"{before}share_expert.", hidden, config["share_expert_dim"])
    return shapes


class Step35:
    """Logits of a text, by the part of transformers' class with pictures that reads texts."""

    def __init__(self, tensors: Tensors, config: Config, folder: Path) -> None:
        left_out = ("architectures", "model_type")
        made = modeling_step3p7.Step3p7TextConfig(**{key: config[key] for key in config if key not in left_out})
        made._attn_implementation = "eager"
        self.model, self.output = modeling_step3p7.Step3p7TextModel(made).eval(), tensors["lm_head.weight"]
        names = {
            "model.": "", "moe.gate.weight": "mlp.gate.weight", "moe.router_bias": "mlp.gate.e_score_correction_bias",
            "moe.down_proj.weight": "mlp.experts.down_proj", "share_expert": "mlp.shared_experts",
        }  # fmt: skip
        changed = _renamed({name: values for name, values in tensors.items() if name != "lm_head.weight"}, names)
        for name in [name for name in changed if name.endswith("moe.gate_proj.weight")]:
            gate, up = changed.pop(name), changed.pop(name.replace("gate_proj", "up_proj"))
            changed[name.replace("moe.gate_proj.weight", "mlp.experts.gate_up_proj")] = torch.cat([gate, up], dim=1)
        self.model.load_state_dict(changed)

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=linear(self.model(input_ids, use_cache=False).last_hidden_state, self.output))


STAND_INS: dict[str, StandIn] = {
    "Step3p5ForCausalLM": StandIn("step3p5", step35_shapes, Step35),
    "OpenELMForCausalLM": StandIn("openelm", openelm_shapes, OpenElm),
    "PLMForCausalLM": StandIn("plm", plm_shapes, load_plm),
    "CodeShellForCausalLM": StandIn("codeshell", gpt_shapes, load_codeshell),
    "GPTRefactForCausalLM": StandIn("gpt_refact", gpt_shapes, load_refact),
    "ChatGLMModel": StandIn("chatglm", chatglm_shapes, load_chatglm),
    "PanguEmbeddedForCausalLM": StandIn("PanguEmbedded", pangu_shapes, load_pangu),
    "DeciLMForCausalLM": StandIn("nemotron-nas", deci_shapes, Deci),
    "BaichuanForCausalLM": StandIn("baichuan", baichuan_shapes, load_baichuan),
    "JAISLMHeadModel": StandIn("jais", jais_shapes, Jais),
    "DeepseekForCausalLM": StandIn("deepseek", deepseek_shapes, load_deepseek),
    "MaincoderForCausalLM": StandIn("maincoder", maincoder_shapes, load_maincoder),
    "QWenLMHeadModel": StandIn("qwen", qwen_shapes, load_qwen),
    "NanbeigeForCausalLM": StandIn("nanbeige", nanbeige_shapes, Nanbeige),
    "BailingMoeForCausalLM": StandIn("bailing_moe", bailing_shapes, load_first_bailing),
    "BailingMoeV2ForCausalLM": StandIn("bailing_moe", bailing_shapes, load_bailing),
    "ExaoneForCausalLM": StandIn("exaone", exaone_shapes, load_exaone),
    "MiniCPMForCausalLM": StandIn("minicpm", minicpm_shapes, load_minicpm),
    "Plamo2ForCausalLM": StandIn("plamo2", plamo_shapes, Plamo),
    "Plamo3ForCausalLM": StandIn("plamo3", plamo_shapes, Plamo),
    "OrionForCausalLM": StandIn("orion", orion_shapes, load_orion),
    "XverseForCausalLM": StandIn("xverse", minicpm_shapes, load_xverse),
    "InternLM2ForCausalLM": StandIn("internlm2", internlm2_shapes, load_internlm2),
    "SmallThinkerForCausalLM": StandIn("smallthinker", smallthinker_shapes, SmallThinker),
}


def _outside_layers(config: Config, embedding: str, output: str) -> dict[str, list[int]]:
    vocab = [config["vocab_size"], config["hidden_size"]]
    return {embedding: vocab, output: vocab, "model.norm.weight": vocab[1:]}


def _block(before: str, hidden: int, inner: int) -> dict[str, list[int]]:
    shapes = {"gate": [inner, hidden], "up": [inner, hidden], "down": [hidden, inner]}
    return {f"{before}{kind}_proj.weight": shape for kind, shape in shapes.items()}


def _split(tensors: Tensors, joined: str, parts: Callable[[torch.Tensor], Any]) -> Tensors:
    """Queries, keys and values by themselves, as transformers names them."""
    changed: Tensors = {}
    for name, values in tensors.items():
        if joined not in name:
            changed[name] = values
            continue
        for kind, part in zip(("q", "k", "v"), parts(values), strict=True):
            changed[name.replace(joined, f"self_attn.{kind}_proj")] = part.contiguous()
    return changed


def _renamed(tensors: Tensors, names: Mapping[str, str]) -> Tensors:
    changed: Tensors = {}
    for name, values in tensors.items():
        for old, new in names.items():
            name = name.replace(old, new)
        changed[name] = values
    return changed


def _rotation(config: Config) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": config["rope_theta"]}


def _loaded(class_name: str, config: Config, tensors: Tensors, folder: Path) -> Any:
    model_class = getattr(transformers, class_name)
    model_type = model_class.config_class.model_type
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": [class_name], "model_type": model_type}), encoding="utf-8"
    )
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
